"""Checks of arguments common to all folders, made before anything runs (KV-DEV-7)."""

from __future__ import annotations

import torch

from kvspec.arrays import ints_of, view_of
from kvspec.batched import Ints
from kvspec.domains import is_int
from kvspec.errors import InvalidArgumentError

INT32_MAX = 2**31 - 1


def check_type(field: str, value: object, wanted: type) -> None:
    """Check that the value is of this type."""
    if not isinstance(value, wanted):
        raise InvalidArgumentError(field, value, f"a {wanted.__name__}")


def check_device(field: str, device: object) -> torch.device:
    """Return the device, which must exist and have memory; `cuda` becomes `cuda:0`."""
    if isinstance(device, (str, torch.device)):
        try:
            found = torch.empty(0, device=device).device
        except (
            RuntimeError,
            AssertionError,
        ) as error:  # torch raises both if there is no such device
            reason = str(error).partition("\n")[0]
            raise InvalidArgumentError(field, str(device), f"a device here: {reason}") from error
        if found.type != "meta":
            return found
        device = str(device)
    raise InvalidArgumentError(field, device, "a torch.device with memory, or its name")


def check_group(field: str, group: object, num_groups: int) -> int:
    """Check the number of a group."""
    if not isinstance(group, int) or isinstance(group, bool) or not 0 <= group < num_groups:
        raise InvalidArgumentError(field, group, f"an int in 0 … {num_groups - 1}")
    return group


def check_size(field: str, size: int) -> None:
    """Check a length of arrays that are indexed by 31 bits."""
    if not is_int(size) or not 1 <= size <= INT32_MAX:
        raise InvalidArgumentError(field, size, "an int in 1 … 2^31 - 1")


def host_ints(field: str, values: Ints) -> torch.Tensor:
    """Return the numbers as int64 [n] (KV-BATCH-3), possibly sharing the memory of `values`."""
    if isinstance(values, torch.Tensor):
        if (
            values.device.type != "cpu"
            or values.layout != torch.strided
            or values.dim() != 1
            or values.dtype not in (torch.int32, torch.int64)
        ):
            found = f"{values.dtype} {list(values.shape)} on {values.device}"
            raise InvalidArgumentError(field, found, "int32 or int64 [n] in host memory")
        return values.long()
    view = None if isinstance(values, (list, tuple, range)) else view_of(values)
    if view is not None and not view.readonly and view.ndim == 1:
        kinds = {"i": torch.int32, "q": torch.int64, "l": torch.int64}
        kind = kinds.get(view.format)
        if kind is not None and view.c_contiguous and view.itemsize == kind.itemsize:
            if not len(view):  # which torch refuses
                return torch.empty(0, dtype=torch.int64)
            return torch.frombuffer(view, dtype=kind).long()
    return torch.tensor(ints_of(field, values), dtype=torch.int64)
