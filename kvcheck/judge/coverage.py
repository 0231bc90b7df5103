"""Which rules a run can decide: by what it tried, and by its level."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.verdicts import Level
from kvspec.interface import Capabilities, Feature
from kvspec.invariants import INVARIANTS
from kvspec.specs import CrossAttentionSpec, MambaSpec, SinkFullAttentionSpec
from kvspec.transitions import TRANSITION_INVARIANTS

FROM_OUTSIDE = frozenset(
    f"KV-{rule}"
    for rule in (
        *("CFG-2", "ERR-1", "ERR-2", "GRP-2", "GRP-7"),
        *("HASH-1", "MGR-1", "POOL-1", "POOL-15"),
    )
)
"""Rules that level safety checks in every program, even without a snapshot."""

WHERE_IT_COMES_UP = frozenset(
    {"KV-POOL-11", "KV-EVT-7"}
    | {"KV-MAMBA-1", "KV-MAMBA-2", "KV-MAMBA-4", "KV-MAMBA-5", "KV-CROSS-1"}
    | {call.rule for call in ILLEGAL_OPERATIONS}
)
"""Rules that level safety checks in programs that reach them."""


NEEDED: Mapping[str, Callable[[Capabilities], bool]] = {
    "KV-FULL-8": lambda can: SinkFullAttentionSpec in can.spec_types,
    "KV-MAMBA-9": lambda can: MambaSpec in can.spec_types,
    "KV-PART-3": lambda can: Feature.PARTIAL_BLOCKS in can.features,
    "KV-POOL-11": lambda can: Feature.RESET in can.features,
    "KV-EVT-7": lambda can: Feature.EVENTS in can.features,
    "KV-CROSS-1": lambda can: CrossAttentionSpec in can.spec_types,
    **{f"KV-MAMBA-{number}": lambda can: MambaSpec in can.spec_types for number in (1, 2, 4, 5)},
}
"""Rules that hold trivially of a subject that lacks this."""


def always_checked(can: Capabilities) -> frozenset[str]:
    """Return the rules that level safety checks in every program, whatever it is about."""
    if Feature.SNAPSHOT not in can.features:
        return FROM_OUTSIDE
    found = {each.rule for each in INVARIANTS} | {each.rule for each in TRANSITION_INVARIANTS}
    return FROM_OUTSIDE | {rule for rule in found if rule not in NEEDED or NEEDED[rule](can)}


def decided(rules: Iterable[str]) -> frozenset[str]:
    """Return those of a program's rules that it decides without a comparison if it reaches them."""
    return frozenset(rules) & WHERE_IT_COMES_UP


def exercised(
    about: Iterable[str], level: Level, can: Capabilities, *, by_programs: bool = True
) -> frozenset[str]:
    """Return the rules that were checked, given that the checks of the rules `about` finished.

    `by_programs`: some program ran, with the checks of every program.
    """
    always = always_checked(can) if by_programs else frozenset()
    if level is Level.SAFETY:
        return frozenset(
            rule for rule in always | decided(about) if rule not in NEEDED or NEEDED[rule](can)
        )
    return always | frozenset(about)
