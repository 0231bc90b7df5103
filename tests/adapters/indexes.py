"""The table of indexes of other projects in docs/FINDINGS.md, from kept reports.

kvspec check --index IMPL --programs N --json docs/findings/NAME.json
python -m tests.regenerate findings
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def read(folder: Path) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield each index as the file of reasons has it, with its report."""
    listed = tomllib.loads((folder / "indexes.toml").read_text(encoding="utf-8"))["index"]
    for each in listed:
        yield each, json.loads((folder / f"{each['name']}.json").read_text(encoding="utf-8"))


def table(folder: Path) -> str:
    lines = ["| index | declared | lives | rules tried, broken | broken, with the shortest life |"]
    lines.append("|---|---|---:|---:|---|")
    for each, report in read(folder):
        tried = sum(number > 0 for number in report["tried"].values())
        found = "<br>".join(_shown(one, each["why"]) for one in report["findings"]) or "nothing"
        counts = f"{tried}, {len(report['findings'])}"
        about = f"{each['what']} | {each['declared']} | {report['num_lives']:,} | {counts}"
        lines.append(f"| {about} | {found} |")
    return "\n".join(lines)


def _shown(found: Mapping[str, Any], why: Mapping[str, str]) -> str:
    calls = "; ".join(f"`{each}`" for each in found["calls"][1:])
    reason = why.get(found["rule"], "no reason given").removeprefix("Wrong: ")
    return f"{found['rule']}: {reason} <details><summary>life</summary>{calls}</details>"


def unexplained(folder: Path) -> list[str]:
    """List broken rules without a reason, and reasons without a broken rule."""
    problems = []
    for each, report in read(folder):
        broken = {one["rule"] for one in report["findings"]}
        problems += [f"{each['name']}: {rule}" for rule in broken ^ set(each["why"])]
    return problems
