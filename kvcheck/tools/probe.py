"""Check a server of spec/protocol.md, message by message, with a short fixed program.

A reference in this process receives the same messages. The program continues after a wrong reply or
a refusal, so that a half-written server can be checked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from types import MappingProxyType
from typing import Any

from kvcheck.play.agreement import without_ids
from kvcheck.play.compare import compare_values
from kvcheck.remote.calls import Session
from kvcheck.remote.child import Child, ChildFailure
from kvcheck.remote.codec import FRAMINGS, decode, encode
from kvcheck.remote.connection import Options, hello_args
from kvcheck.remote.operations import MESSAGES, check_hello
from kvcheck.remote.server import answer
from kvcheck.remote.values import decode_parts
from kvspec.codec import encode_manager_config
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import FormatError
from kvspec.files.objects import Where, anything, checked_members, shown
from kvspec.interface import Feature, Implementation
from kvspec.offload import OffloadCapabilities
from kvspec.policy import Policy
from kvspec.specs import FullAttentionSpec

NUM_BLOCKS = 8
PLAIN = MappingProxyType(
    {
        **dict.fromkeys(("cache_salt", "lora", "prompt_embeddings")),
        **{"mm_features": [], "skip_reading_prefix_cache": False},
    }
)
"""Content of a request that has none, as the client of `kvspec check` sends it."""
MANAGER, FIRST, SECOND, TIER = 1, 2, 3, 4
"""Handles of the manager, of the two requests, and of the offload manager."""


class Verdict(StrEnum):
    RIGHT = "same as the reference"
    OTHER_BLOCKS = "right; the block ids differ, which only level identity compares"
    REFUSED = "not supported yet"
    WRONG = "differs from the reference"
    MALFORMED = "invalid under spec/protocol.md"
    SILENT = "no reply"


NOT_SERVED = ("ProtocolError", "UnsupportedError", "InternalError")
"""Errors of a server that lacks an operation, or crashed in it."""

OF_NO_CONCERN = (Verdict.RIGHT, Verdict.OTHER_BLOCKS)


@dataclass(frozen=True)
class Exchange:
    """A message, its reply (None: there was none) and the verdict; `detail` says what is wrong."""

    message: Mapping[str, Any]
    answer: Mapping[str, Any] | None
    verdict: Verdict
    detail: str = ""


Given = Mapping[str, Any]
"""Earlier results of one side, by operation and request; later messages pass them on."""


@dataclass(frozen=True)
class Line:
    """A message of the program. `args` may depend on earlier results of the same side."""

    op: str
    handles: Mapping[str, int]
    args: Callable[[Given], dict[str, Any]] = lambda given: {}
    owned: Mapping[str, Any] | None = None
    feature: Feature | None = None

    @property
    def key(self) -> str:
        """Key of its result in `Given`."""
        return f"{self.op} {self.handles.get('request', '')}".strip()


def probe(options: Options, reference: Implementation) -> Iterator[Exchange]:
    """Yield the handshake, then the program, one exchange at a time.

    Closing the iterator ends the child. If the options name no framing and the child does not
    understand the handshake, it is started again with the other framing.
    """
    framings = (options.framing,) if options.framing else FRAMINGS
    for framing in framings:
        child = Child(options.command, framing)
        hello = hello_args(options.framing if framing is FRAMINGS[0] else framing)
        try:
            conversation = _Conversation(child, framing, options.timeout_s, Session(reference))
            exchanges = conversation.exchanges(hello)
            first = next(exchanges)
            if first.verdict is not Verdict.SILENT or framing is framings[-1]:
                yield first
                yield from exchanges
                return
        finally:
            child.end()


HASHES = (
    *("none_hash", "block_hashes", "num_block_hashes", "new_block_hashes"),
    *("block_keys", "lookup_order", "covered_tokens", "step_keys"),
)
"""Members that are not compared if the server names no hash function."""


class _Conversation:
    def __init__(self, child: Child, framing: str, timeout_s: float, session: Session) -> None:
        self.child, self.framing, self.timeout_s, self.session = child, framing, timeout_s, session
        self.number = 0
        self.left_out: tuple[str, ...] = ()
        self.theirs: dict[str, Any] = {}
        self.ours: dict[str, Any] = {}

    def exchanges(self, hello: dict[str, Any]) -> Iterator[Exchange]:
        """Yield the exchange of hello with these arguments, then, if it is right, all others."""
        greeted = self._exchange(Line("hello", {}, lambda given: hello))
        yield greeted
        if greeted.verdict is not Verdict.RIGHT or greeted.answer is None:
            return
        offered = greeted.answer["result"]
        self.left_out = () if offered["hash_functions"] else HASHES
        if Feature.UNHASHED_BLOCKS not in offered["features"]:
            self.left_out += ("unhashed",)
        for line in (*(story(offered) if offered["spec_types"] else ()), *tier_story(offered)):
            if line.feature is not None and line.feature not in offered["features"]:
                continue
            done = self._exchange(line)
            yield done
            if done.verdict is Verdict.SILENT:
                return

    def _exchange(self, line: Line) -> Exchange:
        message = self._message(line, self.theirs)
        expected = answer(self.session, self._message(line, self.ours))
        self.number += 1
        if "result" in expected:
            self.ours[line.key] = expected["result"]
        try:
            framed = encode(dict(message), self.framing)
            body = next(self.child.exchange(framed, self.timeout_s))
            got = decode(body, self.framing)
        except (ChildFailure, FormatError) as failure:
            said = self.child.last_words()
            detail = str(failure) + (f"; stderr ends with: {said}" if said else "")
            return Exchange(message, None, Verdict.SILENT, detail)
        verdict, detail = judged(line, message, expected, got, left_out=self.left_out)
        # If the result is unusable, later messages pass on the reference's.
        usable = "result" in got and verdict is not Verdict.MALFORMED
        self.theirs[line.key] = got["result"] if usable else self.ours.get(line.key)
        return Exchange(message, got, verdict, detail)

    def _message(self, line: Line, given: Given) -> dict[str, Any]:
        message: dict[str, Any] = {"id": self.number, "op": line.op, **line.handles}
        if line.owned:
            message["set"] = dict(line.owned)
        args = line.args(given)
        return {**message, "args": args} if args else message


def judged(
    line: Line,
    message: Mapping[str, Any],
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    *,
    left_out: Collection[str] = (),
) -> tuple[Verdict, str]:
    """Judge a reply against the reference's. `left_out`: members that are not compared."""
    where = Where("answer")
    outcome = "error" if "error" in got else "result"
    try:
        checked_members(dict(got), where, {"id": anything, outcome: anything}, {})
        if outcome == "error":
            error = got["error"]
            checked = {"class": anything, "message": anything, "fields": anything}
            checked_members(error, where.member("error"), checked, {})
        if type(got["id"]) is not int or got["id"] != message["id"]:
            said = f"{shown(got['id'])}, not {message['id']}"
            raise where.member("id").error(said)
        if outcome == "result":
            check = check_hello if line.op == "hello" else MESSAGES[line.op].result
            check(got["result"], where.member("result"))
    except (FormatError, TypeError) as error:
        return Verdict.MALFORMED, str(error)
    if outcome == "error":
        return _judged_error(expected, got["error"])
    if "error" in expected:
        return Verdict.WRONG, f"expected a {expected['error']['class']}, got {shown(got['result'])}"
    if line.op == "hello":
        return Verdict.RIGHT, ""
    ours, theirs = (_without(side["result"], left_out) for side in (expected, got))
    plain: Callable[[Any], object] = partial(without_ids, line.op)
    if line.op.startswith("offload_") or line.op == "snapshot":
        plain = _without_ids if line.op == "snapshot" else _without_places
    for difference in compare_values("result", ours, theirs):
        detail = " ".join(text.strip() for text in list(difference.lines(None))[-1:])
        if plain(ours) == plain(theirs):
            return Verdict.OTHER_BLOCKS, detail
        return Verdict.WRONG, detail
    return Verdict.RIGHT, ""


def _without(result: Any, left_out: Collection[str]) -> Any:
    if not isinstance(result, dict):
        return result
    return {name: value for name, value in result.items() if name not in left_out}


def _without_ids(snapshot: Mapping[str, Any]) -> object:
    """Reduce a snapshot to what does not depend on the choice of blocks."""
    requests = {
        name: ([len(blocks) for blocks in state["block_ids"]], state["num_cached_blocks"])
        for name, state in snapshot["requests"].items()
    }
    counts, keys = sorted(snapshot["ref_counts"]), sorted(snapshot.get("lookup_order", ()))
    return counts, keys, len(snapshot["free_queue"]), requests


def _without_places(result: Any) -> Any:
    """Reduce the result of an offload manager to what does not depend on the choice of places."""
    if isinstance(result, list):
        return sorted(map(str, map(_without_places, result)))
    return _without(result, ("places",))


def _judged_error(expected: Mapping[str, Any], error: Mapping[str, Any]) -> tuple[Verdict, str]:
    said = f"{error['class']}: {error['message']}"
    if error["class"] in NOT_SERVED:
        return Verdict.REFUSED, said
    if "error" not in expected:
        return Verdict.WRONG, said
    if error["class"] != expected["error"]["class"]:
        return Verdict.WRONG, f"expected a {expected['error']['class']}, got {said}"
    return Verdict.RIGHT, ""


def configuration(offered: Mapping[str, Any]) -> ManagerConfig:
    """Return a configuration with one full-attention group, as small as the server allows."""
    block_size = max(4, offered.get("min_block_size", 1))
    spec = FullAttentionSpec(block_size, 1, 8, "float16")
    hashes = [name for name in offered["hash_functions"] if name == "sha256_cbor"]
    return ManagerConfig(
        KVCacheConfig(NUM_BLOCKS, (KVCacheGroup(("layer.0",), spec),)),
        max_model_len_tokens=16 * block_size,
        hash_function=(hashes or [*offered["hash_functions"], "sha256_cbor"])[0],
        trusted_tenants=True,
        hash_seed="0",
        enable_caching=Feature.PREFIX_CACHING in offered["features"],
        enable_events=Feature.EVENTS in offered["features"],
        policy=Policy(extra_keys=min(offered.get("extra_keys", ["plain"]))),
    )


def story(offered: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the program: two requests with a common prefix, which compute, hit, decode, make an
    illegal call and are freed."""
    config = configuration(offered)
    size = config.kv_cache.groups[0].spec.block_size
    sent = encode_manager_config(config)
    if "policy" in sent and "extra_keys" not in offered:
        sent["policy"].pop("extra_keys")
    manager = {"manager": MANAGER}
    first, second = {**manager, "request": FIRST}, {**manager, "request": SECOND}
    prompt = list(range(1, 2 * size + 2))

    def made(name: str, tokens: list[int], **more: Any) -> Callable[[Given], dict[str, Any]]:
        return lambda given: {"request_id": name, "prompt_token_ids": tokens, **more}

    def with_hit(given: Given) -> dict[str, Any]:
        hit = given[f"get_computed_blocks {SECOND}"]
        length = hit["num_computed_tokens"]
        args: dict[str, Any] = {"num_new_tokens": len(prompt) + size - length}
        if length:
            args |= {"num_new_computed_tokens": length, "new_computed_blocks": hit["blocks"]}
        return args

    def new(count: int) -> Callable[[Given], dict[str, Any]]:
        return lambda given: {"num_new_tokens": count}

    look = (Line("get_usage", manager), Line("snapshot", manager, feature=Feature.SNAPSHOT))
    running = {"num_computed_tokens": len(prompt), "status": "RUNNING"}
    yield Line("create_manager", manager, lambda given: {"config": sent, "check_invariants": False})
    yield from look
    yield Line("make_request", first, made("a", prompt))
    yield Line("get_computed_blocks", first)
    yield Line("allocate_slots", first, new(len(prompt)))
    yield Line("get_block_ids", first, owned=running)
    yield Line("make_request", second, made("b", [*prompt, *range(100, 100 + size)], **PLAIN))
    yield Line("get_computed_blocks", second)
    yield Line("allocate_slots", second, with_hit)
    yield from look
    yield Line("append_tokens", first, lambda given: {"token_ids": [7]})
    yield Line("allocate_slots", first, new(1))
    yield Line("allocate_slots", first, new(-1))  # illegal: a typed error, and nothing changes
    yield Line("get_block_ids", first)
    yield Line("take_events", manager, feature=Feature.EVENTS)
    yield Line("free", first)
    yield Line("free", second)
    yield from look
    yield Line("drop", {}, lambda given: {"managers": [1], "requests": [2, 3], "windows": []})


def tier_story(offered: Mapping[str, Any]) -> Iterator[Line]:
    """Yield a program for an offload manager, if one is offered: chunks a and b of a request."""
    if "offload" not in offered:
        return
    able = decode_parts(OffloadCapabilities, offered["offload"], "offload")
    manager, (a, b) = {"manager": TIER}, ("61", "62")
    below = ["miss"] * able.has_lower_tiers

    def line(op: str, **args: Any) -> Line:
        return Line(op, manager, lambda given: args)

    def of(op: str, *keys: str, **more: Any) -> Line:
        return line(f"offload_{op}", keys=list(keys), request_id="r", **more)

    yield line("make_offload", num_chunks=3, num_lower=len(below), order="lru")
    yield line("offload_new_request", request_id="r")
    yield line("offload_lookup", key=a, request_id="r", below=below)
    yield of("prepare_store", a, b)
    yield line("offload_lookup", key=a, request_id="r", below=below)
    yield of("complete_store", a)
    yield of("complete_store", b, success=False)
    yield line("offload_lookup", key=a, request_id="r", below=below)
    yield of("prepare_load", a)
    if able.checks_calls:
        yield of("complete_load", b)
    if able.has_counts:
        yield line("offload_counts")
    yield of("complete_load", a)
    yield of("touch", a)
    yield line("offload_end_step")
    if below:
        yield line("offload_finish_transfer", number=0, failed=[])
    yield line("offload_take_events")
    yield line("offload_finish_request", request_id="r")
    yield line("offload_reset")
    yield Line("drop", {}, lambda given: {"managers": [TIER], "requests": [], "windows": []})
