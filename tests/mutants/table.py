"""The published table: what was killed, at which level, by what, and what was not."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.mutants.make import Mutant
from tests.mutants.search import Effort, Result

HEAD = """\
# Mutants

Implementations with one mistake each, most of them neighbours of bugs that engines had, and what
`kvspec check` says of them. It finds what is wrong with **{dead}** of those that
differ from the reference at all. The directed checks were written by people who knew these
mistakes: of others the share says little, the last row of the table more.

Made by `python -m tests.mutants`. One mutant by hand:
`kvspec check tests.mutants:HandsOutBackwards`. They are written in
[tests/mutants](../tests/mutants) and in the tests that it takes them from.

"""

HOW = """\
A mutant was shown to the directed checks that are about the rules it breaks, then to the others
until one killed it, then, if none did, to {last:,} random programs, or random plans if it is the
planner that is wrong. Directed checks are written by people who know the mistakes, random ones are
not: the last row is for about one mutant in {every}, tried with {beside:,} random programs or plans
alone (they ask no hit-rate window, nothing of residency and no whole steps). `--budget ci` runs
some thousands.
"""

ROWS = """\
Operations and seconds (of one slow core) are those of the first kill, by a directed check (an
example counts no operations) or by a random program. The last column: the number of the first
random program or plan that kills, – where none was tried.
"""


def text(
    mutants: Sequence[Mutant],
    results: Mapping[str, Result],
    equivalent: Mapping[str, str],
    witnesses: Mapping[str, str | None],
    effort: Effort,
) -> str:
    """The whole page. `witnesses`: for each directed check a mutant that it kills, or None."""
    lines = [
        *summary(mutants, results, equivalent, effort),
        *survivors(mutants, results, equivalent),
        *by_rule(mutants, results, equivalent),
        *by_check(results, witnesses),
        *by_mutant(mutants, results),
    ]
    return "\n".join(lines) + "\n"


def share(part: int, whole: int) -> str:
    """`3 of 4 (75.0 %)`."""
    return f"{part} of {whole}" + (f" ({100 * part / whole:.1f} %)" if whole else "")


def summary(
    mutants: Sequence[Mutant],
    results: Mapping[str, Result],
    equivalent: Mapping[str, str],
    effort: Effort,
) -> Iterator[str]:
    """The numbers."""
    real = [results[mutant.name] for mutant in mutants if mutant.name not in equivalent]
    dead = [result for result in real if result.kill is not None]
    tried = [result for result in real if result.directed and result.tried is not None]
    levels = Counter(result.level for result in dead)
    yield from HEAD.format(dead=share(len(dead), len(real))).splitlines()
    yield "| | mutants |"
    yield "|---|---|"
    yield f"| all | {len(mutants)} |"
    yield f"| equivalent to the reference | {len(mutants) - len(real)} |"
    yield f"| killed | {len(dead)} |"
    yield f"| … by a directed check | {sum(bool(result.directed) for result in dead)} |"
    yield f"| … only by a random program or plan | {sum(not result.directed for result in dead)} |"
    yield f"| survivors | {len(real) - len(dead)} |"
    for level in ("safety", "behaviour", "identity"):
        yield f"| weakest level at which it was killed: {level} | {levels[level]} |"
    found = sum(result.random for result in tried)
    yield f"| killed by random programs or plans alone | {share(found, len(tried))} of a sample |"
    yield ""
    yield from HOW.format(last=effort.last, every=effort.every, beside=effort.beside).splitlines()
    yield ""


def survivors(
    mutants: Sequence[Mutant], results: Mapping[str, Result], equivalent: Mapping[str, str]
) -> Iterator[str]:
    """Who is alive, and who is not wrong."""
    alive = [
        mutant
        for mutant in mutants
        if results[mutant.name].kill is None and mutant.name not in equivalent
    ]
    yield "## Survivors"
    yield ""
    for mutant in alive:
        yield f"- `{mutant.name}` ({', '.join(mutant.rules)}): {mutant.about}"
    if not alive:
        yield "None."
    yield ""
    yield "## Equivalent"
    yield ""
    for name, why in sorted(equivalent.items()):
        yield f"- `{name}`: {why}"
    if not equivalent:
        yield "None."
    yield ""


def by_rule(
    mutants: Sequence[Mutant], results: Mapping[str, Result], equivalent: Mapping[str, str]
) -> Iterator[str]:
    """Killed and survived, per rule."""
    dead: Counter[str] = Counter()
    alive: Counter[str] = Counter()
    for mutant in mutants:
        if mutant.name not in equivalent:
            counter = alive if results[mutant.name].kill is None else dead
            counter.update(mutant.rules)
    yield "## By rule"
    yield ""
    yield "| rule | killed | survived |"
    yield "|---|---|---|"
    for rule in sorted({*dead, *alive}, key=rule_order):
        yield f"| {rule} | {dead[rule]} | {alive[rule]} |"
    yield ""


def rule_order(rule: str) -> tuple[str, int]:
    """By chapter, then by number."""
    chapter, _, number = rule.rpartition("-")
    return chapter, int(number)


def by_check(results: Mapping[str, Result], witnesses: Mapping[str, str | None]) -> Iterator[str]:
    """Every directed check and a mutant that it kills."""
    kills = Counter(name for result in results.values() for name in result.directed)
    idle = [name for name, witness in witnesses.items() if witness is None]
    yield "## By directed check"
    yield ""
    yield f"{share(len(witnesses) - len(idle), len(witnesses))} kill at least one mutant."
    yield "Counted are kills among the mutants of the rules that a check is about."
    yield ""
    yield "| check | kills | for example |"
    yield "|---|---|---|"
    for name, witness in witnesses.items():
        shown = f"`{witness}`" if witness else "–"
        yield f"| {cell(name)} | {max(kills[name], int(witness is not None))} | {shown} |"
    yield ""


def by_mutant(mutants: Sequence[Mutant], results: Mapping[str, Result]) -> Iterator[str]:
    """Every mutant. Operations are those up to the offence."""
    yield "## By mutant"
    yield ""
    yield from ROWS.splitlines()
    yield ""
    yield "| mutant | rules | what is wrong | level | killed by | operations | seconds | random |"
    yield "|---|---|---|---|---|---|---|---|"
    for mutant in mutants:
        result = results[mutant.name]
        kill = result.kill
        tried = "–" if result.tried is None else f"none of {result.tried}"
        row = (
            f"`{mutant.name}`",
            ", ".join(mutant.rules),
            cell(mutant.about),
            result.level or "–",
            cell(kill.by) if kill else "–",
            str(kill.operations or "–") if kill else "–",
            f"{kill.seconds:.2f}" if kill else "–",
            f"no. {result.tried}" if result.random else tried,
        )
        yield f"| {' | '.join(row)} |"


def cell(words: str) -> str:
    """Text that does not end the cell."""
    return words.replace("|", "\\|")


def listed(page: Path) -> dict[str, tuple[str, str]]:
    """The mutants of a published table: name -> level, what killed it."""
    whole = page.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", whole.partition("## By mutant")[2], re.MULTILINE)
    cells = {name: re.split(r"(?<!\\)\|", rest) for name, rest in rows}
    return {
        name: (columns[2].strip(), columns[3].strip().replace("\\|", "|"))
        for name, columns in cells.items()
    }
