"""Compare results, states and events of two sides, and name the rule that a difference breaks.

`name` is that of the check: whether a reference or a record says what is right.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvcheck.play.difference import WrongAnswer
from kvcheck.play.player import Outcome
from kvcheck.play.state import View
from kvspec.blocks import NULL_BLOCK
from kvspec.errors import KVSpecError
from kvspec.snapshot import Snapshot

AS_THE_REFERENCE = "answers_as_the_reference"
AS_RECORDED = "answers_as_recorded"

RULE_OF_OPERATION: Mapping[str, str] = {
    "new_request": "KV-HASH-1",
    "append_tokens": "KV-HASH-4",
    "get_computed_blocks": "KV-MGR-1",
    "find_longest_cache_hit_per_group": "KV-COORD-9",
    "allocate_slots": "KV-MGR-7",
    "free": "KV-MGR-12",
    "pop_blocks_for_free": "KV-MGR-13",
    "free_blocks": "KV-MGR-13",
    "remove_skipped_blocks": "KV-MGR-14",
    "cache_blocks": "KV-MGR-11",
    "evict_blocks": "KV-POOL-10",
    "reset_prefix_cache": "KV-POOL-11",
    "get_num_common_prefix_blocks": "KV-MGR-15",
    "get_block_ids": "KV-GRP-1",
    "get_num_blocks_to_allocate": "KV-MGR-18",
    "take_new_block_ids": "KV-MGR-16",
    "new_step_starts": "KV-MGR-19",
    "make_prefix_cache_stats": "KV-STAT-1",
    "record_prefix_cache_stats": "KV-POL-18",
    "cache_partial_block": "KV-PART-1",
    "take_residency_samples": "KV-STAT-7",
    "recent_hits": "KV-STAT-4",
    "take_block_copies": "KV-INSIDE-4",
    "batched_step": "KV-BATCH-1",
    "register": "KV-BATCH-4",
    "unregister": "KV-BATCH-4",
    "rewind": "KV-BATCH-12",
    "batched_append": "KV-BATCH-12",
    "batched_follow": "KV-BATCH-14",
    "look_ups": "KV-BATCH-12",
    "take_deltas": "KV-BATCH-11",
    "look_at_batch": "KV-BATCH-13",
    "walk": "KV-BATCH-15",
    "follow": "KV-REQ-7",
    "hold_blocks": "KV-POOL-19",
    "withdraw": "KV-MGR-23",
}

RULE_OF_STATE: Mapping[str, str] = {
    "free_queue": "KV-POOL-6",
    "ref_cnt": "KV-POOL-16",
    "block_hash": "KV-POOL-13",
    "req_blocks": "KV-GRP-1",
    "num_cached_block": "KV-GRP-11",
}


RULE_OF_MEMBER: Mapping[str, str] = {
    "requests": "KV-MAMBA-9",
    "block_keys": "KV-PART-2",
    "covered_tokens": "KV-PART-3",
    "popped_blocks": "KV-MGR-13",
    "new_block_ids": "KV-GRP-10",
    "step_keys": "KV-MAMBA-2",
    "reserved_blocks": "KV-FULL-8",
    "pending_copies": "KV-INSIDE-4",
    "ranks": "KV-ORD-1",
}
"""Members of a snapshot that records do not show; they may differ while the state does not.

Not `written_from`: implementations may track a step's writes otherwise, and results show them.
"""

RULE_OF_EVENT: Mapping[str, str] = {
    "BlockStored": "KV-EVT-2",
    "BlockRemoved": "KV-EVT-4",
    "AllBlocksCleared": "KV-EVT-5",
}


RULE_OF_PART: Mapping[str, str] = {
    "slots": "KV-BATCH-9",
    "rows": "KV-BATCH-10",
    "members": "KV-BATCH-5",
}
"""Parts of what a whole step of a program returns or writes."""


def rule_of(operation: str) -> str:
    return RULE_OF_OPERATION.get(operation, "KV-ERR-2")


def require_same(
    rule: str, what: str, expected: object, got: object, name: str = AS_THE_REFERENCE
) -> None:
    if expected != got:
        raise WrongAnswer(name, rule, what, expected, got)


def require_same_outcome(
    operation: str, expected: Outcome, got: Outcome, *, exact_ids: bool = True
) -> None:
    """Require the same result, or an error on both; block ids count with `exact_ids` only."""
    rule = rule_of(operation)
    if (expected.error is None) != (got.error is None):
        what = f"{operation} ends"
        wrong = WrongAnswer(AS_THE_REFERENCE, rule, what, *map(_ending, (expected, got)))
        wrong.place = f"{what} with {type(got.error or expected.error).__name__}"
        raise wrong
    ours, theirs = got.result, expected.result
    has_parts = operation == "batched_step" and ours and theirs and "members" in ours
    for part in RULE_OF_PART if has_parts else ():
        require_same(RULE_OF_PART[part], f"{part} of a step", theirs.get(part), ours.get(part))
    if not exact_ids:
        ours, theirs = without_ids(operation, ours), without_ids(operation, theirs)
    require_same(rule, f"{operation} answers", theirs, ours)


def require_same_copies(
    expected: Mapping[str, Any] | None, got: Mapping[str, Any] | None, *, exact_ids: bool = True
) -> None:
    """Require the same copies before the step if both took them; without ids the same number."""
    if expected is None or got is None:
        return
    name = "take_block_copies"
    if not exact_ids:
        expected, got = without_ids(name, expected), without_ids(name, got)
    require_same(rule_of(name), f"{name} answers", expected, got)


def require_same_state(
    expected: Mapping[str, Any],
    got: Mapping[str, Any],
    copies: tuple[Mapping[str, list[int]], Mapping[str, list[int]]],
    when: str,
    name: str = AS_THE_REFERENCE,
) -> None:
    """Require the same state fields of records and the same order of copies per key."""
    for member, rule in RULE_OF_STATE.items():
        require_same(rule, f"{member} {when}", expected[member], got[member], name)
    theirs, ours = map(dict, copies)
    require_same("KV-POOL-13", f"order of duplicates {when}", theirs, ours, name)


def require_same_members(expected: Snapshot, got: Snapshot, when: str) -> None:
    """Require the same members of a snapshot besides the state of records."""
    for member, rule in RULE_OF_MEMBER.items():
        require_same(rule, f"{member} {when}", getattr(expected, member), getattr(got, member))


def require_same_view(expected: View, got: View, when: str) -> None:
    if expected.snapshot != got.snapshot:  # then where do they differ?
        copies = (expected.dup_order, got.dup_order)
        require_same_state(expected.state, got.state, copies, when)
        require_same_members(expected.snapshot, got.snapshot, when)


def require_same_events(
    expected: Sequence[Any], got: Sequence[Any], name: str = AS_THE_REFERENCE
) -> None:
    """Require the same events one by one, as objects or as in records."""
    for number, (theirs, ours) in enumerate(zip(expected, got, strict=False)):
        require_same(_rule_of_event(theirs, ours), f"event {number}", theirs, ours, name)
    require_same("KV-EVT-1", "number of events", len(expected), len(got), name)


def _rule_of_event(expected: Any, got: Any) -> str:
    """Return the rule that a wrong event breaks; a report shows hits in the order they occur."""
    kind, is_report = _kind_of(expected)
    if is_report or _kind_of(got)[1]:
        return "KV-EVT-11" if is_report and _kind_of(got)[1] else "KV-EVT-12"
    return RULE_OF_EVENT[kind]


def _kind_of(event: Any) -> tuple[str, bool]:
    """Return an event's type and whether it is a report; events are objects or as in records."""
    if isinstance(event, Mapping):
        return event["type"], event.get("is_report", False)
    return type(event).__name__, getattr(event, "is_report", False)


def _ending(outcome: Outcome) -> str:
    error = outcome.error
    if error is None:
        return "with an answer"
    kind = "a typed error" if isinstance(error, KVSpecError) else type(error).__name__
    return f"with {kind}: {error}"


def without_ids(name: str, result: Any) -> Any:
    """Reduce a result to what holds if block ids are a policy: which are null, and how many."""
    if name == "get_computed_blocks":
        return {**result, "blocks": _null_pattern(result["blocks"])}
    if name == "find_longest_cache_hit_per_group":
        return {**result, "blocks": _null_pattern(result["blocks"])}
    if name == "allocate_slots":
        return None if result is None else _null_pattern(result)
    if name == "get_block_ids":
        unhashed = [len(ids) for ids in result["unhashed"]]
        return {"blocks": _null_pattern(result["blocks"]), "unhashed": unhashed}
    if name in ("pop_blocks_for_free", "take_new_block_ids"):
        return len(result)
    if name == "take_block_copies":
        return len(result["pairs"]), len(result["retained"])
    if name == "take_residency_samples":  # which blocks are reused is a policy
        return None
    return result


def _null_pattern(lists: Sequence[Sequence[int]]) -> list[list[bool]]:
    """Return where the lists have null."""
    return [[block == NULL_BLOCK for block in blocks] for blocks in lists]
