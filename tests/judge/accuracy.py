"""docs/BLAME.md: how often the judge blames the right rule, of mistakes whose rules are known.

python -m tests.judge.accuracy          # seconds, from kvcheck/data/outcomes.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvcheck.judge.blame import Evidence, suspects
from kvcheck.judge.outcomes import Outcomes, known, neighbours
from tests.judge.outcomes import CHECKS, registry
from tests.source import ROOT

PAGE = ROOT / "docs/BLAME.md"
HEAD = (ROOT / "tests/judge/blame.txt").read_text("utf-8").splitlines()
WAYS = ("checks alone", "known mistakes without it", "all known mistakes")


@dataclass(frozen=True)
class Row:
    """A mistake, and the rules blamed in each of the ways; none where no check fails."""

    mistake: str
    rules: tuple[str, ...]
    blamed: tuple[tuple[str, ...], ...]

    def is_right(self, way: int, places: int) -> bool:
        """Check that one of its rules is among the first so many."""
        return bool({*self.blamed[way][:places]} & {*self.rules})


def row(mistake: str, rules: tuple[str, ...], evidence: Sequence[Evidence]) -> Row:
    near = neighbours(evidence)
    others = [each for each in near if each.mistake != mistake]
    orders = (suspects(evidence, some) for some in ((), others, near))
    return Row(mistake, rules, tuple(tuple(each.rule for each in order) for order in orders))


def rows(outcomes: Outcomes) -> list[Row]:
    return [
        row(name, outcomes.rules[name], evidence_of(name, outcomes)) for name in outcomes.failed
    ]


def evidence_of(mistake: str, outcomes: Outcomes) -> list[Evidence]:
    failed = outcomes.failed[mistake]
    checks = (check for check in outcomes.checks if check in CHECKS)
    return [Evidence(check, CHECKS[check].rules, failed.get(check)) for check in checks]


def share(some: Sequence[Row], way: int, places: int) -> float:
    return sum(each.is_right(way, places) for each in some) / len(some)


def text(measured: Sequence[Row], total: int) -> str:
    unseen = [each for each in measured if not each.blamed[-1]]
    lines = [*HEAD, "", f"Measured: {len(measured)} of {total} mistakes.", ""]
    lines += ["| ranking | a right rule first | in the first three |"]
    lines += ["|---|---|---|"]
    for way, told in enumerate(WAYS):
        shares = [f"{100 * share(measured, way, places):.0f} %" for places in (1, 3)]
        lines.append(f"| {told} | {' | '.join(shares)} |")
    lines += ["", "## Blamed instead", "", f"Of {WAYS[1]}.", ""]
    lines += ["| breaks | blamed first |", "|---|---|", *confused(measured, 1)]
    lines += ["", "## Seen by no directed check", ""]
    lines += [f"- `{each.mistake}` ({', '.join(each.rules)})" for each in unseen]
    return "\n".join(lines) + "\n"


def confused(measured: Sequence[Row], way: int) -> Iterator[str]:
    """Yield a line for each rule that is not blamed first where it is broken."""
    wrong = [each for each in measured if each.blamed[way] and not each.is_right(way, 1)]
    for broken in sorted({each.rules[0] for each in wrong}):
        first = Counter(each.blamed[way][0] for each in wrong if each.rules[0] == broken)
        named = (f"{rule} ×{count}" if count > 1 else rule for rule, count in sorted(first.items()))
        yield f"| {broken} | {', '.join(named)} |"


if __name__ == "__main__":
    PAGE.write_text(text(rows(known()), len(registry())), "utf-8")
