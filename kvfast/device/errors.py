"""Errors of the device plane; those of arguments are `kvspec.errors`."""

from __future__ import annotations

from kvspec.errors import KVSpecError


class MissingDependencyError(KVSpecError, ImportError):
    """A package that this part of kvfast needs is not installed.

    `package` is its import name, `install` a requirement that pip takes.
    """

    def __init__(self, package: str, install: str, needed_for: str) -> None:
        super().__init__(f"{needed_for} needs {package}: pip install {install!r}")
        self.package = package
        self.install = install


class DeviceMemoryError(KVSpecError, MemoryError):
    """A device without room for pools or tables (KV-DEV-2). Nothing was allocated."""

    def __init__(self, device: str, needed_bytes: int, free_bytes: int) -> None:
        super().__init__(
            f"{device} has {free_bytes} bytes free ({free_bytes / 2**30:.2f} GiB), but needed are"
            f" {needed_bytes} ({needed_bytes / 2**30:.2f} GiB): plan with what is free"
        )
        self.device = device
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
