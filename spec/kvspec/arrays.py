"""Read arrays of callers into arrays of the library, or open them for writing (KV-BATCH-3)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from kvspec.domains import INT64_MAX, count, exact, is_int
from kvspec.errors import InvalidArgumentError

INTS = "a sequence of ints, or a one-dimensional C-contiguous array of int32 or int64"
INT32_BYTES, INT64_BYTES = 4, 8
INT64_MIN = -(2**63)
_SIGNED = frozenset("ilq")


def ints_of(field: str, values: object) -> array[int]:
    """Copy the numbers into an `array("q")`; InvalidArgumentError names `field` or its element.

    Every element of a sequence must be a real int in -2^63 … 2^63 - 1: no bool, float or NumPy
    scalar. An array has the buffer protocol, or a method `numpy` (PyTorch) that gives one that has.
    """
    if isinstance(values, (list, tuple, range)):
        return _listed(field, values)
    view = view_of(values)
    if view is None:
        if isinstance(values, Sequence) and not isinstance(values, str):
            return _listed(field, values)
        raise InvalidArgumentError(field, values, INTS)
    if view.ndim != 1 or not view.c_contiguous or not holds_ints(view, INT32_BYTES, INT64_BYTES):
        raise InvalidArgumentError(field, values, INTS)
    return array("q", view.tolist())


def beginning(values: Any, length: int) -> Any:
    """Cut a range to `length` numbers, since no memory holds all of `range(2**62)`."""
    return values[:length] if isinstance(values, range) else values


def _listed(field: str, values: Sequence[object]) -> array[int]:
    listed = array("q")
    for place, value in enumerate(values):
        if not is_int(value) or not INT64_MIN <= exact(value) <= INT64_MAX:
            raise InvalidArgumentError(f"{field}[{place}]", value, "an int of 64 bits")
        listed.append(exact(value))
    return listed


def counts_of(field: str, values: object, length: int, minimum: int) -> array[int]:
    """Read a count in `minimum` … 2^53 - 1 for each of `length` entries; an int applies to all.

    InvalidArgumentError names `field[i]`, or `field` if the int, the type or the length is wrong.
    """
    if issubclass(type(values), int):
        return array("q", [count(field, values, minimum)]) * length
    counts = ints_of(field, beginning(values, length + 1))
    if len(counts) != length:
        raise InvalidArgumentError(field, len(counts), f"{length} counts, one per handle, or one")
    for place, number in enumerate(counts):
        count(f"{field}[{place}]", number, minimum)
    return counts


def delta_rows(field: str, given: object) -> memoryview:
    """Return a writable view of `block_deltas`: int32, [n, 4]."""
    view = view_of(given)
    if (
        view is None
        or view.ndim != 2
        or view.shape is None
        or view.shape[1] != 4
        or not is_writable(view, INT32_BYTES)
    ):
        allowed = "a writable C-contiguous int32 array of shape [n, 4]"
        raise InvalidArgumentError(field, given, allowed)
    return view


def slot_array(field: str, given: object) -> memoryview:
    """Return a writable view of a slot mapping: int64, one-dimensional."""
    view = view_of(given)
    if view is None or view.ndim != 1 or not is_writable(view, INT64_BYTES):
        allowed = "a writable one-dimensional C-contiguous int64 array"
        raise InvalidArgumentError(field, given, allowed)
    return view


def view_of(values: object) -> memoryview | None:
    """Return the memory of an array, or None if it exposes none."""
    numpy = getattr(values, "numpy", None)
    try:
        # PyTorch has no buffer protocol. A tensor on a device refuses.
        return memoryview(numpy() if callable(numpy) else values)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, BufferError):
        return None


def is_writable(view: memoryview, item_bytes: int) -> bool:
    """Return whether ints of this width can be written to a C-contiguous array."""
    return not view.readonly and view.c_contiguous and holds_ints(view, item_bytes)


def holds_ints(view: memoryview, *item_bytes: int) -> bool:
    """Return whether the elements are native signed ints of one of these widths.

    The format is i, l or q, as `array` and NumPy use it; the `<q` of ctypes does not count.
    """
    return view.format.removeprefix("@") in _SIGNED and view.itemsize in item_bytes
