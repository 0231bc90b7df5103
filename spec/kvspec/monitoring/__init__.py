"""Watching a live manager in an engine's own run. `kvspec.monitor` is `monitor` from here."""

from __future__ import annotations

from kvspec.monitoring.monitor import Monitor, monitor
from kvspec.monitoring.report import MonitorReport

__all__ = ["Monitor", "MonitorReport", "monitor"]
