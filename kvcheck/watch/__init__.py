"""Watching a live manager in an engine's own run. `kvcheck.monitor` is `monitor` from here."""

from __future__ import annotations

from kvcheck.watch.monitor import Monitor, monitor
from kvcheck.watch.recording import RecordedImplementation
from kvcheck.watch.session import MonitorReport
from kvcheck.watch.writing import UnrecordableError

__all__ = ["Monitor", "MonitorReport", "RecordedImplementation", "UnrecordableError", "monitor"]
