"""The document of a run: medians, quartiles, ratios, and the facts needed to judge them."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import Any

from kvcheck.tools.bench.calls import DECODE_PHASES, PER_BLOCK, PROMPT_PHASES, REPLAY_PHASES
from kvcheck.tools.bench.measure import Contestant, Measured, Measurement
from kvcheck.tools.bench.script import BLOCK_SIZE_TOKENS, HASH_FUNCTION, Case

FORMAT = "kvspec-bench"
FORMAT_VERSION = 2


def document(
    playing: Sequence[Contestant],
    measured: Measured,
    num_rounds: int,
    command: str,
    started: datetime,
) -> dict[str, Any]:
    """Return a run as a JSON document. Times are nanoseconds per unit; ratios are to the times of
    the first contestant.
    """
    baseline, names = playing[0].name, [each.name for each in playing]
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "command": command,
        "started": started.astimezone(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "kvspec": version("kvspec"),
        "block_size_tokens": BLOCK_SIZE_TOKENS,
        "hash_function": HASH_FUNCTION,
        "rounds": num_rounds,
        "garbage_collector": "off while timing",
        "timer_ns": measured.timer_ns,
        "baseline": baseline,
        "implementations": [
            {
                "name": each.name,
                "implements": each.implementation.capabilities.name,
                "version": each.implementation.capabilities.version,
                "is_batched": each.is_batched,
                "includes": measured.includes[each.name],
            }
            for each in playing
        ],
        "phases": [*PROMPT_PHASES, *DECODE_PHASES, *REPLAY_PHASES],
        "measurements": [
            {
                "phase": found.phase,
                "unit": _unit(found.phase),
                "units_per_round": found.units_per_round,
                "case": _case(found.case),
                "results": {
                    name: _result(found, baseline, name)
                    for name in names
                    if name in found.rounds_ns
                },
            }
            for found in measured.measurements
        ],
        "left_out": [
            {"name": name, "case": _case(case), "seconds": seconds}
            for case, name, seconds in measured.left_out
        ],
    }


def _case(case: Case) -> dict[str, Any]:
    return {"kind": case.kind, "label": case.label, **case.facts}


def _result(found: Measurement, baseline: str, name: str) -> dict[str, Any]:
    compared = ratios(found, baseline, name)
    return {
        "ns_per_unit": spread(found.rounds_ns[name]),
        "ratio": None if compared is None else spread(compared),
        "rounds_ns_per_unit": found.rounds_ns[name],
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    return dict(
        zip(("q1", "median", "q3"), quantiles(values, n=4, method="inclusive"), strict=True)
    )


def _unit(phase: str) -> str:
    if phase in REPLAY_PHASES:
        return "replay"
    return "block" if phase in PER_BLOCK else "request"


def ratios(found: Measurement, baseline: str, name: str) -> list[float] | None:
    """Round by round: time of the baseline / time of this one; above 1 is faster than it.

    None if the baseline has no times here. A clock may be too coarse to see anything: 0 / 0 is 1.
    """
    if baseline not in found.rounds_ns:
        return None
    pairs = zip(found.rounds_ns[baseline], found.rounds_ns[name], strict=True)
    return [1.0 if base == own else base / max(own, 1e-3) for base, own in pairs]


def machine() -> dict[str, Any]:
    """Return cores, processor, Python, and the machine's load (None: unknown)."""
    try:
        load = round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):  # not on every system
        load = None
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "platform": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load_1min": load,
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()
