"""Replays of several traces beside each other: a column each, for machines and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcheck.tools.replay.names import short_names
from kvcheck.tools.replay.report import how, number_rows, seconds_rows

FORMAT = "kvspec-replays"
FORMAT_VERSION = 1

Rows = list[tuple[str, ...]]


def reports(contents: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The reports as one, ready for JSON."""
    return {"format": FORMAT, "version": FORMAT_VERSION, "replays": list(contents)}


def names(contents: Sequence[dict[str, Any]]) -> list[str]:
    """What the columns are called."""
    return short_names([content["trace"] for content in contents])


def heading(contents: Sequence[dict[str, Any]]) -> str:
    """How many traces went through which implementation, in one line."""
    return f"{len(contents)} traces {how(contents[0])}"


def numbers(contents: Sequence[dict[str, Any]]) -> Rows:
    """The main numbers: a label, and the value of each."""
    return _joined([number_rows(content) for content in contents])


def seconds(contents: Sequence[dict[str, Any]]) -> Rows:
    """Wall time by phase."""
    return _joined([seconds_rows(content) for content in contents])


def explanations(contents: Sequence[dict[str, Any]]) -> Rows:
    """From the repeat rate to the hit rate, in points; items that change none are left out."""
    rows: Rows = [("trace repeat rate", *(f"{each['trace_repeat_rate']:.3%}" for each in contents))]
    for items in zip(*(each["explanation"]["items"] for each in contents), strict=True):
        changes = [item["rate_change"] for item in items]
        if any(changes):
            shown = (f"{100 * change:+.3f} " if change else "" for change in changes)
            rows.append((items[0]["name"].replace("_", " "), *shown))
    rows.append(("hit rate", *(f"{each['hit_rate']:.3%}" for each in contents)))
    residuals = (each["explanation"]["residual"] for each in contents)
    return [*rows, ("unexplained", *(f"{each:.3%}" for each in residuals))]


def text(contents: Sequence[dict[str, Any]]) -> str:
    """All of it for a terminal."""
    sections = (
        (heading(contents), numbers(contents)),
        ("From each trace's repeat rate to its hit rate, in points", explanations(contents)),
        ("Seconds", seconds(contents)),
    )
    columns = names(contents)
    notes = [
        f"  {name}: {note}\n"
        for name, content in zip(columns, contents, strict=True)
        for note in content["notes"]
    ]
    told = [f"Not exact\n{''.join(notes)}"] if notes else []
    return "\n".join([*(_section(title, columns, rows) for title, rows in sections), *told])


def _joined(tables: Sequence[Sequence[tuple[str, str]]]) -> Rows:
    """Tables with equal labels as one."""
    return [
        (rows[0][0], *(value.replace("  ", " ") for _, value in rows))
        for rows in zip(*tables, strict=True)
    ]


def _section(title: str, columns: Sequence[str], rows: Rows) -> str:
    lines = [("", *columns), *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    shown = [
        f"  {line[0]:<{widths[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(line[1:], widths[1:], strict=True))
        for line in lines
    ]
    return "\n".join([title, *(line.rstrip() for line in shown), ""])
