"""Mistakes of the device plane: each changes one function, and one check of the tests sees it.

`@mistake(check, owner, name, *rules)` above a function makes a value of it: the function stands for
`owner.name`, and is given the right one first. Its docstring says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial, wraps
from random import Random
from typing import Any
from unittest.mock import patch

import torch

from kvfast.device import RunDifferenceError, Transfer
from kvfast.device.base import layout
from kvfast.device.hashing import plain as hashing
from kvfast.device.index import plain as index
from kvfast.device.index.keys import Changes, Keys
from kvfast.device.index.table import EMPTY
from kvfast.device.pages import formats
from kvfast.device.pages import plain as pages
from kvfast.device.tier.offload import Offload
from kvfast.device.tier.streams import CudaStreams
from tests.device import (
    test_hashing,
    test_operations,
    test_pools,
    test_prefix_table,
    test_swap,
)
from tests.device.models import full, mamba
from tests.device.prefixes import play

Check = Callable[[], object]
SEEN = (AssertionError, IndexError, RunDifferenceError, RuntimeError)
"""How checks fail."""


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong: what, the rules it breaks, how it is made, which check sees it."""

    id: str
    rules: tuple[str, ...]
    about: str
    make: Callable[[], AbstractContextManager[object]]
    check: Check


def mistake(
    check: Check, owner: object, name: str, *rules: str
) -> Callable[[Callable[..., Any]], Mistake]:
    """See above."""

    def made(wrong: Callable[..., Any]) -> Mistake:
        right = getattr(owner, name)

        @wraps(right)
        def broken(*given: Any, **options: Any) -> Any:
            return wrong(right, *given, **options)

        make = partial(patch.object, owner, name, broken)
        return Mistake(wrong.__name__, rules, wrong.__doc__ or "", make, check)

    return made


# Pages.


def written() -> None:
    test_operations.test_a_token_is_written_to_its_slot_and_read_from_it("torch")


def copied() -> None:
    test_operations.test_slots_are_copied_with_their_scales("torch", "FP8_PER_TOKEN_HEAD")


def rounded() -> None:
    test_operations.test_what_is_stored_is_the_nearest_number_of_the_format("float8_e4m3fn")


def scaled() -> None:
    test_operations.test_latents_go_through_the_same_operations("torch")


def zeroed() -> None:
    for spec in (full(), mamba()):
        test_operations.test_zeroed_blocks_are_zero_and_no_others("torch", spec, [1, 6, 1])


def swapped() -> None:
    test_swap.there_and_back([1, 2, 3, 4, 5, 6], [3, 1, 2], 3, "torch")


def laid_out() -> None:
    name = "a_page_has_the_bytes_that_planning_counts_and_no_two_elements_share_one"
    getattr(test_pools, f"test_{name}")(full(), "HND")


@mistake(written, pages, "_places", "KV-DEV-3")
def next_slot(right: Any, part: Any, slots: torch.Tensor) -> Any:
    """A token goes to the slot behind its own."""
    return right(part, torch.where(slots > 0, slots + 1, slots))


@mistake(written, pages, "_places", "KV-DEV-3")
def block_and_offset_are_swapped(right: Any, part: torch.Tensor, slots: Any) -> Any:
    """The slot's block is taken for its offset."""
    valid, blocks, offsets = right(part, slots)
    return valid, offsets, blocks % part.shape[1]


@mistake(written, pages, "_places", "KV-DEV-3")
def padding_goes_to_block_one(right: Any, part: Any, slots: Any) -> Any:
    """A padded token is written."""
    valid, blocks, offsets = right(part, slots)
    return torch.ones_like(valid), torch.where(valid, blocks, 1), offsets


@mistake(rounded, formats, "encoded", "KV-DEV-4")
def numbers_are_cut_off(right: Any, values: torch.Tensor, dtype: torch.dtype) -> Any:
    """Towards zero, not to the nearest."""
    if dtype in formats.LARGEST:
        values = (values.view(torch.int32) & ~0xFFFFF).view(torch.float32)
    return right(values, dtype)


@mistake(scaled, formats, "encoded", "KV-DEV-4")
def too_large_is_not_a_number(right: Any, values: torch.Tensor, dtype: torch.dtype) -> Any:
    """What is too large becomes NaN."""
    if dtype in formats.LARGEST:
        values = torch.where(values.abs() > formats.LARGEST[dtype], torch.nan, values)
    return right(values, dtype)


@mistake(zeroed, pages, "zero_pages", "KV-DEV-6")
def only_first_pages_are_zeroed(right: Any, segments: Any, ids: Any) -> None:
    """Other allocations are left."""
    right(replace(segments, pages=segments.pages[:1]), ids)


@mistake(zeroed, pages, "zero_pages", "KV-DEV-6")
def padding_is_not_zeroed(right: Any, segments: Any, ids: Any) -> None:
    """Half of a page is left."""
    halves = tuple(one[:, : one.shape[1] // 2] for one in segments.pages)
    right(replace(segments, pages=halves), ids)


@mistake(swapped, pages, "copy_pages", "KV-DEV-5", "KV-DEV-8")
def copies_go_the_other_way(right: Any, source: Any, destination: Any, *ids: Any) -> None:
    """From destinations to sources."""
    right(destination, source, *ids[::-1])


@mistake(swapped, pages, "copy_pages", "KV-DEV-5", "KV-DEV-8")
def only_first_allocations_are_copied(right: Any, *given: Any) -> None:
    """One tensor of the cache."""
    first = (replace(one, pages=one.pages[:1]) for one in given[:2])
    right(*first, *given[2:])


@mistake(copied, pages, "store_tokens", "KV-DEV-5")
def scales_are_not_copied(right: Any, part: torch.Tensor, *given: Any) -> None:
    """Copied slots keep their old scales, which are vectors of one element."""
    if part.shape[3] > 1:
        right(part, *given)


@mistake(laid_out, layout, "Part", "KV-DEV-1")
def parts_lie_over_each_other(right: Any, *given: Any) -> Any:
    """Values begin where keys do."""
    return right(*given[:-1], 0)


# Hashing.


@mistake(test_hashing.some_hashes, hashing, "messages", "KV-DEV-18")
def all_have_the_first_parent(right: Any, tokens: Any, parent: torch.Tensor) -> Any:
    """The chain is that of the first prompt."""
    return right(tokens, parent[:1].expand_as(parent))


@mistake(test_hashing.some_hashes, hashing, "messages", "KV-DEV-18")
def tokens_have_32_bits(right: Any, tokens: torch.Tensor, parent: Any) -> Any:
    """What is above is lost."""
    return right(tokens & 0xFFFFFFFF, parent)


@mistake(test_hashing.some_hashes, hashing, "sha256", "KV-DEV-18")
def only_the_first_chunk_counts(right: Any, message: Any, num_chunks: torch.Tensor) -> Any:
    """Messages are cut."""
    return right(message, torch.ones_like(num_chunks))


@mistake(test_hashing.some_hashes, hashing, "sha256", "KV-DEV-18")
def all_chunks_count(right: Any, message: Any, num_chunks: torch.Tensor) -> Any:
    """Also those behind the end."""
    return right(message, torch.full_like(num_chunks, 99))


@mistake(test_hashing.some_hashes, hashing, "bytes_of", "KV-DEV-18")
def the_least_byte_comes_first(right: Any, words: Any) -> Any:
    """Words have their bytes in the other order."""
    return right(words).unflatten(1, (-1, 4)).flip(2).flatten(1)


@mistake(test_hashing.some_hashes, hashing, "_rounds", "KV-DEV-18")
def words_come_backwards(right: Any, state: Any, words: torch.Tensor) -> Any:
    """The last word of a chunk is the first."""
    return right(state, words.flip(1))


@mistake(test_hashing.some_hashes, hashing, "max_chunks", "KV-DEV-18")
def tokens_take_five_bytes(right: Any, block_size_tokens: int) -> Any:
    """There is no room for wide ones."""
    return -(-(hashing.ARRAY + 5 * block_size_tokens + 15) // 64)


# The index.


def hits() -> None:
    for seed in range(4):
        play(seed, ["torch"], 6, use_eagle=bool(seed % 2))


def table() -> None:
    for seed in range(6):
        test_prefix_table.check_table("torch", Random(seed), 30, 3)


@mistake(hits, index, "lookup", "KV-DEV-19")
def what_is_behind_a_gap_counts(
    right: Any, table: Any, prompts: Any, hashes: Any, num_dropped: int, span_tokens: int
) -> torch.Tensor:
    """All that is found, not the leading run."""
    owner = torch.repeat_interleave(torch.arange(len(prompts)), prompts.counts)
    run = torch.zeros(len(prompts), dtype=torch.int64)
    run.index_add_(0, owner, index.is_found(table, hashes).long())
    return ((run - num_dropped).clamp(min=0) * span_tokens).int()


@mistake(hits, index, "lookup", "KV-DEV-19")
def nothing_is_dropped(right: Any, table: Any, prompts: Any, hashes: Any, _: int, span: int) -> Any:
    """With EAGLE the last block counts, too."""
    return right(table, prompts, hashes, 0, span)


@mistake(hits, index, "is_found", "KV-DEV-19")
def the_dead_are_found(right: Any, table: Any, hashes: Any) -> Any:
    """Entries that left count."""
    return right(replace(table, is_live=torch.ones_like(table.is_live)), hashes)


@mistake(hits, index, "insert", "KV-DEV-19")
def the_first_is_not_inserted(right: Any, table: Any, first: int, end: int) -> None:
    """One entry has no slot."""
    right(table, first + 1, end)


@mistake(hits, Keys, "take_changes", "KV-DEV-19")
def nobody_lives_again(right: Any, self: Any) -> Changes:
    """Keys that come back stay dead."""
    changes: Changes = right(self)
    return replace(changes, lives=dict.fromkeys(changes.lives, 0))


@mistake(table, index, "is_found", "KV-DEV-19")
def the_first_words_are_the_hash(right: Any, table: Any, hashes: torch.Tensor) -> Any:
    """The last word is not compared."""
    live = table.hashes[table.is_live != 0]
    return (hashes[:, None, :7] == live[None, :, :7]).all(2).any(1)


@mistake(table, index, "is_found", "KV-DEV-19")
def only_the_home_is_searched(right: Any, table: Any, hashes: torch.Tensor) -> Any:
    """Displaced entries are not found."""
    entry = table.slots[hashes[:, 0].long() & table.slot_mask].long()
    there = torch.where(entry < EMPTY, entry, 0)
    return (entry < EMPTY) & (table.hashes[there] == hashes).all(1) & (table.is_live[there] != 0)


@mistake(table, index, "insert", "KV-DEV-19")
def slots_depend_on_the_order(right: Any, table: Any, first: int, end: int) -> None:
    """The last comes first."""
    for entry in reversed(range(first, end)):
        right(table, entry, entry + 1)
    table.slots.copy_(table.slots.flip(0))


# Swaps.


def unawaited(swap: Callable[..., Transfer]) -> Callable[..., Transfer]:
    """Its transfers seem to have ended."""

    def broken(*blocks: Any) -> Transfer:
        swap(*blocks)
        return Transfer(None)

    return broken


ordered: Check = test_swap.test_a_swap_is_ordered_on_the_pools_device_whichever_is_current


def offloaded() -> None:
    assert all(test_swap.offloaded(num_spare)[0] for num_spare in (6, 5, 3, 2, 1))


@mistake(ordered, CudaStreams, "wait", "KV-DEV-8")
def the_current_device_waits(right: Any, self: Any, event: Any) -> None:
    """Not that of the pools."""
    torch.cuda.current_stream().wait_event(event)


@mistake(ordered, CudaStreams, "wait", "KV-DEV-8")
def nobody_waits(right: Any, self: Any, event: Any) -> None:
    """What computes goes on at once."""


@mistake(ordered, CudaStreams, "start", "KV-DEV-8")
def a_copy_starts_at_once(right: Any, self: Any, work: Any, used: Any) -> Any:
    """It does not wait for what was computed."""
    with patch.object(type(self._copying), "wait_stream", lambda *_: None):
        return right(self, work, used)


@mistake(ordered, CudaStreams, "start", "KV-DEV-8")
def the_event_comes_too_early(right: Any, self: Any, work: Any, used: Any) -> Any:
    """Before the copy that it stands for."""
    self._copying.wait_stream(torch.cuda.current_stream(self._device))
    with torch.cuda.stream(self._copying):
        event = self._copying.record_event()
        work()
    for tensor in used:
        tensor.record_stream(self._copying)
    return event


@mistake(offloaded, Offload, "__init__", "KV-DEV-8")
def spare_blocks_are_used_too_early(right: Any, self: Any, *given: Any) -> None:
    """Nobody waits for the copy that reads them."""
    right(self, *given)
    self._out.swap_out = unawaited(self._out.swap_out)


MISTAKES = tuple(one for one in list(globals().values()) if isinstance(one, Mistake))
