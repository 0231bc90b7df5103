"""Decode steps that the device decides alone (KV-DEV-15 … KV-DEV-17)."""

from __future__ import annotations

from kvfast.device.resident.decode import ResidentDecode, ResidentRun

__all__ = ["ResidentDecode", "ResidentRun"]
