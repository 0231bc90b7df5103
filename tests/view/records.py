"""Records to look at: the shipped ones, altered ones, and ones with hostile names."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kvcheck.records.select import shipped_records

SMALL = shipped_records() / "life_of_blocks.jsonl"
LARGE = shipped_records() / "identities.jsonl"


def rewritten(source: Path, target: Path, change: Callable[[list[dict[str, Any]]], None]) -> Path:
    """Write the record with changed lines; line 0 is the header, line i + 1 operation i."""
    lines = [json.loads(line) for line in source.read_text("utf-8").splitlines()]
    change(lines)
    target.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return target


def with_wrong_answer(folder: Path, source: Path = SMALL, operation: int = 12) -> Path:
    def change(lines: list[dict[str, Any]]) -> None:
        line = lines[operation + 1]
        assert line["op"] == "allocate_slots"
        assert line["result"]
        line["result"] = [[block + 1 for block in group] for group in line["result"]]

    return rewritten(source, folder / "wrong.jsonl", change)


def renamed(folder: Path, old: str, new: str) -> Path:
    def change(lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if line.get("req") == old:
                line["req"] = new
            for members in (line.get("state") or {}).values():
                if isinstance(members, dict) and old in members:
                    members[new] = members.pop(old)

    return rewritten(SMALL, folder / "renamed.jsonl", change)
