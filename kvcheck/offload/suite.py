"""Judge a subject's first tier: many lives, and for each broken rule the shortest that shows it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kvcheck.offload.life import Life, Player, drawn
from kvcheck.offload.shadow import BrokenTierRuleError
from kvcheck.play.shrink import smallest, without_runs
from kvspec.offload import OffloadImplementation

RULES = tuple(f"KV-TIER-{number}" for number in range(9, 25))
"""Rules that lives judge."""


@dataclass(frozen=True)
class TierFinding:
    """A broken rule: what happened, in the life that shows it, with its calls and results.

    `other`: the rule that is broken instead, if the manager only counts wrong.
    """

    rule: str
    other: str
    problem: str
    life: Life
    lines: tuple[str, ...]


@dataclass
class TierReport:
    """Lives played, how often each rule was put to the test, and what was found."""

    num_lives: int = 0
    seconds: float = 0.0
    tried: Counter[str] = field(default_factory=Counter)
    findings: dict[str, TierFinding] = field(default_factory=dict)


def judged(
    subject: OffloadImplementation,
    *,
    num_lives: int = 400,
    seed: int = 0,
    fail_fast: bool = False,
) -> TierReport:
    """Play lives, or up to the first finding; equal arguments give equal reports, but for the time.

    Every other life has no lower tiers.
    """
    begun = time.perf_counter()
    report = TierReport()
    has_lower = subject.offload_capabilities.has_lower_tiers
    for number in range(num_lives):
        life = drawn(seed + number, with_lower=has_lower and number % 2 == 1)
        player = Player(subject, life)
        broken = broken_by(player)
        report.num_lives += 1
        report.tried += player.shadow.tried
        if broken is not None and broken.rule not in report.findings:
            report.findings[broken.rule] = shortest(subject, life, broken.rule)
            if fail_fast:
                break
    report.seconds = time.perf_counter() - begun
    return report


def shortest(subject: OffloadImplementation, life: Life, rule: str) -> TierFinding:
    """Return the shortest life found that breaks the rule."""

    def tried(candidate: Life) -> Life | None:
        broken = broken_by(Player(subject, candidate))
        return candidate if broken is not None and broken.rule == rule else None

    life = smallest(life, _smaller, tried, seconds=20.0, attempts=3000)
    player = Player(subject, life)
    broken = broken_by(player)
    problem, other = ("", "") if broken is None else (broken.problem, broken.other)
    return TierFinding(rule, other, problem, life, tuple(player.lines))


def _smaller(life: Life) -> Iterator[Life]:
    for moves in without_runs(life.moves):
        yield replace(life, moves=moves)
    for number, move in enumerate(life.moves):
        if len(move.keys) > 1:
            for keys in (move.keys[:-1], move.keys[1:]):
                changed = replace(move, keys=keys)
                yield replace(
                    life, moves=(*life.moves[:number], changed, *life.moves[number + 1 :])
                )
    if life.num_chunks > 1:
        yield replace(life, num_chunks=life.num_chunks - 1)
    if life.num_lower > 1:
        yield replace(life, num_lower=life.num_lower - 1)


def broken_by(player: Player) -> BrokenTierRuleError | None:
    """Play a life to its end, and return what it broke first; None if nothing."""
    try:
        player.play()
    except BrokenTierRuleError as error:
        return error
    except Exception as error:  # whatever a stranger's manager raises
        player.note(f"{type(error).__name__}: {error}")
        return BrokenTierRuleError("KV-TIER-24", f"a legal call raised {type(error).__name__}")
    return None
