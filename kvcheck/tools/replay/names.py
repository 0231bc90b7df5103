"""What several traces are called beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def short_names(traces: Sequence[str]) -> list[str]:
    """Each trace by the name of its file, or by its whole path where another is called so, too."""
    names = [Path(trace).name for trace in traces]
    return [
        trace if any(name == Path(other).name and trace != other for other in traces) else name
        for trace, name in zip(traces, names, strict=True)
    ]
