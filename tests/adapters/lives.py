"""The tables of indexes and offload managers of other projects in docs/FINDINGS.md.

    kvspec check --tier IMPL --json docs/findings/NAME.json --expect docs/findings/NAME.toml
    python -m tests.regenerate findings

The report is kept as it is; the file of known differences has a reason for each broken rule.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

TABLES: Mapping[str, tuple[str, ...]] = {
    "indexes": ("dynamo-tree", "dynamo-indexer", "dynamo-indexer-bare"),
    "tiers": ("vllm-0.33-tier", "vllm-0.33-tier-arc", "lmcache-l1"),
}
"""The names of the files, by the marks of their table."""
HEAD = "| what | declared | lives | rules tried, broken | broken, with the shortest life |"


def read(folder: Path, name: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return what is known of one, and its report."""
    known = tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))
    return known, json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def table(folder: Path, mark: str) -> str:
    return "\n".join(
        [HEAD, "|---|---|---:|---:|---|", *(_row(*read(folder, name)) for name in TABLES[mark])]
    )


def _row(known: Mapping[str, Any], report: Mapping[str, Any]) -> str:
    reasons = {each["rule"]: each["reason"] for each in known.get("known", ())}
    tried = sum(number > 0 for number in report["tried"].values())
    found = "<br>".join(_shown(each, reasons) for each in report["findings"]) or "nothing"
    counts = f"{report['num_lives']:,} | {tried}, {len(report['findings'])}"
    return f"| {known['about']} | {known['declared']} | {counts} | {found} |"


def _shown(found: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    calls = "; ".join(f"`{each}`" for each in found["calls"])
    reason = reasons.get(found["rule"], "no reason given").removeprefix("Wrong: ")
    first = f", first in life {found['life']}" if "life" in found else ""
    return f"{found['rule']}{first}: {reason} <details><summary>life</summary>{calls}</details>"


def unexplained(folder: Path) -> Iterator[str]:
    """Yield broken rules without a reason, and reasons without a broken rule."""
    for name in (name for names in TABLES.values() for name in names):
        known, report = read(folder, name)
        broken = {each["rule"] for each in report["findings"]}
        reasons = {each["rule"] for each in known.get("known", ())}
        yield from (f"{name}: {rule}" for rule in sorted(broken ^ reasons))
