"""Fixed properties of the groups of a manager, one entry per group in flat arrays."""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import TYPE_CHECKING, cast

from . import kinds
from .arrays import zeroed
from .kinds import CACHED, HOLDS_TOKENS, Kind, first_visible, never

if TYPE_CHECKING:
    from .plan import GroupPlan, Plan


class Shape:
    """The groups, and the attention groups: those with equal specs, looked up together.

    `attention` lists the members of each attention group, in look-up order (KV-COORD-4).
    Hits are multiples of `alignment`: the scheduler block size, or less (KV-INSIDE-1). `retention`
    is the interval in tokens, or -1 for none. `ahead`: tokens after a block that its hash covers;
    `num_last`: those that no replay hits.
    """

    def __init__(
        self,
        groups: Sequence[GroupPlan],
        attention: Sequence[Sequence[int]],
        *,
        alignment: int,
        scheduler_block: int,
        retention: int,
        null_prefix_is_hit: bool,
        looks_beyond: bool,
        replays_before_drop: bool,
        drafts_hold_states: bool,
        ahead: int,
    ) -> None:
        self.num_groups = len(groups)
        self.alignment = alignment
        self.scheduler_block = scheduler_block
        self.retention = retention
        self.null_prefix_is_hit = null_prefix_is_hit
        self.looks_beyond = looks_beyond
        self.ahead = ahead
        self.num_last = max(1, ahead)
        self.drafts_hold_states = drafts_hold_states
        self.replays = any(group.kind == kinds.REPLAYED for group in groups)
        self.some_group_drops = any(group.drops_block for group in groups)
        self.replays_before_drop = replays_before_drop and self.some_group_drops
        n = len(groups)
        self.kind = cast("MutableSequence[Kind]", zeroed("i", n))
        self.block_size = zeroed("q", n)
        self.hashes_per_block = zeroed("q", n)
        self.reach = zeroed("q", n)
        self.extra = zeroed("q", n)
        self.drafted = zeroed("q", n)
        self.drops = zeroed("i", n)
        self.is_zeroed = zeroed("i", n)
        self.cap = zeroed("q", n)
        self.tails = zeroed("i", n)
        self.returns = zeroed("i", n)
        self.has_tokens = zeroed("i", n)
        self.takes_part = zeroed("i", n)
        for g, group in enumerate(groups):
            self.kind[g] = group.kind
            self.block_size[g] = group.block_size
            self.hashes_per_block[g] = group.hashes_per_block
            self.reach[g] = group.reach_tokens
            self.extra[g] = group.extra_tokens
            self.drafted[g] = group.num_drafted
            self.drops[g] = group.drops_block
            self.is_zeroed[g] = group.is_zeroed
            self.cap[g] = group.cap_blocks
            self.tails[g] = group.has_partial_tails and group.hashes_per_block > 1
            self.returns[g] = group.checkpoints_return
            self.has_tokens[g] = group.kind in HOLDS_TOKENS
            self.takes_part[g] = group.kind in CACHED
        self._join(attention)

    def _join(self, attention: Sequence[Sequence[int]]) -> None:
        """Lay the attention groups' members out one after another."""
        self.num_attention = len(attention)
        self.first_member = zeroed("i", len(attention) + 1)
        self.members = zeroed("i", self.num_groups)
        at = 0
        for a, members in enumerate(attention):
            self.first_member[a] = at
            for group_index in members:
                self.members[at] = group_index
                at += 1
        self.first_member[len(attention)] = at

    def is_full(self, group: int) -> bool:
        """Return whether it attends to everything: every shorter prefix of a hit is a hit."""
        return self.kind[group] == kinds.FULL or self.kind[group] == kinds.RSWA

    def keeps_all(self, group: int) -> bool:
        """Return whether its lists never turn null: it always attends to everything."""
        return self.kind[group] == kinds.FULL

    def is_mamba(self, group: int) -> bool:
        """Return whether it holds states, in any mode."""
        return self.kind[group] == kinds.MAMBA or self.kind[group] == kinds.ALIGNED

    def is_aligned(self, group: int) -> bool:
        """Return whether it holds states in mode align."""
        return self.kind[group] == kinds.ALIGNED

    def holds_tokens(self, group: int) -> bool:
        """Return whether the blocks hold all tokens of the sequence, not those of an encoder."""
        return self.has_tokens[group] != 0

    def is_cached(self, group: int) -> bool:
        """Return whether the group takes part in prefix caching (KV-COORD-14)."""
        return self.takes_part[group] != 0

    def cdiv(self, a: int, b: int) -> int:
        """Divide numbers from 0 on, rounding up."""
        return a // b + (1 if a % b else 0)

    def skipped(self, group: int, computed: int) -> int:
        """Return the leading blocks that no token after `computed` tokens reads (KV-GRP-2)."""
        tokens = first_visible(self.kind[group], self.reach[group] + self.extra[group], computed)
        return tokens // self.block_size[group] if tokens > 0 else 0

    def unread(self, group: int, computed: int) -> int:
        """Return the blocks that may be null in a hit: all but those also retained (KV-SW-9)."""
        tokens = first_visible(self.kind[group], self.reach[group], computed)
        return tokens // self.block_size[group] if tokens > 0 else 0

    def gap_end(self, group: int, prompt: int, computed: int) -> int:
        """Return the leading blocks before the window of R-SWA, with the prompt's (KV-RSWA-1)."""
        return max(prompt, computed - self.reach[group]) // self.block_size[group]

    def first_read(self, group: int, prompt: int, computed: int) -> int:
        """Return the entry with the first token that `computed` reads (KV-REQ-9); states: -1."""
        kind = self.kind[group]
        if kind == kinds.MAMBA or kind == kinds.ALIGNED:
            return -1
        if kind == kinds.RSWA:
            return self.gap_end(group, prompt, computed)
        if kind == kinds.REPLAYED:
            return computed // self.block_size[group]
        return self.unread(group, computed)

    def is_window_beyond(self, group: int, at: int, computed: int) -> bool:
        """Return whether all up to `computed` tokens is skipped at `at` tokens (KV-GRP-6)."""
        reach = self.reach[group] + self.extra[group]
        return first_visible(self.kind[group], reach, at) >= computed

    def run_length(self, group: int, drop: bool) -> int:
        """Return the contiguous blocks that fill a window, and one more to drop (KV-SW-2)."""
        tokens = self.reach[group] - 1
        return self.cdiv(tokens, self.block_size[group]) + (1 if drop else 0)

    def caches_all(self, group: int) -> bool:
        """Return whether every full block of the group is worth caching."""
        kind = self.kind[group]
        if kind == kinds.SLIDING:
            if self.retention == 0:
                return False
            segment = self.retention if self.retention > 0 else self.alignment
            drop = self.drops[group] != 0
            return self.run_length(group, drop) >= segment // self.block_size[group]
        if kind == kinds.MAMBA or kind == kinds.ALIGNED:
            return self.retention < 0 or 0 < self.retention <= self.block_size[group]
        if kind == kinds.FULL or kind == kinds.RSWA or kind == kinds.CHUNKED:
            return True
        if kind == kinds.CROSS or kind == kinds.ENCODER_ONLY or kind == kinds.CIRCULAR:
            return True
        if kind == kinds.REPLAYED:
            return True
        return never(kind)

    def full_blocks(self, group: int, tokens: int, num_hashes: int) -> int:
        """Count the blocks that `tokens` tokens fill and that have a hash (KV-HASH-15)."""
        full = tokens // self.block_size[group]
        if self.ahead > 0:
            full = min(full, num_hashes // self.hashes_per_block[group])
        return full

    def checkpoint(self, group: int, prompt_tokens: int) -> int:
        """Return where a lost state gets its key again (KV-POL-23)."""
        unit = self.block_size[group] // self.hashes_per_block[group]
        if self.some_group_drops:
            return prompt_tokens // unit * unit - unit
        return max(prompt_tokens - self.num_last, 0) // unit * unit

    def is_in_tail(self, group: int, index: int, tokens: int) -> bool:
        """Return whether a hit that ends at `tokens`, cut to alignment, needs block `index`."""
        if tokens < 0:
            return False
        end = tokens // self.alignment * self.alignment // self.block_size[group]
        if self.is_mamba(group):
            return index + 1 == end
        drop = self.drops[group] != 0
        last = end if drop else end - 1
        return last - self.run_length(group, drop) < index <= last

    def is_worth_caching(self, group: int, index: int, prompt_tokens: int, junction: int) -> bool:
        """Return whether a later look-up could use block `index` (KV-RET-*)."""
        size = self.block_size[group]
        replayed = max(prompt_tokens - self.num_last, 0)
        replay = replayed // self.alignment * self.alignment
        if self.retention >= 0:
            if junction > 0:  # KV-RET-7
                if self.is_in_tail(group, index, junction):
                    return True
                if self.drops[group] and self.is_in_tail(group, index, junction - size):
                    return True
            if self.replays_before_drop:  # KV-POL-20
                block = self.scheduler_block
                end = prompt_tokens // block * block
                if self.is_in_tail(group, index, max(end - block, 0)):
                    return True
                replay = max(replay // block * block - block, 0)
        replay_end = replay // size
        if self.is_mamba(group):
            if self.retention > 0 and (index + 1) * size % self.retention == 0:
                return True
            return index + 1 == replay_end
        shift = 1 if self.drops[group] else 0
        need = self.run_length(group, shift != 0)
        if self.retention != 0 and index >= shift:
            segment = self.retention if self.retention > 0 else self.alignment
            per_segment = segment // size
            if (index - shift) % per_segment >= per_segment - need:
                return True
        if self.retention < 0:
            return False
        return replay_end + shift - need <= index < replay_end + shift


def shape_of(plan: Plan) -> Shape:
    """Return the groups as the core represents them."""
    retention = plan.config.retention_interval_tokens
    return Shape(
        plan.groups,
        plan.attention,
        alignment=plan.alignment_tokens,
        scheduler_block=plan.config.scheduler_block_size_tokens or 1,
        retention=-1 if retention is None else retention,
        null_prefix_is_hit=plan.config.policy.chunked_null_prefix_is_hit,
        looks_beyond=plan.config.policy.eagle_looks_beyond,
        replays_before_drop=plan.config.policy.eagle_replays_before_drop,
        drafts_hold_states=plan.config.policy.drafts_hold_states,
        ahead=plan.config.hash_lookahead_tokens,
    )
