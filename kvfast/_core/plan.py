"""A plan of a manager: a configuration that can be served (see `kvfast.configuration`)."""

from __future__ import annotations

from dataclasses import dataclass

from kvspec.config import ManagerConfig
from kvspec.inside import looks_inside
from kvspec.specs import LayerSpec

from .kinds import Kind


@dataclass(frozen=True)
class GroupPlan:
    """One group, as the core needs it.

    - `kind`: how it uses its blocks. `reach_tokens`: its window or chunk.
    - `extra_tokens`: retained before the window, and not read (KV-SW-9).
    - `num_drafted`: Mamba states of drafted tokens.
    - `drops_block`: its hits drop their last block. `is_zeroed`: its new blocks are queued.
    - `cap_blocks`: the most one request holds at once, -1 if that is no less than all.
    - `num_sink_blocks`: reserved for it at the start. `has_partial_tails`: the end of a prompt
      inside a block is registered. `checkpoints_return`: a lost state at a prompt's checkpoint is.
    - `export_step_tokens`: a chunk may leave a state inside, a multiple of this many tokens after
      its start; 0: it does not.
    """

    spec: LayerSpec
    kind: Kind
    block_size: int
    hashes_per_block: int
    reach_tokens: int
    num_drafted: int
    drops_block: bool
    is_zeroed: bool
    cap_blocks: int
    num_sink_blocks: int
    export_step_tokens: int = 0
    has_partial_tails: bool = False
    extra_tokens: int = 0
    checkpoints_return: bool = False


@dataclass(frozen=True)
class Plan:
    """A configuration that can be served.

    `config` has its derived block sizes filled in; `attention` lists the groups of each attention
    group, full attention first (KV-COORD-4).
    """

    config: ManagerConfig
    groups: tuple[GroupPlan, ...]
    attention: tuple[tuple[int, ...], ...]

    @property
    def looks_inside(self) -> bool:
        """Whether hits end inside blocks (KV-INSIDE-1), or states are left there (KV-INSIDE-19)."""
        return looks_inside(self.config)

    @property
    def alignment_tokens(self) -> int:
        """Number of tokens of which the length of every hit is a multiple."""
        config = self.config
        if self.looks_inside:
            return config.hash_block_size_tokens or 1
        return config.scheduler_block_size_tokens or 1

    @property
    def is_hybrid(self) -> bool:
        """Several groups that have to agree on hits."""
        return self.config.enable_caching and len(self.groups) > 1
