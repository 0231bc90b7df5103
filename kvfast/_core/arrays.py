"""Flat arrays that start as zeros.

Large ones are anonymous memory maps: the system provides their zero pages when they are first
written, so a pool of 4 million blocks exists at once and costs what it uses.
"""

from __future__ import annotations

import mmap
from array import array

LARGE_BYTES = 1 << 18
"""From this size on a map is cheaper than writing zeros."""

LINE_BYTES = 64
"""Arrays begin where a cache line does; maps do anyway."""

HUGE_PAGE_BYTES = 1 << 21
"""Maps are multiples of this size, so that the system can use huge pages, whose addresses fit in
the processor's TLB. With small pages nearly every block of a large pool would miss it.
"""


def zeroed(code: str, length: int) -> memoryview[int]:
    """Return `length` zeros of an array type: "i" 32 bits, "q" and "Q" 64 bits, "B" bytes."""
    size_bytes = max(length, 1) * array(code).itemsize
    if size_bytes < LARGE_BYTES:
        memory = array("B", bytes(size_bytes + LINE_BYTES))
        first = -memory.buffer_info()[0] % LINE_BYTES
        return memoryview(memory)[first : first + size_bytes].cast(code)[:length]  # type: ignore[call-overload, no-any-return]  # any code
    size_bytes += -size_bytes % HUGE_PAGE_BYTES
    if hasattr(mmap, "MAP_PRIVATE"):
        region = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    else:
        region = mmap.mmap(-1, size_bytes)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        region.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(region).cast(code)[:length]  # type: ignore[call-overload, no-any-return]  # any code


def grown(code: str, old: memoryview[int], length: int) -> memoryview[int]:
    """Copy `old` into an array of `length` values; the rest is zeros."""
    new = zeroed(code, length)
    new[: len(old)] = old
    return new


def int_view(values: object) -> memoryview[int] | None:
    """Return the memory of a one-dimensional array of 32- or 64-bit signed ints, else None.

    Accepts `array`, NumPy arrays and, through `numpy`, PyTorch tensors on the host.
    """
    if not callable(getattr(values, "tolist", None)):
        return None  # values without `tolist` are read as a sequence
    numpy = getattr(values, "numpy", None)
    try:
        view = memoryview(numpy() if callable(numpy) else values)  # type: ignore[arg-type]  # tried
    except (TypeError, ValueError, RuntimeError, BufferError):
        return None  # no buffer, or a tensor of a device: `tolist` knows better
    if view.format not in ("i", "l", "q") or view.ndim != 1 or not view.c_contiguous:
        return None
    return view
