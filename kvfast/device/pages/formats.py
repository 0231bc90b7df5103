"""How numbers are stored: one exact rule for every format, in torch (KV-DEV-4).

A value is rounded to the nearest number of the format, ties to even. A too large value becomes the
largest number of an 8-bit format, else infinity; NaN stays NaN, and is 0 as an int8.
`format_kernels.py` does the same in integer arithmetic.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

LARGEST: Mapping[torch.dtype, float] = {
    torch.float8_e4m3fn: 448.0,
    torch.float8_e5m2: 57344.0,
    torch.int8: 127.0,
}
"""Largest finite number of the formats that are cut off."""

BITS_OF_BYTES: Mapping[int, torch.dtype] = {
    1: torch.int8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Formats in which keys and values are passed in and returned."""

STORED = (*FLOATS, torch.float8_e4m3fn, torch.float8_e5m2)
"""Formats that values are converted to and from."""


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same memory as integers of the same width."""
    return tensor.view(BITS_OF_BYTES[tensor.element_size()])


def encoded(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Convert float32 `values` to the format `dtype` (KV-DEV-4)."""
    largest = LARGEST.get(dtype)
    if largest is not None:
        values = values.clamp(-largest, largest)
    if dtype == torch.int8:
        values = values.nan_to_num(0.0).round()
    return values.to(dtype)


def decoded(stored: torch.Tensor) -> torch.Tensor:
    """Convert stored numbers to float32, exactly."""
    return stored.to(torch.float32)
