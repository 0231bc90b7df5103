"""Convert traces of vLLM 0.33.0 to records of version 3.

Facts that the contract cannot express are named in `needs`, which excludes a trace; calls that it
lacks are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvspec.record import LATER_VERSION, START_VERSION
from kvspec.specs import SPEC_TYPES

JUNCTION_STATES = "states of chunks that end at a junction"
"""Additions of 0.33's options to hits inside a block that the contract lacks."""

NOT_ASKED = frozenset(
    {
        "estimate_cached_tokens",
        "finalize_partial_tail_offloads",
        "get_block_ids_for_computed_tokens",
        "get_computed_blocks_for_connector",
        "take_boundary_state_offloads",
        "truncate_computed_blocks",
    }
)
"""Calls of vLLM 0.33 that the contract lacks; leaving them out changes no other result."""

_COPIES = "take_kv_cache_block_copies"
"""`take_block_copies`; asked only where there may be any."""

NEEDED_BY_ARGUMENT: Mapping[str, str] = {
    "skip_zeroing_group_ids": "groups that are not zeroed",
}
"""The feature that an argument other than 0 needs."""

_USUAL: Mapping[str, Any] = {
    "block_stride_alignment": None,
    "is_draft": False,
    "is_index_group_leader": False,
    "max_tp_shards": None,
    "non_causal_multi_token_decode": False,
    "num_head_slots": None,
    "state_content_bytes": None,
    "topk_buffer_width": None,
    "tp_replicated": False,
}
"""Members of specs without effect at this value, which need a feature otherwise."""

_IGNORED = frozenset({"cache_role", "dcp_sharded", "num_heads"})
"""Members that the manager does not read beside its own; equality of specs does not need them."""

_FULL = frozenset({"CircularBufferSpec", "FullAttentionSpec", "MLAAttentionSpec", "RSWASpec"})
_WITHOUT_VALUE_SIZE = frozenset(
    {
        "ChunkedLocalAttentionSpec",
        "CircularBufferSpec",
        "CrossAttentionSpec",
        "EncoderOnlyAttentionSpec",
    }
)
_KNOWN = frozenset(cls.__name__ for cls in SPEC_TYPES)


@dataclass
class LaterTrace:
    """A trace, with the state that its lines share, read in order.

    `skips`: requests that do not read the cache, whose look-ups return no common prefix. `told`:
    tokens of requests whose hits are reported; `reports`: group, blocks and tokens of each report
    since events were taken, which the trace does not distinguish from stores.
    """

    is_hybrid: bool
    has_copies: bool
    needs: tuple[str, ...]
    skips: set[str] = field(default_factory=set)
    told: dict[str, list[int]] = field(default_factory=dict)
    reports: list[tuple[int, int, list[int]]] = field(default_factory=list)

    def line(self, value: Any) -> tuple[Any, tuple[str, ...]]:
        """Convert the line of an operation, None if it is skipped; also returns its `needs`.

        Lines that are no operation are left unchanged: the decoder reports the error.
        """
        arguments = value.get("args") if isinstance(value, dict) else None
        if not isinstance(arguments, dict):
            return value, ()
        name, needs = value.get("op"), list[str]()
        if name in NOT_ASKED or (name == _COPIES and not self.has_copies):
            return None, ()
        if name == "new_request":
            arguments = self._content(value.get("req"), arguments)
        elif name == "append_tokens" and value.get("req") in self.told:
            self.told[value["req"]] += _tokens(arguments, "token_ids")
        elif name == "remove_skipped_blocks":
            arguments = {"total_computed_tokens": arguments.get("processed_computed_tokens")}
        elif name == "get_num_blocks_to_allocate":
            arguments = _without(arguments, "prefill_end")  # read for internal checkpoints alone
        elif name == "cache_blocks":
            arguments = _without(arguments, "request_computed_tokens")
        if name == "allocate_slots" or name == "cache_blocks":
            junction = arguments.get("shared_prefix_boundary")
            arguments = _without(arguments, "shared_prefix_boundary")
            arguments |= {"junction_tokens": junction} if junction else {}
            needs += [need for each, need in NEEDED_BY_ARGUMENT.items() if arguments.get(each)]
            arguments = _without(arguments, *NEEDED_BY_ARGUMENT)
        changed = {**value, "args": arguments}
        if name == _COPIES and isinstance(value.get("result"), dict):
            found = value["result"]
            pairs = {"pairs": found.get("copies"), "retained": found.get("retained_blocks")}
            changed |= {"op": "take_block_copies", "result": pairs}
        if name == "get_computed_blocks" and isinstance(value.get("result"), dict):
            changed["result"] = self._hit(value.get("req"), value["result"])
        if name == "take_events" and isinstance(value.get("result"), list):
            changed["result"] = self._marked([_event(event) for event in value["result"]])
        return changed, tuple(needs)

    def _content(self, name: Any, given: dict[str, Any]) -> dict[str, Any]:
        found = _without(given, "kv_cache_report_mode", "session_id")
        if given.get("kv_cache_report_mode") == "full":
            self.told[name] = _tokens(given, "prompt_token_ids")
            found["reports_hits"] = True
        if given.get("skip_reading_prefix_cache"):
            self.skips.add(name)
        return found

    def _marked(self, events: list[Any]) -> list[Any]:
        """Mark the last events that say what was hit as reports (KV-EVT-11)."""
        end = len(events)
        while self.reports:
            group, num_blocks, tokens = self.reports.pop()
            while end > 0:
                end -= 1
                if _says(events[end], group, num_blocks, tokens):
                    events[end] = {**events[end], "is_report": True}
                    break
        return events

    def _hit(self, name: Any, result: dict[str, Any]) -> dict[str, Any]:
        """Compute the junction: the hit plus the uncached common prefix (KV-COORD-12)."""
        if name in self.told and isinstance(result.get("blocks"), list):
            for group, blocks in enumerate(result["blocks"]):
                if blocks:
                    self.reports.append((group, len(blocks), list(self.told[name])))
        found = _without(result, "shared_prefix_boundary")
        junction = result.get("shared_prefix_boundary", 0)
        uncached = junction - result.get("num_computed_tokens", 0) if junction else 0
        has_any = self.is_hybrid and name not in self.skips
        return {**found, "num_uncached_common_prefix_tokens": uncached if has_any else None}


def later_trace(header: Any) -> tuple[Any, LaterTrace | None]:
    """Convert the header and return the trace; another record's header is unchanged, with None."""
    config = header.get("config") if isinstance(header, dict) else None
    if (
        not isinstance(config, dict)
        or header.get("version") != START_VERSION
        or "max_in_flight_tokens" not in config
        or not isinstance(config.get("groups"), list)
    ):
        return header, None
    needs, has_copies = list(_needs(config)), _has_copies(config)
    groups = []
    for group in config["groups"]:
        groups.append({**group, "spec": _spec(group.get("spec"), needs)})
    changed = {**config, "groups": groups, "max_num_batched_tokens": config["max_in_flight_tokens"]}
    dropped = (
        *("max_in_flight_tokens", "num_prefill_lookahead"),
        "enable_mamba_shared_prefix_checkpoint",
    )
    is_hybrid = bool(config.get("enable_caching")) and len(groups) > 1
    trace = LaterTrace(is_hybrid, has_copies, tuple(dict.fromkeys(needs)))
    return {**header, "version": LATER_VERSION, "config": _without(changed, *dropped)}, trace


def _needs(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield the features that a configuration needs and the contract lacks."""
    if config.get("num_prefill_lookahead", 0) > 1:
        yield "prefill look-ahead"
    if config.get("enable_mamba_shared_prefix_checkpoint"):
        yield JUNCTION_STATES


def _has_copies(config: Mapping[str, Any]) -> bool:
    """Return whether hits end inside a block (KV-INSIDE-1)."""
    specs = [group["spec"] for group in config["groups"] if isinstance(group.get("spec"), dict)]
    h = config.get("hash_block_size", 0)
    fine = [s for s in specs if s.get("mamba_cache_mode") == "align" and s["block_size"] > h]
    others = [s for s in specs if s.get("type") not in _FULL and s.get("type") != "MambaSpec"]
    is_cached = bool(config.get("enable_caching")) and len(specs) > 1
    return is_cached and bool(fine) and all(s["block_size"] == h for s in others)


def _spec(spec: Any, needs: list[str]) -> Any:
    """Convert a spec to the contract's members."""
    if not isinstance(spec, dict):
        return spec
    kind = str(spec.get("type"))
    found = _without(spec, *_USUAL, *_IGNORED, "bounded_replay", "tokens_per_state")
    if spec.get("bounded_replay"):
        found["type"] = "ReplayedWindowSpec"
    needs += [name for name, usual in _USUAL.items() if spec.get(name, usual) != usual]
    if "MLA" in kind:
        found |= {"compress_ratio": spec.get("tokens_per_state", 1), "head_size_v": None}
    elif kind in _KNOWN and spec.get("tokens_per_state", 1) not in (1, -1):
        needs.append("tokens_per_state")
    if kind in _WITHOUT_VALUE_SIZE:
        found = _without(found, "head_size_v")
    return found


def _says(event: Any, group: int, num_blocks: int, tokens: list[int]) -> bool:
    """Return whether an event stores these first tokens in `num_blocks` blocks."""
    if not isinstance(event, dict) or event.get("type") != "BlockStored":
        return False
    found, hashes = _tokens(event, "token_ids"), _tokens(event, "block_hashes")
    is_first = event.get("parent_block_hash") is None and found == tokens[: len(found)]
    return is_first and event.get("group_idx") == group and len(hashes) == num_blocks


def _tokens(members: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list; empty if the decoder will refuse the member."""
    found = members.get(name)
    return list(found) if isinstance(found, list) else []


def _event(event: Any) -> Any:
    if not isinstance(event, dict):
        return event
    unsaid = () if event.get("lookahead_token_ids") else ("lookahead_token_ids",)
    return _without(event, "session_id", *unsaid)


def _without(members: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in members.items() if name not in names}
