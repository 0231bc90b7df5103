"""The rule of `formats.py` in integer arithmetic, bit for bit the same on every chip (KV-DEV-4).

Casts are not used: their behaviour at the edges (subnormal numbers, too large ones) differs between
chips, and the interpreter truncates instead of rounding. Each function has one return: the compiler
continues after a return in a branch, and would compile code of another format.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def encode(values, FORMAT: tl.constexpr):
    """Return the bits of float32 `values` in a format, as an integer of its width."""
    word = values.to(tl.int32, bitcast=True)
    if FORMAT == "float32":
        result = word
    elif FORMAT == "float16":
        result = values.to(tl.float16).to(tl.int16, bitcast=True)
    elif FORMAT == "bfloat16":
        rounded = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
        result = tl.where(values != values, (word >> 16) | 0x40, rounded).to(tl.int16)
    elif FORMAT == "int8":
        cut = tl.where(values == values, tl.minimum(tl.maximum(values, -127.0), 127.0), 0.0)
        result = (cut + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)  # 1.5 * 2^23
    else:
        size = word & 0x7FFFFFFF
        if FORMAT == "float8_e4m3fn":
            # Added to 2^14, whose last bit is worth 2^-9, a subnormal number is rounded to that.
            small = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.int32, bitcast=True)
            small = small - (141 << 23)
            cut = tl.minimum(size, 0x43E00000)  # 448
            normal = (cut - (120 << 23) + 0x7FFFF + ((cut >> 20) & 1)) >> 20
            bits = tl.where(size < (121 << 23), small, normal)
        else:
            tl.static_assert(FORMAT == "float8_e5m2")
            small = (size.to(tl.float32, bitcast=True) + 128.0).to(tl.int32, bitcast=True)
            small = small - (134 << 23)
            cut = tl.minimum(size, 0x47600000)  # 57344
            normal = (cut - (112 << 23) + 0xFFFFF + ((cut >> 21) & 1)) >> 21
            bits = tl.where(size < (113 << 23), small, normal)
        sign = (word >> 24) & 0x80
        result = (tl.where(values != values, 0x7F, bits) | sign).to(tl.int8)
    return result


@triton.jit
def decode(stored, FORMAT: tl.constexpr):
    """Return the float32 values of stored bits."""
    if FORMAT == "float32":
        values = stored.to(tl.float32, bitcast=True)
    elif FORMAT == "float16":
        values = stored.to(tl.float16, bitcast=True).to(tl.float32)
    elif FORMAT == "bfloat16":
        values = (stored.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    elif FORMAT == "int8":
        values = stored.to(tl.float32)
    else:
        word = stored.to(tl.int32)
        size = word & 0x7F
        if FORMAT == "float8_e4m3fn":
            # Its exponent has a bias of 7, that of float16 15: 2^8 compensates for it exactly.
            wide = (size << 7).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0
            bits = tl.where(size == 0x7F, 0x7FC00000, wide.to(tl.int32, bitcast=True))
        else:
            tl.static_assert(FORMAT == "float8_e5m2")
            wide = (size << 8).to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32)
            bits = wide.to(tl.int32, bitcast=True)
        values = (bits | ((word & 0x80) << 24)).to(tl.float32, bitcast=True)
    return values
