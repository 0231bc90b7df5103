"""The one player: make an operation by name as a call of a manager, and encode its result.

Operations and results are those of records, and some that only programs have: residency samples,
the recent hit rate, requests with embeddings, copies of blocks, blocks that are held, following.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, TypeAlias, cast

from kvcheck.play.batch_calls import PLAYS
from kvcheck.play.calls import grown_answer, input_of, lists_of, made_answer, make, plain
from kvcheck.play.keeping import Kept
from kvspec.batched import BatchedManager
from kvspec.errors import InvalidArgumentError
from kvspec.following import FollowingImplementation
from kvspec.interface import Feature, HitRateWindow, Implementation, KVCacheManager
from kvspec.operations import OPERATIONS
from kvspec.request import PromptEmbeddings, Request, RequestInput, RequestStatus
from kvspec.sequential import SequentialManager, batched_of
from kvspec.snapshot_codec import hexes

OWNED: Mapping[str, tuple[str, ...]] = {
    "allocate_slots": ("junction_tokens", "num_in_flight_tokens"),
    "cache_blocks": ("junction_tokens",),
}
"""Arguments that are attributes of the request, 0 if left out."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call: its result in JSON, or the exception it ended with."""

    result: Any = None
    error: Exception | None = None


@dataclass
class Player:
    """One manager and the requests made for it.

    The requests are the scheduler's: they outlive `free`, as a preempted request does.
    `kept`: the engine's own data of followed requests. `loops`: whole steps are the loop of single
    calls that defines them, also where the implementation has its own. `is_timed`: the manager
    reads a clock of the caller. `window`: of recent look-ups, once it was asked for.
    """

    implementation: Implementation
    manager: KVCacheManager
    requests: dict[str, Request] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    loops: bool = False
    is_timed: bool = False
    window: HitRateWindow | None = None
    _batched: BatchedManager | None = None

    @property
    def batched(self) -> BatchedManager:
        """Return whole steps on the manager; on a new manager no request is registered."""
        if self._batched is None or self._batched.manager is not self.manager:
            make = SequentialManager if self.loops else batched_of
            self._batched = make(self.implementation, self.manager)
        return self._batched

    def perform(self, name: str, request_id: str | None, arguments: Mapping[str, Any]) -> Outcome:
        """Play one operation. Any exception of the implementation is an outcome too.

        Raises InvalidArgumentError for an unknown name, an unknown request, or a request that the
        operation does not take.
        """
        if name not in NAMES:
            raise InvalidArgumentError("op", name, "one of " + ", ".join(NAMES))
        on_request = name == "follow" or (name in OPERATIONS and OPERATIONS[name].on_request)
        if (request_id is not None) != on_request:
            wanted = "a request id" if on_request else "None"
            raise InvalidArgumentError("req", request_id, f"{wanted} for {name}")
        if request_id is not None and name != "new_request" and request_id not in self.requests:
            raise InvalidArgumentError("req", request_id, "a request that new_request made before")
        try:
            if name in OWN_PLAYS:
                return Outcome(OWN_PLAYS[name](self, request_id or "", arguments))
            return Outcome(self._call(name, request_id or "", arguments))
        except Exception as error:  # whatever an implementation does is its result
            return Outcome(error=error)

    def _new_request(self, name: str, args: Mapping[str, Any]) -> Any:
        rows = args.get("prompt_embeddings")
        embeddings = None if rows is None else PromptEmbeddings(bytes(rows), 1)
        request = self.requests[name] = self._made(input_of(name, args, embeddings))
        return made_answer(request)

    def _made(self, given: RequestInput) -> Request:
        """Make a request, a followed one if the manager's hashes are given (KV-REQ-6)."""
        if not self.manager.config.given_hash_bytes:
            return self.implementation.make_request(self.manager, given)
        kept = self.kept[given.request_id] = Kept(self.manager.config, given)
        return self._engine.make_followed(self.manager, kept.first)

    @property
    def _engine(self) -> FollowingImplementation:
        return cast(FollowingImplementation, self.implementation)

    def _follow(self, name: str, args: Mapping[str, Any]) -> Any:
        """Keep the first tokens, in a call of their own, and append others (KV-REQ-7, KV-REQ-8).

        `num_prompt`: of the tokens kept, and of all.
        """
        kept, request = self.kept[name], self.requests[name]
        kept.cut(args["num_kept"])
        for tokens, prompt in zip(((), args["token_ids"]), args["num_prompt"], strict=True):
            new, length = kept.extend(tokens), len(kept.tokens)
            self._engine.follow(self.manager, request, length, new, num_prompt_tokens=prompt)
        hashes = hexes(request.block_hashes)
        return [index(request.num_tokens), index(request.num_prompt_tokens), hashes]

    def _append_tokens(self, name: str, args: Mapping[str, Any]) -> Any:
        request, tokens = self.requests[name], tuple(args["token_ids"])
        before, kept = len(request.block_hashes), self.kept.get(name)
        if kept is None:
            self.implementation.append_tokens(self.manager, request, tokens)
        else:
            new = kept.extend(tokens)
            self._engine.follow(self.manager, request, len(kept.tokens), new)
        return grown_answer(request, before)

    def _call(self, name: str, request_id: str, args: Mapping[str, Any]) -> Any:
        """Call the manager after setting what its scheduler owns of the request."""
        given, request = dict(args), self.requests.get(request_id)
        if request is not None:
            if name in ("get_computed_blocks", "record_prefix_cache_stats"):
                request.num_preemptions = given.pop("num_preemptions", 0)
            elif name == "allocate_slots":
                request.num_computed_tokens = given.pop("num_computed_tokens")
                request.status = RequestStatus(given.pop("status"))
            for owned in OWNED.get(name, ()):
                if owned in given or hasattr(request, owned):
                    setattr(request, owned, given.pop(owned, 0))
        return plain(name, make(self.manager, name, request, given))

    def _get_block_ids(self, name: str, args: Mapping[str, Any]) -> Any:
        has_unhashed = Feature.UNHASHED_BLOCKS in self.implementation.capabilities.features
        return lists_of(self.manager, self.requests[name], has_unhashed=has_unhashed)

    def _hold_blocks(self, name: str, args: Mapping[str, Any]) -> Any:
        """Hold blocks; return the facts of each before and after (KV-POOL-19, KV-POOL-20)."""
        blocks = args["block_ids"]
        before = self._facts(blocks)
        self.manager.hold_blocks(tuple(blocks))
        return [*before, *self._facts(blocks)]

    def _facts(self, blocks: Iterable[int]) -> list[tuple[object, ...]]:
        if Feature.BLOCK_FACTS not in self.implementation.capabilities.features:
            return []
        facts = map(self.manager.get_block, blocks)
        return [(each.references, each.block_hash, each.group) for each in facts]

    def _take_residency_samples(self, name: str, args: Mapping[str, Any]) -> Any:
        """Return the samples, or, by a real clock, how often each life was touched."""
        samples = self.manager.take_residency_samples()
        return [each if self.is_timed else len(each.reuse_gaps_ns) for each in samples]

    def _recent_hits(self, name: str, args: Mapping[str, Any]) -> Any:
        """Take the statistics, and return them with what a window over them shows (KV-STAT-4)."""
        if self.window is None:
            self.window = self.implementation.make_hit_rate_window(args["max_requests"])
        stats = self.manager.make_prefix_cache_stats()
        if stats is not None:
            self.window.observe(stats)
        shown = self.window.num_requests, self.window.hit_rate
        return plain("make_prefix_cache_stats", stats), *shown


Play: TypeAlias = Callable[[Player, str, Mapping[str, Any]], Any]

OWN_PLAYS: Mapping[str, Play] = {
    "new_request": Player._new_request,
    "append_tokens": Player._append_tokens,
    "follow": Player._follow,
    "hold_blocks": Player._hold_blocks,
    "get_block_ids": Player._get_block_ids,
    "take_residency_samples": Player._take_residency_samples,
    "recent_hits": Player._recent_hits,
    **PLAYS,
}
"""Players of operations that are not one call of a manager."""

NAMES = tuple(dict.fromkeys((*OPERATIONS, *OWN_PLAYS)))
"""Every operation."""
