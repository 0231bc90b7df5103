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

from kvfast.device import DeviceTables, ResidentDecode, RunDifferenceError, Transfer
from kvfast.device.base import layout
from kvfast.device.hashing import plain as hashing
from kvfast.device.index import plain as index
from kvfast.device.index.keys import Changes, Keys
from kvfast.device.index.table import EMPTY
from kvfast.device.pages import formats
from kvfast.device.pages import plain as pages
from kvfast.device.resident import plain as resident
from kvfast.device.resident import plan
from kvfast.device.resident.state import MAX_STEPS, NUM_REQUESTS, NUM_RESERVED, NUM_TAKEN
from kvfast.device.tables.batch import Batch
from kvfast.device.tables.handover import Loan
from kvfast.device.tables.lengths import Lengths
from kvfast.device.tables.side import DeviceSide
from kvfast.device.tier.offload import Offload
from kvfast.device.tier.streams import CudaStreams
from tests.device import (
    test_hashing,
    test_operations,
    test_pools,
    test_prefix_index,
    test_prefix_table,
    test_resident,
    test_swap,
    test_tables,
    test_waiting,
)
from tests.device.models import full, mamba

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


def is_test(check: Any) -> bool:
    return str(check.__name__).startswith("test_")


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


# Tables.


steps: Check = test_tables.test_tables_are_what_the_manager_answers_after_every_step


@mistake(steps, DeviceTables, "_stage", "KV-DEV-10")
def a_delta_is_missed(right: Any, *given: Any, **options: Any) -> Any:
    """The last row of a step stays behind."""
    self, handles, num, rows, *changed = given
    return right(self, handles, num, rows[:-1], *changed)


@mistake(steps, DeviceTables, "rewind", "KV-DEV-11")
def a_rewind_is_forgotten(right: Any, *given: Any) -> None:
    """Rejected drafts stay computed."""


@mistake(steps, DeviceTables, "_stage", "KV-DEV-11")
def a_release_is_forgotten(right: Any, *given: Any) -> Any:
    """The next request of a row goes on where the last one ended."""
    return right(*given[:4])


@mistake(steps, DeviceTables, "step", "KV-DEV-11")
def a_hit_is_forgotten(right: Any, self: Any, plan: Any, result: Any, deltas: Any) -> Any:
    """New requests begin at 0."""
    none = torch.zeros(len(result.hit_tokens), dtype=torch.int64)
    return right(self, plan, replace(result, hit_tokens=none), deltas)


@mistake(steps, DeviceTables, "read_rows", "KV-DEV-9")
def moved_blocks_are_left(right: Any, *given: Any) -> None:
    """Groups whose blocks move are told like the others."""


@mistake(steps, DeviceTables, "write", "KV-DEV-10")
def late_rows_are_forgotten(right: Any, *given: Any) -> None:
    """Rows that did not fit are lost."""


@mistake(steps, DeviceTables, "_stage", "KV-DEV-12")
def a_batch_is_known_by_its_handles(
    right: Any, self: Any, handles: Any, num: Any, *more: Any
) -> Any:
    """The same requests with other counts are taken for the same batch."""
    last = self._batch
    if torch.equal(torch.as_tensor(handles), last.handles):
        self._batch = Batch(last.handles, torch.as_tensor(num), last.rows, last.granted)
    return right(self, handles, num, *more)


@mistake(steps, DeviceSide, "send", "KV-DEV-10")
def a_long_message_is_cut(right: Any, self: Any, entries: Any, *given: Any, **options: Any) -> Any:
    """Of a message that is too long only the end is sent."""
    return right(self, tuple(part[-self.max_entries :] for part in entries), *given, **options)


@mistake(steps, DeviceSide, "take_over", "KV-DEV-9")
def growth_begins_empty(right: Any, *given: Any) -> None:
    """More rows, and nothing in them."""


@mistake(steps, DeviceTables, "_stage", "KV-DEV-9", "KV-DEV-10")
def rows_have_another_width(right: Any, self: Any, *given: Any) -> Any:
    """The host counts a row one entry shorter than the device."""
    self._entries._widths = self._entries._widths - 1
    try:
        return right(self, *given)
    finally:
        self._entries._set_offsets()


staged: Check = test_waiting.test_a_buffer_is_not_written_while_a_copy_reads_it


@mistake(staged, test_waiting.Event, "synchronize", "KV-DEV-13")
def a_buffer_is_written_too_early(right: Any, self: Any) -> None:
    """Nobody waits for the copy that reads it."""


a_step: Check = test_waiting.test_a_step_never_waits_for_the_device


@mistake(a_step, DeviceSide, "outputs", "KV-DEV-13")
def the_host_reads_a_number(right: Any, self: Any) -> None:
    """A length that the device has."""
    right(self)
    self.state.num_computed.max().item()


@mistake(a_step, DeviceSide, "outputs", "KV-DEV-13")
def the_host_picks_by_a_mask(right: Any, self: Any) -> None:
    """How many there are is known on the device alone."""
    right(self)
    assert self.state.entries[self.state.entries > 0].dim()


@mistake(a_step, DeviceSide, "outputs", "KV-DEV-13")
def the_host_copies_an_array(right: Any, self: Any) -> None:
    """From the device, at once."""
    right(self)
    torch.empty(2, dtype=torch.int32).copy_(self.state.rows)


# Resident steps.


runs: Check = test_resident.test_random_runs_between_random_steps


@mistake(runs, resident, "decide", "KV-DEV-15")
def blocks_come_from_the_back(right: Any, state: Any, run: Any, geometry: Any) -> None:
    """The last block of the reserve is taken first."""
    num, turned = int(run.control[NUM_RESERVED]), run.reserve.clone()
    turned[:num] = run.reserve[:num].flip(0)
    right(state, replace(run, reserve=turned), geometry)


def taken(right: Any, state: Any, run: Any, geometry: Any) -> torch.Tensor:
    """Decide; where the blocks of the step were written to."""
    before = int(run.control[NUM_TAKEN])
    right(state, run, geometry)
    return run.log[before : int(run.control[NUM_TAKEN])].long()  # type: ignore[no-any-return] # Any


@mistake(runs, resident, "decide", "KV-DEV-15")
def groups_take_one_after_another(right: Any, state: Any, *given: Any) -> None:
    """All blocks of the first group, then all of the second."""
    at = taken(right, state, *given)
    state.entries[at.sort().values] = state.entries[at].clone()


@mistake(runs, resident, "decide", "KV-DEV-15")
def the_last_request_takes_first(right: Any, state: Any, *given: Any) -> None:
    """Requests take in the wrong order."""
    at = taken(right, state, *given)
    state.entries[at] = state.entries[at].flip(0)


@mistake(runs, resident, "decide", "KV-DEV-15")
def a_block_is_taken_too_early(right: Any, state: Any, *given: Any) -> None:
    """When the last one is full, not when the next token comes."""
    state.num_computed.add_(1)
    right(state, *given)
    state.num_computed.sub_(1)


@mistake(runs, resident, "decide", "KV-DEV-15")
def ended_requests_go_on(right: Any, state: Any, run: Any, geometry: Any) -> None:
    """Until the run ends."""
    run.left[: int(run.control[NUM_REQUESTS])] = 2
    right(state, run, geometry)


@mistake(runs, resident, "decide", "KV-DEV-15")
def lists_are_not_counted(right: Any, state: Any, run: Any, geometry: Any) -> None:
    """The next block is taken for the same entry."""
    before = run.lengths.clone()
    right(state, run, geometry)
    run.lengths.copy_(before)


@mistake(runs, resident, "decide", "KV-DEV-15")
def lengths_stay(right: Any, state: Any, *given: Any) -> None:
    """Tokens are granted, and the rows are as long as before."""
    before = state.num_computed.clone()
    right(state, *given)
    state.num_computed.copy_(before)


@mistake(runs, resident, "decide", "KV-DEV-16")
def unplanned_steps_go_on(right: Any, state: Any, run: Any, geometry: Any) -> None:
    """As many as are launched."""
    run.control[MAX_STEPS] = 1000
    right(state, run, geometry)


@mistake(runs, Loan, "outputs", "KV-DEV-11", "KV-DEV-15")
def slots_are_those_of_the_step_before(right: Any, self: Any, num: int, longest: int) -> Any:
    """Nothing is computed after the decision."""
    return self.tables._device.step(num, num, 1, longest)


@mistake(runs, plan, "has_windows", "KV-DEV-15", "KV-POOL-6")
def windows_are_forgotten(right: Any, config: Any) -> bool:
    """A block without a key may come back during a run."""
    return False


@mistake(runs, Lengths, "add_computed", "KV-DEV-17")
def the_host_does_not_hear_the_lengths(right: Any, *given: Any) -> None:
    """After a run it knows those of before."""


def a_batch_from_before_a_run() -> None:
    test_resident.test_a_batch_from_before_the_run_is_told_again("torch")


@mistake(a_batch_from_before_a_run, Loan, "end", "KV-DEV-17")
def the_batch_is_kept(right: Any, self: Any, *given: Any) -> None:
    """The host believes that the device has the batch of the step before the run."""
    batch = self.tables._batch
    right(self, *given)
    self.tables._batch = batch


@mistake(runs, ResidentDecode, "_computed", "KV-DEV-15")
def runs_are_planned_a_token_short(right: Any, *given: Any) -> Any:
    """Blocks are counted as if one token less were computed."""
    return right(*given) - 1


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
        test_prefix_index.play(seed, ["torch"], 6, use_eagle=bool(seed % 2))


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
CHECKS: tuple[Check, ...] = tuple(
    dict.fromkeys(one.check for one in MISTAKES if not is_test(one.check))
)
"""Those that do not run as tests anyway."""
