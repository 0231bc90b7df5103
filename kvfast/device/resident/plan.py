"""The number of steps of a run: as many as there are blocks for, while no block may be freed.

A block without a key that leaves a window is put at the front of the free queue (KV-POOL-6), before
those of the reserve. So a run ends before that (KV-DEV-15).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kvfast._core import kinds
from kvfast._core.kinds import first_visible
from kvfast.configuration import kind_of, reach_of
from kvfast.device.tables.geometry import Geometry
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import KVCacheManager
from kvspec.request import Request


@dataclass(frozen=True)
class Demand:
    """The state and limits of the requests of a run; int64 on the host.

    `computed` [n]: computed tokens. `most` [n]: tokens that each may be granted. `lengths` [G, n]:
    of its lists, in groups with slots; `spans` [G, 1]: tokens that a block covers.
    """

    computed: torch.Tensor
    most: torch.Tensor
    lengths: torch.Tensor
    spans: torch.Tensor

    def num_blocks(self, num_steps: int) -> int:
        """Count the blocks that `num_steps` steps take if no request stops early."""
        granted = self.most.clamp(max=num_steps)
        required = (self.computed + granted + self.spans - 1) // self.spans
        return int((required - self.lengths).clamp(min=0)[:, granted > 0].sum())

    def num_steps(self, max_steps: int, max_blocks: int) -> int:
        """Return the most steps that take at most `max_blocks` blocks."""
        low, high = 0, min(max_steps, int(self.most.max())) if len(self.most) else 0
        while low < high:
            middle = (low + high + 1) // 2
            if self.num_blocks(middle) <= max_blocks:
                low = middle
            else:
                high = middle - 1
        return low


def check_groups(config: ManagerConfig) -> None:
    """Check that lists grow with the tokens; raise UnsupportedError for states."""
    if any(spec.is_state for spec in config.managed_specs):
        raise UnsupportedError("resident decode steps with Mamba groups", "kvfast.device")
    others = (kinds.CIRCULAR, kinds.RSWA, kinds.REPLAYED)
    if any(kind_of(spec) in others for spec in config.managed_specs):
        raise UnsupportedError(
            "resident decode steps with rings, R-SWA or replayed windows", "kvfast.device"
        )
    if any(spec.extra_retained_tokens for spec in config.managed_specs):
        raise UnsupportedError("resident decode steps with retained tokens", "kvfast.device")
    if config.eviction_order != "lru" and any(map(reach_of, config.managed_specs)):  # KV-ORD-1
        raise UnsupportedError("resident decode steps with windows and an order", "kvfast.device")


def has_windows(config: ManagerConfig) -> bool:
    """Return whether a run can free blocks to the front of the queue."""
    is_front = config.policy.unhashed_freed_to == "front"
    return is_front and any(reach_of(spec) for spec in config.managed_specs)


def steps_within_windows(
    manager: KVCacheManager, geometry: Geometry, request: Request, num_steps: int
) -> int:
    """Return the most steps, up to `num_steps`, in which no block without a key leaves a window."""
    lists = manager.get_blocks(request).groups
    unhashed = manager.get_unhashed_block_ids(request)
    computed = request.num_computed_tokens
    for g, spec in enumerate(manager.config.managed_specs):
        kind, reach = kind_of(spec), reach_of(spec)
        if not reach:
            continue
        without = set(unhashed[g])
        places = (i for i, block in enumerate(lists[g]) if block in without)
        first = next(places, len(lists[g]))  # blocks added during the run have no key at first
        span = geometry.groups[g].span_tokens
        while num_steps and first_visible(kind, reach, computed + num_steps - 1) // span > first:
            num_steps -= 1
    return num_steps
