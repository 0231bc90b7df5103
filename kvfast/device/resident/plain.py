"""The decisions of a resident step in plain torch, which the kernel must match (KV-DEV-15)."""

from __future__ import annotations

import torch

from kvfast.device.resident.state import (
    MAX_STEPS,
    NUM_REQUESTS,
    NUM_RESERVED,
    NUM_STEPS,
    NUM_TAKEN,
    RunState,
)
from kvfast.device.tables.geometry import Geometry
from kvfast.device.tables.state import DeviceState


def decide(state: DeviceState, run: RunState, geometry: Geometry) -> None:
    """Grant a token to each place that continues, and a block if a list is too short for it.

    Blocks are taken from the reserve, place after place and group after group. If it is too small,
    or all allowed steps are done, nothing is granted (KV-DEV-16). The batch of the tables becomes
    the places that were granted a token, each at its place of the run.
    """
    control = run.control
    num_taken = control[NUM_TAKEN].clone()
    places = torch.arange(len(run.handles), dtype=torch.int32, device=control.device)
    goes_on = (places < control[NUM_REQUESTS]) & (run.left > 0)
    rows = run.handles.long()
    base, width, span = (column[:, None] for column in state.groups.T)
    index = state.num_computed[rows] // span
    needs = goes_on & (index >= run.lengths)
    # Return how many were taken before each, in the order of the manager: [groups, places].
    order = needs.T.reshape(-1).cumsum(0).view(needs.T.shape).T
    num_needed = needs.sum()
    is_planned = control[NUM_STEPS] < control[MAX_STEPS]
    fits = is_planned & (num_taken + num_needed <= control[NUM_RESERVED])
    goes_on &= fits
    needs &= fits
    at = torch.where(needs, num_taken + order - 1, 0)
    block = torch.where(needs, run.reserve[at], 0)
    address = base + rows * width + index
    spare = len(state.entries) - 1
    state.entries[torch.where(needs, address, spare)] = block
    run.log[torch.where(needs, at, len(run.log) - 1)] = torch.where(needs, address, 0).int()
    run.new_blocks.copy_(torch.where(needs, block, -1))
    run.lengths.add_(needs)
    run.left.sub_(goes_on.int())
    run.granted.add_(goes_on)
    state.num_computed.index_add_(0, rows, goes_on.int())
    control[NUM_TAKEN] += num_needed * fits
    control[NUM_STEPS] += goes_on.any()
    _batch(state, run, goes_on, places)


def _batch(state: DeviceState, run: RunState, goes_on: torch.Tensor, places: torch.Tensor) -> None:
    """Place i has token i, if it was granted one."""
    state.rows.copy_(torch.where(goes_on, run.handles, -1))
    state.query_start[1:] = torch.minimum(places + 1, run.control[NUM_REQUESTS])
    state.places.fill_(-1)
    num = min(len(places), len(state.places))
    state.places[:num] = torch.where(goes_on[:num], places[:num], -1)
