"""A record of a run as constants of Trace: calls, results, and changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvspec.config import ManagerConfig
from kvspec.record import Header, Operation
from kvspec.specs import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)
from proofs.models._formal._constants import constants_of

MODELLED = (
    FullAttentionSpec,
    TQFullAttentionSpec,
    MLAAttentionSpec,
    HiddenStateCacheSpec,
    SlidingWindowSpec,
    SlidingWindowMLASpec,
)
NOBODY = (0, 1, 0)
"""A key that no text has."""

Key = tuple[int, ...]


def lacking(header: Header, operations: Iterable[Operation]) -> tuple[str, ...]:
    """Return the options of a record that the model lacks, each once."""
    config = header.config
    found: dict[str, None] = {}
    if header.raises is not None:
        found["a configuration that must fail"] = None
    start = header.start
    if start is not None and (any(start.ref_counts) or any(start.block_keys)):
        # What a monitor writes of a whole run begins with the state of a new manager.
        found["a start from a state"] = None
    if not config.kv_cache.groups:
        found["no groups"] = None
    if config.policy.unhashed_freed_to != "front":
        found["unhashed blocks freed to the back"] = None
    for spec in config.managed_specs:
        if type(spec) not in MODELLED:
            found[f"groups of {type(spec).__name__}"] = None
    for each in operations:
        if each.name == "cache_partial_block" and each.raises is None:
            found["partial entries"] = None
        if each.arguments.get("mm_features"):
            found["items in prompts"] = None
        if each.arguments.get("num_encoder_tokens"):
            found["tokens of an encoder"] = None
    return tuple(found)


@dataclass
class Made:
    """A request as it is now: the number of its text, its tokens, and what is hashed besides."""

    text: int
    prompt: int
    tokens: int
    salt: str | None
    adapter: str | None
    skips_reading: bool


@dataclass
class Translation:
    """A record read from its start, operation by operation.

    `texts`: all tokens of each request that was made; a token with another adapter or, in the
    first hashed block, another salt is another one. `contents`: the text and the number of its
    tokens that a hash identifies. `seen`, `said`: the recorded state and the last result.
    """

    config: ManagerConfig
    names: dict[str, int] = field(default_factory=dict)
    texts: list[list[int]] = field(default_factory=list)
    made: dict[str, Made] = field(default_factory=dict)
    tokens: dict[tuple[Any, ...], int] = field(default_factory=dict)
    contents: dict[str, tuple[int, int]] = field(default_factory=dict)
    seen: dict[str, Any] = field(default_factory=dict)
    said: Any = ()

    def step(self, operation: Operation) -> dict[str, Any]:
        """Translate one operation; an illegal call is no step and changes nothing."""
        name, arguments = operation.request_id, operation.arguments
        call: dict[str, Any] = {"op": "none", "said": ()}
        is_read = False
        if operation.raises is None:
            if operation.name == "new_request" and name is not None:
                self._come(name, arguments, operation.result["block_hashes"])
            elif operation.name == "append_tokens" and name is not None:
                self._grow(name, arguments["token_ids"])
                self._hashed(name, operation.result["new_block_hashes"])
            else:
                call = self._call(operation)
                is_read = call["op"] == "none"
        if name is not None and name in self.made:
            request = self.made[name]
            call |= {"r": self.names[name], "text": request.text}
            call |= {"tokens": request.tokens, "prompt": request.prompt}
        self.said = call["said"]
        compared = "result" not in operation.uncompared and not is_read
        return {**call, "compared": compared, **self._observed(operation)}

    # The texts of requests.

    def _come(self, name: str, arguments: Mapping[str, Any], hashes: list[str]) -> None:
        self.names.setdefault(name, len(self.names) + 1)
        adapter = arguments.get("lora")
        tokens = arguments["prompt_token_ids"]
        self.texts.append([])
        self.made[name] = Made(
            len(self.texts),
            len(tokens),
            0,
            arguments.get("cache_salt"),
            None if adapter is None else adapter["name"],
            arguments.get("skip_reading_prefix_cache", False),
        )
        self._grow(name, tokens)
        self._hashed(name, hashes)

    def _grow(self, name: str, tokens: list[int]) -> None:
        request = self.made[name]
        size = self.config.hash_block_size_tokens or 1
        for token in tokens:
            salt = request.salt if request.tokens < size else None
            content = (token, request.adapter, salt)
            number = self.tokens.setdefault(content, len(self.tokens))
            self.texts[request.text - 1].append(number)
            request.tokens += 1

    def _hashed(self, name: str, hashes: list[str]) -> None:
        """Note the newest hashes, which are those of the last full blocks of the text."""
        request = self.made[name]
        size = self.config.hash_block_size_tokens or 1
        first = request.tokens // size - len(hashes)
        for number, each in enumerate(hashes, first + 1):
            self.contents.setdefault(each, (request.text, number * size))

    def _key(self, written: str | None) -> Key:
        if written is None:
            return ()
        text, tokens = self.contents.get(written[:-8], (0, 0))
        return (int(written[-8:], 16) + 1, text, tokens) if text else NOBODY

    def content(self, written: str | None) -> Key:
        """Return the content of a recorded key: the group, from 1 on, and the tokens."""
        key = self._key(written)
        if key in ((), NOBODY):
            return key
        group, text, tokens = key
        return (group, *self.texts[text - 1][:tokens])

    # The calls.

    def _call(self, operation: Operation) -> dict[str, Any]:
        """Return the model's call, or "none": then only the state is compared."""
        arguments, result = operation.arguments, operation.result
        said: Any
        match operation.name:
            case "get_computed_blocks":
                request = self.made[operation.request_id or ""]
                reads = self.config.enable_caching and not request.skips_reading
                said = (_lists(result["blocks"]), result["num_computed_tokens"])
                return {"op": "look up" if reads else "miss", "said": said}
            case "find_longest_cache_hit_per_group":
                said = _lists(result["blocks"])
                return {"op": "own hits", "said": said, "n": arguments["max_cache_hit_length"]}
            case "allocate_slots":
                said = () if result is None else _lists(result)
                return {"op": "allocate", "said": said, "q": self._asked(arguments)}
            case "free":
                return {"op": "free", "said": ()}
            case "pop_blocks_for_free":
                return {"op": "pop", "said": tuple(result)}
            case "free_blocks":
                return {"op": "return", "said": (), "blocks": tuple(arguments["block_ids"])}
            case "remove_skipped_blocks":
                return {"op": "skip", "said": (), "n": arguments["total_computed_tokens"]}
            case "cache_blocks" if self.config.enable_caching:
                return {"op": "cache", "said": (), "n": arguments["num_computed_tokens"]}
            case "evict_blocks":
                blocks = frozenset(arguments["block_ids"]) - {0}
                return {"op": "evict", "said": (), "blocks": blocks}
            case "reset_prefix_cache":
                return {"op": "reset", "said": result}
            case "get_block_ids":
                return {"op": "lists", "said": _lists(result["blocks"])}
            case "get_num_blocks_to_allocate":
                return {
                    "op": "need",
                    "said": result,
                    "n": arguments["num_tokens"],
                    "computed": arguments["total_computed_tokens"],
                    "capped": arguments.get("apply_admission_cap", False),
                }
        return {"op": "none", "said": ()}

    def _asked(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of an allocation; without caching it always delays caching."""
        config = self.config
        groups = len(config.kv_cache.groups)
        comes = arguments["status"] != "RUNNING" and arguments.get("has_scheduled_reqs", True)
        return {
            "computed": arguments["num_computed_tokens"],
            "hits": _lists(arguments.get("new_computed_blocks") or [[]] * groups),
            "hit": arguments.get("num_new_computed_tokens", 0),
            "external": arguments.get("num_external_computed_tokens", 0),
            "new": arguments["num_new_tokens"],
            "lookahead": arguments.get("num_lookahead_tokens", 0),
            "watermark": int(config.watermark * config.kv_cache.num_blocks) if comes else 0,
            "reserved": arguments.get("reserved_blocks", 0),
            "fit": arguments.get("full_sequence_must_fit", False),
            "delay": arguments.get("delay_cache_blocks", False) or not config.enable_caching,
        }

    # The states.

    def _observed(self, operation: Operation) -> dict[str, Any]:
        """Return the changes that the record shows."""
        observed = operation.observed
        before = dict(self.seen)
        self.seen |= observed.state
        new: dict[str, Any] = {}
        if "free_queue" in observed.state:
            new["queue"] = tuple(observed.state["free_queue"])
        if "ref_cnt" in observed.state:
            new["refs"] = tuple(observed.state["ref_cnt"][1:])
        if observed.dup_order is not None:
            copies = observed.dup_order.items()
            new["copies"] = tuple((self._key(key), tuple(blocks)) for key, blocks in copies)
        keys = []
        if "block_hash" in observed.state:
            pairs = zip(before["block_hash"], observed.state["block_hash"], strict=True)
            changed = [(b, now) for b, (was, now) in enumerate(pairs) if was != now and b]
            keys = [(b, self._key(now)) for b, now in changed]
        return {
            "free": observed.num_free_blocks,
            "new": new,
            "keys": tuple(keys),
            "lists": self._changed_lists(before) if observed.state else (),
        }

    def _changed_lists(self, before: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(
            (number, *self._held(name, self.seen))
            for name, number in self.names.items()
            if self._held(name, self.seen) != self._held(name, before)
        )

    def _held(self, name: str, state: Mapping[str, Any]) -> tuple[Any, Any]:
        groups = len(self.config.kv_cache.groups)
        counts = state["num_cached_block"].get(name, [None] * groups)
        lists = _lists(state["req_blocks"].get(name, [[]] * groups))
        return lists, tuple(-1 if count is None else count for count in counts)


def _lists(blocks: Iterable[Iterable[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, blocks))


def shows_state(header: Header) -> bool:
    """Check whether operations are compared by state, not by results alone."""
    return not header.is_stateless and header.is_small


def translated(
    header: Header, operations: Iterable[Operation]
) -> tuple[Translation, dict[str, Any]]:
    """Return the constants of Trace for a record that lacks nothing."""
    config = header.config
    translation = Translation(config)
    if header.initial is not None:
        translation.seen |= header.initial.state
    steps = tuple(translation.step(each) for each in operations)
    constants = {
        **constants_of(config, len(translation.names)),
        "StepTokens": config.max_num_batched_tokens or config.max_model_len_tokens,
        "Texts": tuple(map(tuple, translation.texts)),
        "Steps": steps,
        "ShowsState": shows_state(header),
    }
    return translation, constants
