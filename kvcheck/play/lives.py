"""Play lives beside a shadow, and for each broken rule return the shortest life that shows it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Generic, TypeVar

from kvcheck.play.shrink import smallest, with_plainer, without_runs
from kvspec.errors import InvalidArgumentError

L = TypeVar("L")


class BrokenRuleError(Exception):
    """The subject broke `rule`, or else one of `others`; the message says by what."""

    def __init__(self, rule: str, problem: str, *others: str) -> None:
        super().__init__(problem)
        self.rule, self.problem = rule, problem
        self.others = tuple(each for each in dict.fromkeys(others) if each not in ("", rule))


class Shadow:
    """What a subject must hold, by its calls so far. `tried`: how often each rule was tested."""

    def __init__(self) -> None:
        self.tried: Counter[str] = Counter()

    def judge(self, named: str | tuple[str, ...], holds: bool, problem: str, *others: str) -> None:
        """Count a test of a rule, the first named; raise unless it holds."""
        rule, *more = (named,) if isinstance(named, str) else named
        self.tried[rule] += 1
        if not holds:
            raise BrokenRuleError(rule, problem, *more, *others)


class Player:
    """Plays one life on a new subject, beside its shadow. `lines`: the calls made, with results."""

    shadow: Any

    def __init__(self) -> None:
        self.lines: list[str] = []

    @property
    def tried(self) -> Counter[str]:
        tried: Counter[str] = self.shadow.tried
        return tried

    def play(self) -> None:
        """Make all moves. Raises BrokenRuleError."""
        raise NotImplementedError

    def note(self, call: str, result: object = None) -> None:
        self.lines.append(call if result is None else f"{call} -> {result}")

    def refused(self, rule: str, name: str, call: Callable[[], object]) -> None:
        """Make an illegal call."""
        try:
            call()
        except InvalidArgumentError as error:
            self.note(name, f'InvalidArgumentError field="{error.field}"')
            is_refused = True
        else:
            self.note(name, "a result")
            is_refused = False
        self.shadow.judge(rule, is_refused, f"{name} is illegal, and was accepted")


def simpler(life: L, plainer: Callable[[Any], Iterable[Any]]) -> Iterator[L]:
    """Yield the life without some of its moves, and with plainer ones."""
    made: Any = life
    for moves in chain(without_runs(made.moves), with_plainer(made.moves, plainer)):
        yield replace(made, moves=moves)


@dataclass(frozen=True)
class Game(Generic[L]):
    """A kind of lives. `rules`: those that they judge, `fallback` for a legal call that raises.

    `drawn` returns the life of a seed, `begun` a player of it on a new subject, `smaller` lives
    that are a little smaller, and `setting` what stands beside the moves. `seconds`: the longest
    search for a shorter life.
    """

    rules: tuple[str, ...]
    fallback: str
    drawn: Callable[[int], L]
    begun: Callable[[L], Player]
    smaller: Callable[[L], Iterable[L]]
    setting: Callable[[L], Mapping[str, object]]
    seconds: float = 20.0


@dataclass(frozen=True)
class Finding:
    """A broken rule: what happened, in the life that shows it, with its calls and results.

    `others`: rules that may be broken instead. `number`: of the life that showed it first, from 1.
    """

    rule: str
    others: tuple[str, ...]
    problem: str
    setting: Mapping[str, object]
    lines: tuple[str, ...]
    number: int = 0


@dataclass
class LivesReport:
    """Lives played, how often each rule was put to the test, and what was found.

    `num_unsteady`: lives that broke a rule, but did not when they were played again.
    """

    rules: tuple[str, ...] = ()
    num_lives: int = 0
    num_unsteady: int = 0
    seconds: float = 0.0
    tried: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)

    @property
    def named(self) -> tuple[str, ...]:
        """The rules of the shortest finding, those that it doubts behind it, then all others."""
        firsts = list(self.findings.values())[:1]
        named = [rule for each in firsts for rule in (each.rule, *each.others)]
        return tuple(dict.fromkeys((*named, *self.findings)))


def judged(
    game: Game[L], *, num_lives: int = 400, seed: int = 0, fail_fast: bool = False
) -> LivesReport:
    """Play lives, or up to the first finding; equal arguments give equal reports, but for the time.

    The findings with the fewest calls are first.
    """
    begun = time.perf_counter()
    report = LivesReport(game.rules)
    for number in range(seed, seed + num_lives):
        life = game.drawn(number)
        player = game.begun(life)
        broken = broken_by(game, player)
        report.num_lives += 1
        report.tried += player.tried
        if broken is not None and broken.rule not in report.findings:
            found = shortest(game, life, broken.rule)
            if found is None:
                report.num_unsteady += 1
                continue
            report.findings[broken.rule] = replace(found, number=report.num_lives)
            if fail_fast:
                break
    ordered = sorted(report.findings.values(), key=lambda each: len(each.lines))
    report.findings = {each.rule: each for each in ordered}
    report.seconds = time.perf_counter() - begun
    return report


def shortest(game: Game[L], life: L, rule: str) -> Finding | None:
    """Return the shortest life found that breaks the rule; None if it does not do so again."""
    seen: list[tuple[L, BrokenRuleError, list[str]]] = []

    def tried(candidate: L) -> L | None:
        player = game.begun(candidate)
        broken = broken_by(game, player)
        if broken is None or broken.rule != rule:
            return None
        seen.append((candidate, broken, player.lines))
        return candidate

    if tried(life) is None:
        return None
    smallest(life, game.smaller, tried, seconds=game.seconds, attempts=3000)
    life, broken, lines = seen[-1]
    return Finding(rule, broken.others, broken.problem, dict(game.setting(life)), tuple(lines))


def broken_by(game: Game[L], player: Player) -> BrokenRuleError | None:
    """Play a life to its end, and return what it broke first; None if nothing."""
    try:
        player.play()
    except BrokenRuleError as error:
        return error
    except Exception as error:  # whatever a stranger's subject raises
        player.lines.append(f"{type(error).__name__}: {error}")
        return BrokenRuleError(game.fallback, f"a legal call raised {type(error).__name__}")
    return None
