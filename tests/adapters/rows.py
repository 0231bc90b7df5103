"""The table of what is wrong in vLLM 0.33.0: what finds it, and whether its scheduler reaches it.

Rows are in docs/findings/vllm-0.33.rows.toml. A rule is shown where a kept report of `kvspec
check` has it as broken; the report of level safety is kept as docs/findings/vllm-0.33.safety.json:

    kvspec check kvcheck.adapters.vllm:implementation --profile vllm-0.33 --level safety \\
        --budget directed --rules 'KV-INSIDE-*' --json out.json
    python -m tests.adapters.findings vllm-0.33.safety out.json

Level `tier` is the report of the offload managers (`tests/adapters/lives.py`).
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kvcheck.judge.outcome import Verdict
from tests.adapters import lives

NAME = "vllm-0.33"


def read_rows(folder: Path) -> list[Mapping[str, Any]]:
    listed: list[Mapping[str, Any]] = tomllib.loads((folder / f"{NAME}.rows.toml").read_text())[
        "row"
    ]
    return listed


def table(folder: Path) -> str:
    broken = {level: _broken(folder, level) for level in ("identity", "safety")}
    broken["tier"] = {each["rule"] for each in lives.read(folder, f"{NAME}-tier")[1]["findings"]}
    lines = ["| what | found by `kvspec check` | smallest story | reached by its scheduler |"]
    lines.append("|---|---|---|---|")
    for row in read_rows(folder):
        level = row.get("level", "identity")
        found = ", ".join(rule for rule in row["rules"] if rule in broken[level])
        found = found or row.get("found", "no")
        if level != "identity" and row["rules"]:
            found += ", by `--tier`" if level == "tier" else ", at level *safety*"
        if "cpu_s" in row and row["rules"]:
            found += f"; {row['cpu_s']} CPU seconds"
        if "budget" in row:
            found += f", budget *{row['budget']}*"
        reached = row["scheduler"]
        if "report" in row:
            reached += f": [report and script](reports/{NAME}-{row['report']}.md)"
        lines.append(f"| {row['what']} | {found} | {row['story']} | {reached} |")
    return "\n".join(lines)


def _broken(folder: Path, level: str) -> set[str]:
    name = NAME if level == "identity" else f"{NAME}.{level}"
    report = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return {rule for rule, verdict in report["rules"].items() if verdict == Verdict.BROKEN}


def without_row(folder: Path, reasons: Mapping[str, str]) -> Iterator[str]:
    """Yield the reasons of wrong results that no row mentions."""
    begins = tuple(row["reason"] for row in read_rows(folder) if "reason" in row)
    for reason in reasons.values():
        if reason.startswith("Wrong:") and not reason.startswith(begins):
            yield reason
