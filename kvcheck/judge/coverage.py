"""Which rules a run can say something about: what was asked, and what its level decides."""

from __future__ import annotations

from collections.abc import Iterable

from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.verdicts import Level
from kvspec.interface import Capabilities, Feature
from kvspec.invariants import INVARIANTS
from kvspec.transitions import TRANSITION_INVARIANTS

FROM_OUTSIDE = frozenset(
    f"KV-{rule}"
    for rule in (
        *("CFG-2", "ERR-1", "ERR-2", "GRP-2", "GRP-7"),
        *("HASH-1", "MGR-1", "POOL-1", "POOL-15"),
    )
)
"""Rules that level safety checks in every program, without a snapshot too."""

WHERE_IT_COMES_UP = frozenset(
    {"KV-POOL-11", "KV-EVT-7"} | {call.rule for call in ILLEGAL_OPERATIONS}
)
"""Rules that level safety checks in the programs that come to them."""


def always_checked(can: Capabilities) -> frozenset[str]:
    """Rules that level safety looks at in every program, whatever it is about."""
    if Feature.SNAPSHOT not in can.features:
        return FROM_OUTSIDE
    of_transitions = {invariant.rule for invariant in TRANSITION_INVARIANTS}
    return FROM_OUTSIDE | of_transitions | {invariant.rule for invariant in INVARIANTS}


def decided(rules: Iterable[str]) -> frozenset[str]:
    """Those of a program's rules that it decides without a comparison, where it comes to them."""
    return frozenset(rules) & WHERE_IT_COMES_UP


def exercised(about: Iterable[str], level: Level, can: Capabilities) -> frozenset[str]:
    """Rules that were looked at, where programs about the rules `about` were run."""
    always = always_checked(can)
    if level is Level.SAFETY:
        return always | decided(about)
    return always | frozenset(about)
