"""Mistakes of tables, and of steps that the device decides alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from kvfast.device import DeviceTables, ResidentDecode
from kvfast.device.resident import plain as resident
from kvfast.device.resident import plan
from kvfast.device.resident.state import MAX_STEPS, NUM_REQUESTS, NUM_RESERVED, NUM_TAKEN
from kvfast.device.tables.arrays import DeviceArrays
from kvfast.device.tables.batch import Batch
from kvfast.device.tables.handover import Handover
from kvfast.device.tables.lengths import Lengths
from tests.device import test_resident, test_tables, test_waiting
from tests.device.mistakes import Check, Mistake, mistake

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


@mistake(steps, DeviceArrays, "send", "KV-DEV-10")
def a_long_message_is_cut(right: Any, self: Any, entries: Any, *given: Any, **options: Any) -> Any:
    """Of a message that is too long only the end is sent."""
    return right(self, tuple(part[-self.max_entries :] for part in entries), *given, **options)


@mistake(steps, DeviceArrays, "take_over", "KV-DEV-9")
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


@mistake(a_step, DeviceArrays, "outputs", "KV-DEV-13")
def the_host_reads_a_number(right: Any, self: Any) -> None:
    """A length that the device has."""
    right(self)
    self.state.num_computed.max().item()


@mistake(a_step, DeviceArrays, "outputs", "KV-DEV-13")
def the_host_picks_by_a_mask(right: Any, self: Any) -> None:
    """How many there are is known on the device alone."""
    right(self)
    assert self.state.entries[self.state.entries > 0].dim()


@mistake(a_step, DeviceArrays, "outputs", "KV-DEV-13")
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
    return run.log[before : int(run.control[NUM_TAKEN])].long()


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


@mistake(runs, Handover, "outputs", "KV-DEV-11", "KV-DEV-15")
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


@mistake(a_batch_from_before_a_run, Handover, "end", "KV-DEV-17")
def the_batch_is_kept(right: Any, self: Any, *given: Any) -> None:
    """The host believes that the device has the batch of the step before the run."""
    batch = self.tables._batch
    right(self, *given)
    self.tables._batch = batch


@mistake(runs, ResidentDecode, "_computed", "KV-DEV-15")
def runs_are_planned_a_token_short(right: Any, *given: Any) -> Any:
    """Blocks are counted as if one token less were computed."""
    return right(*given) - 1


MISTAKES = tuple(one for one in list(globals().values()) if isinstance(one, Mistake))
