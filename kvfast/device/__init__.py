"""The device plane: the cache itself as torch tensors, and what moves data in it.

Nothing here is imported by `import kvfast`. The names below come from submodules that need torch;
without it they raise MissingDependencyError when asked for. Kernels are Triton's on CUDA devices
where it is installed, and plain torch anywhere else, with the same results.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from kvfast.device.errors import DeviceMemoryError, MissingDependencyError

if TYPE_CHECKING:
    from kvfast.device.pools import KVPools
    from kvfast.device.tables import DeviceTables

__all__ = ["DeviceMemoryError", "DeviceTables", "KVPools", "MissingDependencyError"]


def __getattr__(name: str) -> object:
    module = {"KVPools": "pools", "DeviceTables": "tables"}.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if find_spec("torch") is None:
        raise MissingDependencyError("torch", "kvspec[torch]", f"kvfast.device.{name}")
    return getattr(import_module(f"{__name__}.{module}"), name)
