"""Block tables, lengths, positions and slots (KV-DEV-9 … KV-DEV-14)."""

from __future__ import annotations

from kvfast.device.tables.arrays import DeviceStep
from kvfast.device.tables.difference import TableDifference
from kvfast.device.tables.tables import DeviceTables

__all__ = ["DeviceStep", "DeviceTables", "TableDifference"]
