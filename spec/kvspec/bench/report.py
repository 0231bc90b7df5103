"""What a run found: medians, quartiles, ratios, and the facts needed to judge them."""

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

from kvspec.bench.cases import BLOCK_SIZE_TOKENS, HASH_FUNCTION, DecodeCase
from kvspec.bench.measure import Measured, Measurement, Subject
from kvspec.bench.scenarios import ALLOCATE, APPEND, DECODE, FREE, HASH, LOOK_UP

FORMAT = "kvspec-bench"
FORMAT_VERSION = 1

PHASES = (HASH, LOOK_UP, ALLOCATE, FREE, APPEND, DECODE)
PER_BLOCK = frozenset({HASH, ALLOCATE, FREE})
"""The others are per request."""


@dataclass(frozen=True)
class Spread:
    """The median of the rounds between their quartiles."""

    q1: float
    median: float
    q3: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least two numbers."""
        return cls(*quantiles(values, n=4, method="inclusive"))


@dataclass(frozen=True)
class Report:
    """A run; the ratios are to `subjects[0]`."""

    subjects: tuple[Subject, ...]
    measured: Measured
    num_rounds: int
    command: str
    started: datetime

    @property
    def baseline(self) -> str:
        """What the others are compared with."""
        return self.subjects[0].name

    def to_json(self) -> dict[str, Any]:
        """The run as a JSON document; times are nanoseconds per unit."""
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
                    "name": subject.name,
                    "implements": subject.implementation.capabilities.name,
                    "version": subject.implementation.capabilities.version,
                    "includes": self.measured.includes[subject.name],
                }
                for subject in self.subjects
            ],
            "measurements": [self._measurement(each) for each in self.measured.measurements],
        }

    def _measurement(self, found: Measurement) -> dict[str, Any]:
        kind = "decode" if isinstance(found.case, DecodeCase) else "prompt"
        return {
            "phase": found.phase,
            "unit": unit(found.phase),
            "units_per_round": found.units_per_round,
            "case": {"kind": kind, **asdict(found.case)},
            "results": {
                subject.name: {
                    "ns_per_unit": asdict(Spread.of(found.rounds_ns[subject.name])),
                    "ratio": asdict(Spread.of(ratios(found, self.baseline, subject.name))),
                    "rounds_ns_per_unit": found.rounds_ns[subject.name],
                }
                for subject in self.subjects
            },
        }


def unit(phase: str) -> str:
    """What the times of a phase are divided by."""
    return "block" if phase in PER_BLOCK else "request"


def ratios(found: Measurement, baseline: str, name: str) -> list[float]:
    """Round by round: time of the baseline / time of this one; above 1 is faster than it.

    A clock may be too coarse to see anything: 0 / 0 is 1.
    """
    pairs = zip(found.rounds_ns[baseline], found.rounds_ns[name], strict=True)
    return [1.0 if base == own else base / max(own, 1e-3) for base, own in pairs]


def machine() -> dict[str, Any]:
    """Cores, processor, Python, and how busy the machine is (None: not known here)."""
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
