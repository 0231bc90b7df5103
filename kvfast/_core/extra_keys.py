"""Extra keys of a block: adapter, items, salt, embeddings (KV-HASH-7)."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import TypeAlias

from kvspec.events import ExtraKey, ExtraKeys
from kvspec.request import MultimodalItem, RequestInput

TaggedKeys: TypeAlias = "tuple[tuple[str | int | bytes | None, ...], ...] | None"
"""Extra keys with the kind of each before it."""


def has_extra_keys(request: RequestInput) -> bool:
    """Return whether a block of the request may have extra keys."""
    return bool(
        request.lora is not None
        or request.multimodal
        or request.cache_salt is not None
        or request.prompt_embeddings is not None
    )


def extra_keys(request: RequestInput, start: int, end: int) -> ExtraKeys:
    """Return the extra keys of the block of tokens `start` … `end - 1`, None if none (KV-HASH-7).

    They are without their kinds, as in events. O(log(items) + items in the block).
    """
    keys: list[ExtraKey] = []
    if request.lora is not None:
        keys.append(request.lora.name)
    items = request.multimodal
    for i in range(_first_item(items, start), len(items)):  # KV-HASH-8
        if items[i].offset >= end:
            break
        keys.append((items[i].identifier, items[i].offset - start))
    if start == 0 and request.cache_salt is not None:  # KV-HASH-10
        keys.append(request.cache_salt)
    if request.prompt_embeddings is not None:  # KV-HASH-9
        width = request.prompt_embeddings.bytes_per_token
        data = request.prompt_embeddings.data[start * width : end * width]
        keys.append(hashlib.sha256(data).digest())
    return tuple(keys) or None


def tagged(request: RequestInput, keys: ExtraKeys) -> TaggedKeys:
    """Return the extra keys of a block of the request with their kinds (KV-HASH-7).

    Types distinguish items and digests; of two texts the first is the adapter's name.
    """
    if keys is None:
        return None
    found: list[tuple[str | int | bytes | None, ...]] = []
    lora = request.lora
    for key in keys:
        if isinstance(key, tuple):
            found.append(("mm", key[0], key[1]))
        elif isinstance(key, bytes):
            found.append(("prompt_embeds", key))
        elif lora is not None and not found:
            found.append(("lora", key, lora.path))
        else:
            found.append(("cache_salt", key))
    return tuple(found)


def runs(
    request: RequestInput, block_size: int, first: int, end: int, ahead: int
) -> Iterator[tuple[int, int, ExtraKeys]]:
    """Split the blocks `first` … `end - 1` where extra keys change: (from, to, extra keys).

    Each block counts with the `ahead` tokens after it. An adapter alone gives one run of all
    blocks, a salt two; a block with an item is a run by itself.
    """
    while first < end:
        start = first * block_size
        until = min(end, _next_change(request, block_size, first, ahead))
        yield first, until, extra_keys(request, start, start + block_size + ahead)
        first = until


def _next_change(request: RequestInput, block_size: int, block: int, ahead: int) -> int:
    """Return the next block whose extra keys may differ, or 2^63 - 1, beyond every block."""
    start = block * block_size
    embeddings = request.prompt_embeddings
    if embeddings is not None and start * embeddings.bytes_per_token < len(embeddings.data):
        return block + 1
    if block == 0 and request.cache_salt is not None:
        return 1
    i = _first_item(request.multimodal, start)
    if i == len(request.multimodal):
        return 2**63 - 1
    # At least one further: this block may overlap the item.
    return max(block + 1, (request.multimodal[i].offset - ahead) // block_size)


def _first_item(items: tuple[MultimodalItem, ...], start: int) -> int:
    """Return the index of the first item that ends after token `start` (KV-REQ-4)."""
    return bisect_right(items, start, key=_end_of)


def _end_of(item: MultimodalItem) -> int:
    return item.offset + item.length
