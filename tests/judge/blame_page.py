"""docs/BLAME.md: how often the right rule is blamed, and which is blamed instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.judge.accuracy import Row

HEAD, DRAWN = (
    (Path(__file__).parent / "blame.txt")
    .read_text(encoding="utf-8")
    .split("\n<!-- of mutants that were drawn -->\n\n")
)
"""What the page says before its tables, and before those of drawn mutants, written by hand."""


def text(
    rows: Sequence[Row],
    told: Mapping[str, Any],
    halves: tuple[Sequence[Row], Sequence[Row]],
    ways: Sequence[str],
    total: int,
) -> str:
    """The page. `total`: mistakes in the registry that are made as an implementation."""
    unseen = [each for each in rows if not each.blamed[-1]]
    lines = [
        *HEAD.splitlines(),
        "",
        f"Measured: {len(rows)} of {total} mistakes. Seen by no directed check: {len(unseen)}.",
        "",
        "| ranking | mistakes | a right rule first | in the first three"
        " | the first-named rule first | in the first three |",
        "|---|---|---|---|---|---|",
    ]
    parts = {"all": rows, "half that chose": halves[0], "other half": halves[1]}
    for number, way in enumerate(ways):
        for name, some in parts.items():
            shares = [
                share(some, number, places, first_only=only)
                for only in (False, True)
                for places in (1, 3)
            ]
            lines.append(f"| {way} | {name} | {' | '.join(shares)} |")
    lines += ["", "A rule is right if the mistake's author names it; the author's first is that"]
    lines += ["which is broken most directly."]
    lines += [
        *_drawn(told),
        *_played(told),
        *_examples(told),
        *_confused(rows, ways),
        *_unseen(unseen),
    ]
    return "\n".join(lines) + "\n"


def share(rows: Sequence[Row], way: int, places: int, *, first_only: bool = False) -> str:
    """How many of the rows have a right rule among the first so many."""
    number = sum(row.place(way, first_only=first_only) < places for row in rows)
    return f"{number} of {len(rows)} ({100 * number / max(len(rows), 1):.0f} %)"


def confusion(rows: Sequence[Row], way: int) -> Counter[tuple[str, str]]:
    """(Rule that is broken, rule that is blamed first), of those that are blamed wrongly."""
    wrong = (each for each in rows if each.blamed[way] and each.place(way) > 0)
    return Counter((each.rules[0], each.blamed[way][0]) for each in wrong)


def _played(told: Mapping[str, Any]) -> Iterator[str]:
    played = told.get("played", ())
    if not played:
        return
    yield from ("", "## At the default budget", "")
    first = sum(bool({*each["blamed"][:1]} & {*each["rules"]}) for each in played)
    three = sum(bool({*each["blamed"]} & {*each["rules"]}) for each in played)
    seconds = sum(each["cpu_s"] for each in played) / len(played)
    yield f"{len(played)} of them, drawn by chance, as `kvspec check mistake:…` runs, with vectors,"
    yield f"random programs and stories of known mistakes: a right rule first for {first}, in the"
    yield f"first three for {three}; {seconds:.0f} seconds of the processor each."


def _drawn(told: Mapping[str, Any]) -> Iterator[str]:
    drawn = told.get("drawn", ())
    if not drawn:
        return
    seen = [each for each in drawn if each["failed"] or not each["starts"]]
    first = [each for each in drawn if {*each["blamed"][:1]} & {*each["rules"]}]
    three = [each for each in drawn if {*each["blamed"]} & {*each["rules"]}]
    whole = len(drawn)
    yield from ("", "## Hold-out", "")
    yield from DRAWN.splitlines()
    yield from ("", f"Drawn: {whole}. Seen: {len(seen)} ({100 * len(seen) / whole:.0f} %).")
    yield f"Of all, a right rule is first for {len(first)} ({100 * len(first) / whole:.0f} %),"
    yield f"in the first three for {len(three)} ({100 * len(three) / whole:.0f} %)."
    yield from ("", "Not seen; some of them change nothing:", "")
    for each in drawn:
        if each not in seen:
            yield f"- `{each['change']}` ({', '.join(each['rules'])})"


def _examples(told: Mapping[str, Any]) -> Iterator[str]:
    examples = told.get("examples", ())
    for language in dict.fromkeys(each["language"] for each in examples):
        some = [each for each in examples if each["language"] == language]
        yield from ("", f"## One line wrong in the {language} example", "")
        yield from (f"Measured: {len(some)} lines of the ten.", "")
        for name, way in (("alone", "checks alone"), ("whole", "with the known mistakes")):
            first = sum(each["rule"] in each[name][:1] for each in some)
            three = sum(each["rule"] in each[name] for each in some)
            yield f"- {way}: first {first} of {len(some)}, among three {three}"
        yield from ("", "| line | breaks | checks that fail | blamed, alone | blamed |")
        yield "|---|---|---|---|---|"
        for each in some:
            change = each["change"].replace("|", "\\|")
            blamed = (", ".join(each["alone"]), ", ".join(each["whole"]))
            yield f"| `{change}` | {each['rule']} | {each['failed']} | {' | '.join(blamed)} |"


def _confused(rows: Sequence[Row], ways: Sequence[str]) -> Iterator[str]:
    yield from ("", "## Confusion", "")
    yield "Which rule is blamed first in place of which, and for how many mistakes."
    for number in (1, 2):
        pairs = confusion(rows, number)
        yield from ("", f"### {ways[number].capitalize()}: {pairs.total()} mistakes", "")
        broken: dict[str, list[str]] = {}
        for (rule, blamed), count in sorted(pairs.items()):
            times = f" ×{count}" if count > 1 else ""
            broken.setdefault(rule, []).append(f"{blamed}{times}")
        yield from ("| breaks | blamed first |", "|---|---|")
        yield from (f"| {rule} | {', '.join(blamed)} |" for rule, blamed in broken.items())


def _unseen(unseen: Sequence[Row]) -> Iterator[str]:
    if unseen:
        yield from ("", "## Seen by no directed check", "")
        yield from (f"- `{each.mistake}` ({', '.join(each.rules)})" for each in unseen)
