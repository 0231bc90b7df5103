"""Records to look at: a changed one, and one with hostile names."""

from __future__ import annotations

from pathlib import Path

from tests.records.changed import SMALL, lines_of, spoil, write_lines


def rewritten(target: Path, *changes: str) -> Path:
    """Write the small record, changed as `spoil` says."""
    lines = lines_of(SMALL)
    for change in changes:
        spoil(lines, change)
    return write_lines(target, lines)


def with_wrong_answer(folder: Path) -> Path:
    """Write it with another block of operation 12."""
    return rewritten(folder / "wrong.jsonl", "change 14 result = [[6]]")


def renamed(folder: Path, old: str, new: str) -> Path:
    lines = lines_of(SMALL)
    for line in lines:
        if line.get("req") == old:
            line["req"] = new
        for members in (line.get("state") or {}).values():
            if isinstance(members, dict) and old in members:
                members[new] = members.pop(old)
    return write_lines(folder / "renamed.jsonl", lines)
