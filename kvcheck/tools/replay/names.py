"""Short names of several traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def short_names(traces: Sequence[str]) -> list[str]:
    """Return each trace's file name, or its whole path if another has the same name."""
    names = [Path(trace).name for trace in traces]
    return [
        trace if any(name == Path(other).name and trace != other for other in traces) else name
        for trace, name in zip(traces, names, strict=True)
    ]
