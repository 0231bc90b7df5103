"""Operations on pages in plain torch: what the kernels of `kernels.py` must equal.

Arguments are checked by the callers. Ids and slots that are out of range are led to the null block,
without a synchronisation: it is only ever written zeros, and what is read of it is replaced by 0.
"""

from __future__ import annotations

import torch

from kvfast.device.pages import formats
from kvfast.device.pages.segments import Segments


def store_tokens(
    part: torch.Tensor,
    scales: torch.Tensor | None,
    tokens: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
) -> None:
    """Write `tokens` [n, heads, elements] to the slots of a part (KV-DEV-3, KV-DEV-4).

    With `scales` each vector is divided by its own scale, which is stored there, else by `scale`.
    """
    valid, blocks, offsets = _places(part, slots)
    if part.dtype == tokens.dtype:
        stored = tokens
    elif scales is None:
        divisor = torch.full((), scale, dtype=torch.float32, device=part.device)
        stored = formats.encoded(formats.decoded(tokens) / divisor, part.dtype)
    else:
        values = formats.decoded(tokens)
        limit = torch.full((), formats.LARGEST[part.dtype], device=part.device)
        # NaN has no size (KV-DEV-4).
        own = values.abs().nan_to_num(0.0, posinf=torch.inf).amax(dim=2) / limit
        own = torch.where(own == 0, torch.ones_like(own), own)
        stored = formats.encoded(values / own[:, :, None], part.dtype)
        scales[blocks, offsets] = torch.where(valid[:, None], own, torch.zeros_like(own))
    words = formats.bits(stored.contiguous())
    words = torch.where(valid[:, None, None], words, torch.zeros_like(words))
    formats.bits(part)[blocks, offsets] = words


def load_tokens(
    part: torch.Tensor,
    scales: torch.Tensor | None,
    slots: torch.Tensor,
    dtype: torch.dtype,
    scale: float,
) -> torch.Tensor:
    """Read slots of a part as [n, heads, elements]; 0 where a slot is none (KV-DEV-3)."""
    valid, blocks, offsets = _places(part, slots)
    stored = formats.bits(part)[blocks, offsets].view(part.dtype)
    if part.dtype == dtype:
        result = stored
    else:
        factor = torch.full((), scale, dtype=torch.float32, device=part.device)
        values = formats.decoded(stored)
        values = values * (factor if scales is None else scales[blocks, offsets][:, :, None])
        result = formats.encoded(values, dtype)
    words = formats.bits(result)
    return torch.where(valid[:, None, None], words, torch.zeros_like(words)).view(dtype)


def _places(part: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
    num_blocks, block_size = part.shape[:2]
    valid = (slots >= block_size) & (slots < num_blocks * block_size)
    inside = torch.where(valid, slots, torch.zeros_like(slots))
    return valid, inside // block_size, inside % block_size


def copy_pages(
    source: Segments, destination: Segments, read: torch.Tensor, written: torch.Tensor
) -> None:
    """Copy page `read[i]` of each source to page `written[i]` of its destination (KV-DEV-5)."""
    for pages, others in zip(source.pages, destination.pages, strict=True):
        valid = _in_range(read, 0, pages) & _in_range(written, 1, others)
        first = torch.where(valid, read, torch.zeros_like(read))
        second = torch.where(valid, written, torch.zeros_like(written))
        words = pages[first.to(pages.device)].to(others.device)
        # A skipped pair copies the null block to itself.
        keeps = valid.to(others.device)[:, None]
        others[second.to(others.device)] = torch.where(keeps, words, torch.zeros_like(words))


def zero_pages(segments: Segments, ids: torch.Tensor) -> None:
    """Zero the pages of blocks (KV-DEV-6)."""
    for pages in segments.pages:
        inside = torch.where(_in_range(ids, 1, pages), ids, torch.zeros_like(ids))
        # Not `pages[…] = 0`: on a GPU that copies the 0 there, and waits.
        pages.index_fill_(0, inside.long(), 0)


def _in_range(ids: torch.Tensor, lowest: int, pages: torch.Tensor) -> torch.Tensor:
    return (ids >= lowest) & (ids < pages.shape[0])
