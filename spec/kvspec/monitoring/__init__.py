"""Watching a live manager in an engine's own run. `kvspec.monitor` is `monitor` from here."""

from __future__ import annotations

from kvspec.monitoring.monitor import Monitor, monitor
from kvspec.monitoring.recording import RecordedImplementation
from kvspec.monitoring.report import MonitorReport
from kvspec.monitoring.writing import UnrecordableError

__all__ = ["Monitor", "MonitorReport", "RecordedImplementation", "UnrecordableError", "monitor"]
