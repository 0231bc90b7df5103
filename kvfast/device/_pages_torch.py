"""Operations on pages in plain torch: what the kernels of `_pages_triton.py` must equal.

Arguments are checked by the callers. Ids and slots that are out of range are led to the null block,
without a synchronisation: it is only ever written zeros, and what is read of it is replaced by 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvfast.device import _formats


def store_tokens(
    part: torch.Tensor,
    scales: torch.Tensor | None,
    tokens: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
) -> None:
    """Write `tokens` [n, heads, elements] to the slots of a part (KV-DEV-3, KV-DEV-4).

    With `scales` each vector is divided by a scale of its own, which is stored there, else by
    `scale`.
    """
    valid, blocks, offsets = _places(part, slots)
    if part.dtype == tokens.dtype:
        stored = tokens
    elif scales is None:
        divisor = torch.full((), scale, dtype=torch.float32, device=part.device)
        stored = _formats.encoded(_formats.decoded(tokens) / divisor, part.dtype)
    else:
        values = _formats.decoded(tokens)
        limit = torch.full((), _formats.LARGEST[part.dtype], device=part.device)
        # What is not a number has no size (KV-DEV-4).
        own = values.abs().nan_to_num(0.0, posinf=torch.inf).amax(dim=2) / limit
        own = torch.where(own == 0, torch.ones_like(own), own)
        stored = _formats.encoded(values / own[:, :, None], part.dtype)
        scales[blocks, offsets] = torch.where(valid[:, None], own, torch.zeros_like(own))
    words = _formats.bits(stored.contiguous())
    words = torch.where(valid[:, None, None], words, torch.zeros_like(words))
    _formats.bits(part)[blocks, offsets] = words


def load_tokens(
    part: torch.Tensor,
    scales: torch.Tensor | None,
    slots: torch.Tensor,
    dtype: torch.dtype,
    scale: float,
) -> torch.Tensor:
    """Read slots of a part as [n, heads, elements]; 0 where a slot is none (KV-DEV-3)."""
    valid, blocks, offsets = _places(part, slots)
    stored = _formats.bits(part)[blocks, offsets].view(part.dtype)
    if part.dtype == dtype:
        result = stored
    else:
        factor = torch.full((), scale, dtype=torch.float32, device=part.device)
        values = _formats.decoded(stored)
        values = values * (factor if scales is None else scales[blocks, offsets][:, :, None])
        result = _formats.encoded(values, dtype)
    words = _formats.bits(result)
    return torch.where(valid[:, None, None], words, torch.zeros_like(words)).view(dtype)


def _places(part: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, ...]:
    num_blocks, block_size = part.shape[:2]
    valid = (slots >= block_size) & (slots < num_blocks * block_size)
    inside = torch.where(valid, slots, torch.zeros_like(slots))
    return valid, inside // block_size, inside % block_size


def copy_pages(
    sources: Sequence[torch.Tensor],
    destinations: Sequence[torch.Tensor],
    source_ids: torch.Tensor,
    destination_ids: torch.Tensor,
) -> None:
    """Copy page i of each source, uint8 [blocks, bytes], to its destination (KV-DEV-5)."""
    for source, destination in zip(sources, destinations, strict=True):
        valid = _in_range(source_ids, 0, source) & _in_range(destination_ids, 1, destination)
        first = torch.where(valid, source_ids, torch.zeros_like(source_ids))
        second = torch.where(valid, destination_ids, torch.zeros_like(destination_ids))
        pages = source[first.to(source.device)].to(destination.device)
        # Where a pair is skipped, the null block is given what it has.
        keeps = valid.to(destination.device)[:, None]
        second = second.to(destination.device)
        destination[second] = torch.where(keeps, pages, torch.zeros_like(pages))


def zero_pages(pages: Sequence[torch.Tensor], ids: torch.Tensor) -> None:
    """Zero the pages of blocks (KV-DEV-6)."""
    for one in pages:
        # Not `one[…] = 0`: on a GPU that copies the 0 there, and waits.
        one.index_fill_(
            0, torch.where(_in_range(ids, 1, one), ids, torch.zeros_like(ids)).long(), 0
        )


def _in_range(ids: torch.Tensor, lowest: int, pages: torch.Tensor) -> torch.Tensor:
    return (ids >= lowest) & (ids < pages.shape[0])
