"""The KV-cache contract: values, interface, snapshots, invariants and records.

Import the module that holds what is needed (``kvspec.config``, ``kvspec.interface``, …). Nothing
is imported here, so that ``import kvspec`` costs nothing and needs only the standard library;
``kvspec.monitor`` imports `kvspec.monitoring` when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvspec.monitoring import monitor

    __all__ = ["monitor"]
else:

    def __getattr__(name):
        if name == "monitor":
            from kvspec.monitoring import monitor

            return monitor
        raise AttributeError(f"module 'kvspec' has no attribute {name!r}")
