"""Show replays of several traces side by side, a column each, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcheck.tools.replay import report
from kvcheck.tools.replay.report import WIDTH, how, number_rows, wrapped
from kvcheck.tools.replay.trace import short_names

FORMAT = "kvspec-replays"
FORMAT_VERSION = 1

Rows = list[tuple[str, ...]]


def reports(contents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine the reports into one JSON document."""
    return {"format": FORMAT, "version": FORMAT_VERSION, "replays": list(contents)}


def names(contents: Sequence[dict[str, Any]]) -> list[str]:
    """Return short distinct names for the columns."""
    return short_names([content["trace"] for content in contents])


def heading(contents: Sequence[dict[str, Any]]) -> str:
    """Return a line with the trace, or the number of traces, the implementation and the pool."""
    if len(contents) == 1:
        return report.heading(contents[0])
    return f"{len(contents)} traces {how(contents[0])}"


def numbers(contents: Sequence[dict[str, Any]]) -> Rows:
    """Return the main numbers: a label, and the value for each trace."""
    return [
        (rows[0][0], *(value.replace("  ", " ").replace(" tokens", "") for _, value in rows))
        for rows in zip(*map(number_rows, contents), strict=True)
    ]


def explanations(contents: Sequence[dict[str, Any]]) -> Rows:
    """Return the steps from the repeat rate to the hit rate, in points, without items of zero."""
    rows: Rows = [("trace repeat rate", *(f"{each['trace_repeat_rate']:.3%}" for each in contents))]
    for items in zip(*(each["explanation"]["items"] for each in contents), strict=True):
        changes = [item["rate_change"] for item in items]
        if any(changes):
            shown = (f"{100 * change:+.3f} " if change else "" for change in changes)
            rows.append((items[0]["name"].replace("_", " "), *shown))
    rows.append(("hit rate", *(f"{each['hit_rate']:.3%}" for each in contents)))
    residuals = (each["explanation"]["residual"] for each in contents)
    return [*rows, ("unexplained", *(f"{each:.3%}" for each in residuals))]


def text(contents: Sequence[dict[str, Any]], width: int = WIDTH) -> str:
    """Return the replays as text for a terminal."""
    sections = (
        (heading(contents), numbers(contents)),
        ("From each trace's repeat rate to its hit rate, in points", explanations(contents)),
    )
    columns = names(contents)
    notes = [
        f"  {name}: {note}"
        for name, content in zip(columns, contents, strict=True)
        for note in content["notes"]
    ]
    inexact = ["\n".join(["Inexact", *wrapped(notes, width), ""])] if notes else []
    tables = (_section(title, columns, rows, width) for title, rows in sections)
    return "\n".join([*tables, *inexact])


def _section(title: str, columns: Sequence[str], rows: Rows, width: int) -> str:
    """Write a table, below itself where it is wider than a line."""
    lines = [("", *columns), *rows]
    first, *widths = (max(map(len, column)) + 2 for column in zip(*lines, strict=True))
    parts: list[list[int]] = [[]]
    for number, wide in enumerate(widths):
        if parts[-1] and first + wide + sum(widths[each] for each in parts[-1]) > width:
            parts.append([])
        parts[-1].append(number)
    shown = [
        f"  {line[0]:<{first - 2}}" + "".join(f"{line[each + 1]:>{widths[each]}}" for each in part)
        for part in parts
        for line in lines
    ]
    return "\n".join([*wrapped([title], width), *(line.rstrip() for line in shown), ""])
