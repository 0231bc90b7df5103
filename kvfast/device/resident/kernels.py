"""`plain.decide` as a kernel: one program, since every decision waits for those before.

A thousand requests are one round of its loop. Nothing of it depends on the step, so its launch can
be captured in a CUDA graph.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvfast.device.resident.state import RunState
from kvfast.device.tables.geometry import Geometry
from kvfast.device.tables.state import DeviceState

_BLOCK = 1024


@triton.jit
def _needs(left, handles, lengths, num_computed, groups, i, num_requests, max_requests, group):
    """Return which places need a block of a group, and its index in their lists."""
    goes_on = tl.load(left + i, mask=i < num_requests, other=0) > 0
    row = tl.load(handles + i, mask=goes_on, other=0)
    length = tl.load(num_computed + row, mask=goes_on, other=0)
    span = tl.load(groups + 3 * group + 2).to(tl.int32)
    index = length // span
    held = tl.load(lengths + group * max_requests + i, mask=goes_on, other=0)
    return goes_on & (index >= held), row, index


@triton.jit
def _count(
    left, handles, lengths, num_computed, groups, num_requests, max_requests, num_groups,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Count the blocks that all continuing requests need, and these requests."""
    num_needed = 0
    num_going = 0
    for start in range(0, num_requests, BLOCK):
        i = start + tl.arange(0, BLOCK)
        goes_on = tl.load(left + i, mask=i < num_requests, other=0) > 0
        num_going += tl.sum(goes_on.to(tl.int32))
        for group in range(num_groups):
            needs, _row, _index = _needs(
                left, handles, lengths, num_computed, groups, i, num_requests, max_requests, group
            )
            num_needed += tl.sum(needs.to(tl.int32))
    return num_needed, num_going


@triton.jit
def _take(
    left, handles, lengths, num_computed, groups, i, num_requests, max_requests, num_groups,
    reserve, new_blocks, log, entries, taken, is_open, BLOCK: tl.constexpr,
):  # fmt: skip
    """Give places the blocks after the first `taken`; returns how many are then taken."""
    num_own = tl.zeros([BLOCK], dtype=tl.int32)
    for group in range(num_groups):
        needs, row, index = _needs(
            left, handles, lengths, num_computed, groups, i, num_requests, max_requests, group
        )
        num_own += (needs & is_open).to(tl.int32)
    at = taken + tl.cumsum(num_own, 0) - num_own  # the number taken by earlier places
    for group in range(num_groups):
        needs, row, index = _needs(
            left, handles, lengths, num_computed, groups, i, num_requests, max_requests, group
        )
        needs = needs & is_open
        base = tl.load(groups + 3 * group)
        width = tl.load(groups + 3 * group + 1)
        address = base + row.to(tl.int64) * width + index
        block = tl.load(reserve + at, mask=needs, other=-1)
        tl.store(entries + address, block, mask=needs)
        tl.store(log + at, address.to(tl.int32), mask=needs)
        tl.store(new_blocks + group * max_requests + i, block, mask=i < max_requests)
        held = tl.load(lengths + group * max_requests + i, mask=needs, other=0)
        tl.store(lengths + group * max_requests + i, held + 1, mask=needs)
        at += needs.to(tl.int32)
    return taken + tl.sum(num_own)


@triton.jit
def _grant(
    left, handles, granted, num_computed, rows, query_start, places, i, num_requests, max_requests,
    max_tokens, is_open,
):  # fmt: skip
    """Grant a token to each place that continues; they are the batch."""
    number = tl.load(left + i, mask=i < num_requests, other=0)
    goes_on = (number > 0) & is_open
    tl.store(left + i, number - 1, mask=goes_on)
    had = tl.load(granted + i, mask=goes_on, other=0)
    tl.store(granted + i, had + 1, mask=goes_on)
    row = tl.load(handles + i, mask=goes_on, other=-1)
    length = tl.load(num_computed + row, mask=goes_on, other=0)
    tl.store(num_computed + row, length + 1, mask=goes_on)
    tl.store(rows + i, row, mask=i < max_requests)
    end = tl.minimum(i + 1, num_requests)
    tl.store(query_start + i + 1, end, mask=i < max_requests)
    place = tl.where(goes_on, i, -1)
    tl.store(places + i, place, mask=(i < max_requests) & (i < max_tokens))


@triton.jit
def _decide(
    control, handles, left, granted, lengths, reserve, new_blocks, log,
    entries, num_computed, rows, query_start, places, groups,
    max_requests, max_tokens, num_groups,
    BLOCK: tl.constexpr,
):  # fmt: skip
    num_requests = tl.load(control)
    num_reserved = tl.load(control + 1)
    max_steps = tl.load(control + 2)
    num_taken = tl.load(control + 3)
    num_steps = tl.load(control + 4)
    num_needed, num_going = _count(
        left, handles, lengths, num_computed, groups, num_requests, max_requests, num_groups, BLOCK
    )
    fits = ((num_steps < max_steps) & (num_taken + num_needed <= num_reserved)).to(tl.int32)
    is_open = (tl.zeros([BLOCK], dtype=tl.int32) + fits) > 0
    # Values read above are overwritten below, by other threads of the same program.
    tl.debug_barrier()
    for start in range(0, max_requests, BLOCK):
        i = start + tl.arange(0, BLOCK)
        num_taken = _take(
            left, handles, lengths, num_computed, groups, i, num_requests, max_requests, num_groups,
            reserve, new_blocks, log, entries, num_taken, is_open, BLOCK,
        )  # fmt: skip
        _grant(
            left, handles, granted, num_computed, rows, query_start, places, i, num_requests,
            max_requests, max_tokens, is_open,
        )  # fmt: skip
    for start in range(max_requests, max_tokens, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(places + i, tl.full([BLOCK], -1, tl.int32), mask=i < max_tokens)
    tl.store(control + 3, num_taken)
    tl.store(control + 4, num_steps + fits * tl.minimum(num_going, 1))


def decide(state: DeviceState, run: RunState, geometry: Geometry) -> None:
    """Do `plain.decide`."""
    _decide[(1,)](
        run.control, run.handles, run.left, run.granted, run.lengths, run.reserve, run.new_blocks,
        run.log, state.entries, state.num_computed, state.rows, state.query_start, state.places,
        state.groups, len(state.rows), len(state.places), len(geometry.slot_groups), BLOCK=_BLOCK,
        enable_fp_fusion=False,
    )  # fmt: skip
