"""Checks of ids, slots, tokens and scales, all before anything is touched (KV-DEV-7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from kvfast.device.base.memory import sent
from kvfast.device.pages import formats
from kvspec.domains import is_int
from kvspec.errors import InvalidArgumentError

Ids: TypeAlias = Sequence[int] | torch.Tensor
"""Block ids or slots: ints, or a one-dimensional int32 or int64 tensor."""

IDS = "a sequence of ints, or a one-dimensional int32 or int64 tensor"
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, (2.0 - 2.0**-23) * 2.0**127
"""Normal numbers of float32: scales are divided by in that format (KV-DEV-4)."""


def ids_on(
    field: str,
    ids: Ids,
    device: torch.device,
    *,
    lowest: int,
    limit: int,
    skipped: int | None = None,
) -> torch.Tensor:
    """Return the ids as a contiguous tensor on `device`.

    Those in host memory must lie in `lowest` … `limit` - 1, or be `skipped`. Those on a device are
    not read here, which would wait for it. Operations skip what is out of range.
    """
    if isinstance(ids, torch.Tensor):
        is_plain = ids.layout == torch.strided and ids.dim() == 1
        if not is_plain or ids.dtype not in (torch.int32, torch.int64):
            shown = f"{ids.dtype} of shape {list(ids.shape)}, {ids.layout}"
            raise InvalidArgumentError(field, shown, IDS)
        if ids.device.type != "cpu" and ids.device != device:
            raise InvalidArgumentError(field, str(ids.device), f"on {device} or in host memory")
        tensor = ids.contiguous()  # kernels step over ids one by one
    else:
        if not isinstance(ids, Sequence):
            raise InvalidArgumentError(field, ids, IDS)
        for index, one in enumerate(ids):
            if not is_int(one) or abs(one) >= 2**63:
                raise InvalidArgumentError(f"{field}[{index}]", one, "an int of 64 bits")
        tensor = torch.tensor(ids, dtype=torch.int64)
    if tensor.device.type == "cpu":
        _check_range(field, tensor, lowest, limit, skipped)
        if device.type == "cuda":
            return sent(tensor, device)
    return tensor


def _check_range(
    field: str, ids: torch.Tensor, lowest: int, limit: int, skipped: int | None
) -> None:
    outside = (ids < lowest) | (ids >= limit)
    if skipped is not None:
        outside &= ids != skipped
    if outside.any():
        index = int(outside.nonzero()[0])
        allowed = f"in {lowest} … {limit - 1}" + ("" if skipped is None else f", or {skipped}")
        raise InvalidArgumentError(f"{field}[{index}]", int(ids[index]), allowed)


def check_same_length(field: str, ids: torch.Tensor, other: torch.Tensor) -> None:
    """Check that both have the same number of ids."""
    if ids.shape != other.shape:
        raise InvalidArgumentError(f"len({field})", ids.shape[0], f"{other.shape[0]}")


def check_disjoint(field: str, destinations: Ids, sources: Ids | None) -> None:
    """Check that no place is written twice, and none that is read; only what the host knows."""
    written = _known(destinations)
    seen = set[int]()
    read = set(_known(sources)) if sources is not None else set[int]()
    for index, one in enumerate(written):
        if one in seen or one in read:
            allowed = "named once" + (", and no source" if sources is not None else "")
            raise InvalidArgumentError(f"{field}[{index}]", one, allowed)
        seen.add(one)


def _known(ids: Ids) -> list[int]:
    if isinstance(ids, torch.Tensor):
        return ids.tolist() if ids.device.type == "cpu" else []
    return list(ids)


def check_tokens(field: str, tokens: object, part: torch.Tensor, num_tokens: int) -> None:
    """Check `tokens` [n, heads, elements], shaped as the part, in a format that fits it."""
    if not isinstance(tokens, torch.Tensor) or tokens.layout != torch.strided:
        raise InvalidArgumentError(field, tokens, "a dense tensor")
    shape = [num_tokens, *part.shape[2:]]
    if list(tokens.shape) != shape:
        raise InvalidArgumentError(f"{field}.shape", list(tokens.shape), f"{shape}")
    if tokens.device != part.device:
        raise InvalidArgumentError(f"{field}.device", str(tokens.device), str(part.device))
    if tokens.stride(2) != 1:
        raise InvalidArgumentError(f"{field}.stride()", tokens.stride(), "1 for the last axis")
    check_format(f"{field}.dtype", tokens.dtype, part.dtype)


def check_format(field: str, dtype: object, stored: torch.dtype) -> None:
    """Check that `dtype` is the stored one, or one of FLOATS if it can be converted."""
    convertible = stored in (*formats.STORED, torch.int8)
    legal = {stored, *(formats.FLOATS if convertible else ())}
    if not isinstance(dtype, torch.dtype) or dtype not in legal:
        known = ", ".join(str(one) for one in formats.FLOATS)
        allowed = f"{stored}" + (f" or one of {known}" if convertible else "")
        raise InvalidArgumentError(field, str(dtype), allowed)


def check_scale(field: str, scale: float, *, used: bool) -> None:
    """Check a scale: a normal number above 0, also as a float32; returns 1 if it is not used."""
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise InvalidArgumentError(field, scale, "a float")
    if not used and scale != 1:
        raise InvalidArgumentError(field, scale, "1.0: this format has no scale of the caller's")
    if not SMALLEST_SCALE <= scale <= LARGEST_SCALE:
        raise InvalidArgumentError(field, scale, "a normal float32 above 0 (2^-126 … 3.4e38)")
