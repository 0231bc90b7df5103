"""The device's state of a run of resident decode steps (KV-DEV-15)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

NUM_REQUESTS, NUM_RESERVED, MAX_STEPS, NUM_TAKEN, NUM_STEPS = range(5)
CONTROL_WORDS = 8
"""The five numbers above, and three that are free."""


@dataclass(frozen=True)
class RunState:
    """Arrays on the device, int32; R rows, G groups with slots, C blocks of reserve.

    All but the last two are views of `told`, which the host writes whole in one copy.

    - `control` [8]: requests, blocks of the reserve, allowed steps; then blocks taken, and steps
      carried out.
    - `handles` [R], `left` [R]: of each place its row, and how many tokens it may still have.
    - `granted` [R]: how many it had. `lengths` [G, R]: of its lists. `reserve` [C]: blocks.
    - `new_blocks` [G, R]: the block that each place took in the last step, or -1.
    - `log` [C + 1]: where each block taken was written to; the last entry is never read.
    """

    told: torch.Tensor
    control: torch.Tensor
    handles: torch.Tensor
    left: torch.Tensor
    granted: torch.Tensor
    lengths: torch.Tensor
    reserve: torch.Tensor
    new_blocks: torch.Tensor
    log: torch.Tensor


def sizes_of(num_rows: int, num_groups: int, max_blocks: int) -> list[int]:
    """Return the lengths of the arrays in `told`."""
    return [CONTROL_WORDS, *(3 * [num_rows]), num_groups * num_rows, max_blocks]


def new_run(num_rows: int, num_groups: int, max_blocks: int, device: torch.device) -> RunState:
    """Make the state without a run: no requests, no reserve."""
    sizes = sizes_of(num_rows, num_groups, max_blocks)
    told = torch.zeros(sum(sizes), dtype=torch.int32, device=device)
    control, handles, left, granted, lengths, reserve = told.split_with_sizes(sizes)
    new_blocks = torch.full((num_groups, num_rows), -1, dtype=torch.int32, device=device)
    log = torch.zeros(max_blocks + 1, dtype=torch.int32, device=device)
    return RunState(
        told,
        control,
        handles,
        left,
        granted,
        lengths.view(num_groups, num_rows),
        reserve,
        new_blocks,
        log,
    )
