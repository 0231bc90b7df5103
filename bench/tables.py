"""The document of `kvspec bench --json` as tables in Markdown.

python bench/tables.py out.json                              # to stdout
python bench/tables.py out.json --into bench/RESULTS.md      # in the place that is marked there
python bench/tables.py out.json --phase "look up"            # this one only; may be repeated

The place in a file begins with a line `<!-- begin NAME -->` and ends with `<!-- end NAME -->`; NAME
is the baseline's, or that of `--place NAME`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date
from itertools import groupby
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from kvcheck.tools.bench.report import machine

Document = dict[str, Any]
Found = dict[str, Any]
Label = Callable[[Found], str]

SUMS = frozenset({"hash + look up"})
"""For managers that hash in the look-up; the tables already show both phases of the others."""


def tables(document: Document, phases: Collection[str] = ()) -> Iterator[str]:
    """Yield the lines: the facts, then a table for each phase of each kind of case.

    `phases`: only these; by default all but sums. Raises ValueError for a phase not measured.
    """
    measured = {each["phase"] for each in document["measurements"]}
    for phase in phases:
        if phase not in measured:
            raise ValueError(f"no phase {phase!r}; there are {', '.join(sorted(measured))}")
    yield from _facts(document)
    wanted = phases or measured - SUMS
    found = [each for each in document["measurements"] if each["phase"] in wanted]
    found.sort(key=lambda each: document["phases"].index(each["phase"]))
    kinds: tuple[tuple[str, Callable[[Found], bool], Label], ...] = (
        ("Prompts, hot", _is_hot, _prompt),
        ("Decoding", lambda each: each["case"]["kind"] == "decode", _running),
        ("The pool grows, cold", _is_cold, _pool),
    )
    for title, belongs, label in kinds:
        rows = [each for each in found if belongs(each)]
        if rows:
            yield from (f"### {title}", "")
        for phase, of_phase in groupby(rows, key=lambda each: str(each["phase"])):
            chosen = list(of_phase)
            head = f"{phase}, ns per {chosen[0]['unit']}"
            yield from _table(document, head, chosen, label, ns=1.0)
    replayed = [each for each in found if each["case"]["kind"] == "replay"]
    if replayed:
        yield from ("### A whole trace", "", _replay_facts(replayed[0]["case"]), "")
        yield from _table(document, "ms per replay", replayed, _act, ns=1e6)


def _facts(document: Document) -> Iterator[str]:
    machine = document["machine"]
    load = "" if machine["load_1min"] is None else f" (load {machine['load_1min']} at the end)"
    named = [
        f"{each['implements']} {each['version']}"
        for each in document["implementations"]
        if not each["is_batched"]
    ]
    yield (
        f"{document['started'][:10]}, {machine['cores']} cores, {machine['processor']}{load},"
        f" {machine['python']}, kvspec {document['kvspec']}, {', '.join(named)}:"
    )
    yield from ("", f"    {document['command']}", "")
    yield (
        f"Median (quartiles) of {document['rounds']} rounds. Ratio: time of {document['baseline']}"
        " / time of the one to its left, in the same round. In every timed part:"
        f" {document['timer_ns']:.0f} ns for clock and loop."
    )
    for each in document["left_out"]:
        what = f"{each['name']}, {each['case']['label']}, and what is larger"
        yield f"Left out, as it would have taken {each['seconds']:.0f} s: {what}."
    yield ""


def _table(
    document: Document, title: str, rows: list[Found], label: Label, *, ns: float
) -> Iterator[str]:
    baseline = document["baseline"]
    names = [
        each["name"]
        for each in document["implementations"]
        if any(each["name"] in row["results"] for row in rows)
    ]
    head = [title]
    for name in names:
        head += [name] if name == baseline else [name, "ratio"]
    yield _line(head)
    yield _rule(len(head))
    for row in rows:
        cells = [label(row)]
        for name in names:
            result = row["results"].get(name)
            cells.append("" if result is None else _spread(result["ns_per_unit"], ns))
            if name != baseline:
                has_ratio = result is not None and result["ratio"] is not None
                cells.append(_spread(result["ratio"], 1.0) if has_ratio else "")
        yield _line(cells)
    yield ""


def _is_hot(found: Found) -> bool:
    """Check for prompts that are not cold; hashing, which ignores hits, once per length."""
    case = found["case"]
    return case["kind"] == "prompt" and not case["cold"] and not _repeats(found)


def _is_cold(found: Found) -> bool:
    """Check for full pools, which do not matter to hashing."""
    return bool(found["case"].get("cold")) and found["phase"] != "hash"


def _repeats(found: Found) -> bool:
    return found["phase"] == "hash" and bool(found["case"].get("hit_percent"))


def _prompt(found: Found) -> str:
    case = found["case"]
    cached = "" if found["phase"] == "hash" else f", {case['hit_percent']} % cached"
    return f"{case['num_requests']} × {case['prompt_tokens']:,} tokens{cached}"


def _running(found: Found) -> str:
    return f"{found['case']['num_requests']:,} running"


def _pool(found: Found) -> str:
    return f"{found['case']['num_blocks']:,} blocks"


def _act(found: Found) -> str:
    return str(found["phase"]).removeprefix("replay: ")


def _replay_facts(case: dict[str, Any]) -> str:
    return (
        f"{case['trace']}, its first {case['num_requests']:,} requests: {case['steps']:,} steps,"
        f" {case['preemptions']:,} preemptions, {case['generated_tokens']:,} generated tokens."
    )


def _spread(spread: dict[str, float], ns: float) -> str:
    low, middle, high = (short(spread[key] / ns) for key in ("q1", "median", "q3"))
    return f"{middle} ({low} … {high})"


def short(value: float) -> str:
    """Round to three significant digits."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _rule(columns: int) -> str:
    """Return the rule below a table's head, with numbers aligned right."""
    return "|---|" + "---:|" * (columns - 1)


def spread(values: list[float]) -> str:
    """Format median (quartiles)."""
    low, _, high = quantiles(values, n=4)
    return f"{short(median(values))} ({short(low)} … {short(high)})"


def stamp() -> str:
    """Return when and where a run was made that ends now."""
    here = machine()
    return (
        f"{date.today()}, {here['cores']} cores, {here['processor']} (load {here['load_1min']}"
        f" at the end), {here['python']}"
    )


def options(doc: str | None, name: str, rounds: int) -> argparse.ArgumentParser:
    """Return the options that all programs here have."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--into", type=Path, metavar="FILE", help=f"between its lines for `{name}`")
    return parser


def put_run(command: str, facts: str, rows: Iterable[str], name: str, into: Path | None) -> None:
    """Put a run: when and where, the command, what the numbers are, the rows."""
    put([f"{stamp()}:", "", f"    {command}", "", facts, "", *rows, ""], name, into)


def put(lines: list[str], name: str, into: Path | None) -> None:
    """Print the lines, or write them between those for `name` in a file."""
    if into is None:
        print(*lines, sep="\n")
    else:
        into.write_text(insert(into.read_text("utf-8"), name, lines), "utf-8")


def insert(text: str, name: str, lines: list[str]) -> str:
    """Put the lines in the place of this name. ValueError: there is no such place."""
    begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->\n"
    before, is_begun, rest = text.partition(begin)
    _, is_ended, after = rest.partition(end)
    if not (is_begun and is_ended):
        raise ValueError(f"no lines {begin.strip()} and {end.strip()}")
    return "".join([before, begin, *(f"{line}\n" for line in lines), end, after])


def main() -> None:
    """See the top of this file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("document", type=Path)
    parser.add_argument("--phase", action="append", default=[], metavar="PHASE")
    parser.add_argument("--into", type=Path, metavar="FILE")
    parser.add_argument("--place", metavar="NAME")
    given = parser.parse_args()
    document = json.loads(given.document.read_text("utf-8"))
    try:
        lines = list(tables(document, given.phase))
        if given.into is None:
            print(*lines, sep="\n")
        else:
            text = insert(given.into.read_text("utf-8"), given.place or document["baseline"], lines)
            given.into.write_text(text, "utf-8")
    except ValueError as error:
        sys.exit(f"{given.into or given.document}: {error}")


if __name__ == "__main__":
    main()
