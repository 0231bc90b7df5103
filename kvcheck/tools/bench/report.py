"""The results of a run: medians, quartiles, ratios, and the facts needed to judge them."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import Any

from kvcheck.tools.bench.cases import BLOCK_SIZE_TOKENS, HASH_FUNCTION, Case, DecodeCase, ReplayCase
from kvcheck.tools.bench.measure import Contestant, Measured, Measurement, Subject, contestants
from kvcheck.tools.bench.pools import PoolCost
from kvcheck.tools.bench.replay import REPLAY_PHASES
from kvcheck.tools.bench.scenarios import (
    ADMIT,
    ALLOCATE,
    CHUNK,
    DECODE_PHASES,
    FREE,
    HASH,
    PROMPT_PHASES,
)
from kvcheck.tools.bench.script import Act

FORMAT = "kvspec-bench"
FORMAT_VERSION = 1

PHASES = (*PROMPT_PHASES, *DECODE_PHASES)
PER_BLOCK = frozenset({HASH, ALLOCATE, ADMIT, CHUNK, FREE})
"""Phases whose times are per block; others are per request, those of a replay undivided."""


@dataclass(frozen=True)
class Spread:
    """The median of the rounds between their quartiles."""

    q1: float
    median: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(*quantiles(values, n=4, method="inclusive"))


@dataclass(frozen=True)
class Report:
    """A run; the ratios are to `subjects[0]`, by single calls."""

    subjects: tuple[Subject, ...]
    measured: Measured
    num_rounds: int
    command: str
    started: datetime
    pools: tuple[PoolCost, ...] = ()

    @property
    def baseline(self) -> str:
        """Name of the subject that the others are compared with."""
        return self.subjects[0].name

    @property
    def contestants(self) -> tuple[Contestant, ...]:
        return contestants(self.subjects)

    def to_json(self) -> dict[str, Any]:
        """Return the run as a JSON document; times are nanoseconds per unit."""
        return {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "command": self.command,
            "started": self.started.astimezone(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "kvspec": version("kvspec"),
            "block_size_tokens": BLOCK_SIZE_TOKENS,
            "hash_function": HASH_FUNCTION,
            "rounds": self.num_rounds,
            "garbage_collector": "off while timing",
            "timer_ns": self.measured.timer_ns,
            "baseline": self.baseline,
            "implementations": [
                {
                    "name": each.name,
                    "implements": each.subject.implementation.capabilities.name,
                    "version": each.subject.implementation.capabilities.version,
                    "is_batched": each.is_batched,
                    "includes": self.measured.includes.get(each.name),
                }
                for each in self.contestants
            ],
            "phases": [*PHASES, *REPLAY_PHASES],
            "measurements": [self._measurement(each) for each in self.measured.measurements],
            "left_out": [
                {"name": each.name, "case": case_facts(each.case), "seconds": each.seconds}
                for each in self.measured.left_out
            ],
            "pools": [asdict(each) for each in self.pools],
        }

    def _measurement(self, found: Measurement) -> dict[str, Any]:
        return {
            "phase": found.phase,
            "unit": unit(found.phase),
            "units_per_round": found.units_per_round,
            "case": case_facts(found.case),
            "results": {
                each.name: self._result(found, each.name)
                for each in self.contestants
                if each.name in found.rounds_ns
            },
        }

    def _result(self, found: Measurement, name: str) -> dict[str, Any]:
        ratio = ratios(found, self.baseline, name)
        return {
            "ns_per_unit": asdict(Spread.of(found.rounds_ns[name])),
            "ratio": None if ratio is None else asdict(Spread.of(ratio)),
            "rounds_ns_per_unit": found.rounds_ns[name],
        }


def case_facts(case: Case) -> dict[str, Any]:
    if isinstance(case, ReplayCase):
        script = case.script
        return {
            "kind": "replay",
            "trace": case.trace,
            "num_requests": script.num_requests,
            "options": asdict(script.options),
            "steps": len(script.steps),
            "admissions": script.count(Act.ADMIT),
            "refused_admissions": script.count(Act.ADMIT, granted=False),
            "preemptions": script.count(Act.PREEMPT),
            "allocations_of_running": script.count(Act.RUN),
            "generated_tokens": script.count(Act.APPEND),
        }
    kind = "decode" if isinstance(case, DecodeCase) else "prompt"
    return {"kind": kind, **asdict(case)}


def unit(phase: str) -> str:
    """Return the unit that the times of a phase are divided by."""
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
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "platform": platform.platform(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "load_1min": _load(),
    }


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    named = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return named[1].strip() if named else platform.processor() or platform.machine()


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):  # not on every system
        return None
