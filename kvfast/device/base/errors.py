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


class ResidentOrderError(KVSpecError, RuntimeError):
    """A call of a run of resident steps, or of its tables, that is not its turn. Nothing was done.

    `call`: which; `phase`: where the run is, and `expected`: where it must be for this call.
    """

    def __init__(self, call: str, phase: str, expected: str) -> None:
        super().__init__(f"{call}: the run is {phase}, and must be {expected}")
        self.call = call
        self.phase = phase
        self.expected = expected


class RunDifferenceError(KVSpecError):
    """The manager decided otherwise than the device in a run of resident steps (KV-DEV-17).

    `step`: the first such step; `what`: "took" for blocks or "refused". `host`: rows (handle,
    group, index, block) of the manager, or handles that it refused; `device`: the device's rows.
    """

    def __init__(
        self, step: int, what: str, host: tuple[object, ...], device: tuple[object, ...]
    ) -> None:
        super().__init__(
            f"step {step} of the run: the manager {what} {list(host)},"
            f" the device took {list(device)}"
        )
        self.step = step
        self.what = what
        self.host = host
        self.device = device


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
