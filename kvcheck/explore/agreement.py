"""Two implementations side by side: the same answers, the same queues, the same state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from kvcheck.explore.sides import Seen, is_typed
from kvcheck.explore.state import BATCHED_STEP
from kvcheck.play.checks import RULE_OF_OPERATION
from kvcheck.play.player import Outcome
from kvcheck.play.words import WrongAnswer
from kvspec.snapshot import Snapshot

RULE_OF_MEMBER: Mapping[str, str] = MappingProxyType(
    {
        "free_queue": "KV-POOL-6",
        "ref_counts": "KV-POOL-16",
        "block_keys": "KV-POOL-13",
        "lookup_order": "KV-POOL-13",
        "requests": "KV-GRP-1",
        "popped_blocks": "KV-MGR-13",
        "step_keys": "KV-MAMBA-2",
    }
)
"""What it breaks if this member of the snapshot is different; else the rule of the operation."""

RULES_OF_QUEUES = ("KV-EVT-1", "KV-MGR-16")
"""Of events, and of blocks to be zeroed."""


def require_agreement(
    name: str,
    expected: Outcome,
    got: Outcome,
    expected_seen: Seen | None = None,
    seen: Seen | None = None,
) -> None:
    """Raise InvariantViolation where the two part after the operation `name`."""
    rule = "KV-BATCH-1" if name == BATCHED_STEP else RULE_OF_OPERATION.get(name, "KV-ERR-2")
    if is_typed(expected.error) != is_typed(got.error):
        _differ(rule, f"{name} ends", _ending(expected), _ending(got))
    if expected.result != got.result:
        _differ(rule, f"{name} answers", *_different(expected.result, got.result))
    if expected_seen is None or seen is None:
        return
    ours, theirs = expected_seen.snapshot, seen.snapshot
    if ours != theirs:
        member = _first_difference(ours, theirs)
        rule = RULE_OF_MEMBER.get(member, rule)
        _differ(rule, f"{member} after {name}", getattr(ours, member), getattr(theirs, member))
    for queue_rule, one, other in zip(
        RULES_OF_QUEUES, expected_seen.queued, seen.queued, strict=True
    ):
        if one != other:
            _differ(queue_rule, f"queued by {name}", one, other)


def _first_difference(expected: Snapshot, got: Snapshot) -> str:
    names = [member.name for member in fields(Snapshot)]
    return next(n for n in names if getattr(expected, n) != getattr(got, n))


def _different(expected: Any, got: Any) -> tuple[Any, Any]:
    """The members that differ of two answers with the same ones."""
    if not isinstance(expected, Mapping) or not isinstance(got, Mapping):
        return expected, got
    if expected.keys() != got.keys():
        return expected, got
    names = [name for name in expected if expected[name] != got[name]]
    return {name: expected[name] for name in names}, {name: got[name] for name in names}


def _ending(outcome: Outcome) -> str:
    return "done" if outcome.error is None else f"with {outcome.error!r}"


def _differ(rule: str, what: str, expected: object, got: object) -> None:
    raise WrongAnswer("answers_as_the_reference", rule, what, expected, got)
