"""The judge of the KV-cache contract, and the tools around it. The command is `kvspec`.

Import the module that holds what is needed. Nothing is imported here; ``kvcheck.monitor`` imports
`kvcheck.watch` when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcheck.watch import monitor

    __all__ = ["monitor"]
else:

    def __getattr__(name):
        if name == "monitor":
            from kvcheck.watch import monitor

            return monitor
        raise AttributeError(f"module 'kvcheck' has no attribute {name!r}")
