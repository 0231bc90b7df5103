"""Mutants of single types: full attention, windows, chunks, states, and how groups are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvref import configuration, manager
from kvref.groups.base import Demand, Group, cdiv
from kvref.groups.chunked_local import ChunkedLocalGroup
from kvref.groups.cross_attention import CrossAttentionGroup
from kvref.groups.full_attention import FullAttentionGroup
from kvref.groups.mamba import MambaGroup
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.groups.sliding_window import SlidingWindowGroup
from kvspec.config import ManagerConfig
from kvspec.specs import LayerSpec
from tests.mutants.make import classes_in, patched


class FullForgetsTheBeginning(FullAttentionGroup):
    """KV-FULL-1: what lies eight blocks back is released."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - 8 * self.block_size)


class FullKeepsTheEagleBlock(FullAttentionGroup):
    """KV-FULL-3: nothing is dropped."""

    def longest_hit(
        self, hashes: Sequence[bytes], max_length_tokens: int, **how: Any
    ) -> list[list[int]]:
        return super().longest_hit(hashes, max_length_tokens, **{**how, "drop_last_block": False})


class FullDropsUnmatched(FullAttentionGroup):
    """KV-FULL-3: the drop takes the last block asked for, cached or not."""

    def longest_hit(
        self, hashes: Sequence[bytes], max_length_tokens: int, **how: Any
    ) -> list[list[int]]:
        if not how["drop_last_block"]:
            return super().longest_hit(hashes, max_length_tokens, **how)
        shorter = max(max_length_tokens // self.block_size - 1, 0) * self.block_size
        return super().longest_hit(hashes, shorter, **{**how, "drop_last_block": False})


class FullDropsAfterAligning(FullAttentionGroup):
    """KV-FULL-3, KV-FULL-4: the block to drop is taken from the aligned run."""

    def longest_hit(
        self, hashes: Sequence[bytes], max_length_tokens: int, **how: Any
    ) -> list[list[int]]:
        found = super().longest_hit(hashes, max_length_tokens, **{**how, "drop_last_block": False})
        return [run[:-1] for run in found] if how["drop_last_block"] else found


class FullHitsEndAnywhere(FullAttentionGroup):
    """KV-FULL-4: the alignment is that of the group's own blocks."""

    def longest_hit(
        self, hashes: Sequence[bytes], max_length_tokens: int, **how: Any
    ) -> list[list[int]]:
        own = {**how, "alignment_tokens": self.block_size}
        return super().longest_hit(hashes, max_length_tokens, **own)


class FullHitsAreRoundedUp(FullAttentionGroup):
    """KV-FULL-2, KV-MGR-1: a hit may end behind the length asked for."""

    def longest_hit(
        self, hashes: Sequence[bytes], max_length_tokens: int, **how: Any
    ) -> list[list[int]]:
        up = cdiv(max_length_tokens, self.block_size) * self.block_size
        return super().longest_hit(hashes, min(up, len(hashes) * self.hash_size), **how)

    @property
    def hash_size(self) -> int:
        """Tokens per hash."""
        return self.block_size // self.hashes_per_block


class FullPassesOverGaps(FullAttentionGroup):
    """KV-FULL-2: the run goes on behind a block that is not cached."""

    def longest_hit(
        self, hashes: Sequence[bytes], max_length_tokens: int, **how: Any
    ) -> list[list[int]]:
        lists: list[list[int]] = [[] for _ in how["members"]]
        for index in range(max_length_tokens // self.block_size):
            blocks = self.find_in_all(hashes, index, how["members"])
            for run, block in zip(lists, blocks or (), strict=False):
                run.append(block)
        while len(lists[0]) * self.block_size % how["alignment_tokens"]:
            lists = [run[:-1] for run in lists]
        return lists


class MembersHitAlone(FullAttentionGroup):
    """KV-COORD-4: a block counts when the first group of the specification has it."""

    def find_in_all(
        self, hashes: Sequence[bytes], block_index: int, members: Sequence[int]
    ) -> list[int] | None:
        found = [self.find(hashes, block_index, member) for member in members]
        return None if found[0] is None else [block or found[0] for block in found]


class SharedByAnyTwo(FullAttentionGroup):
    """KV-FULL-7: a block with two references counts as shared by all."""

    def num_common_prefix_blocks(self, request_id: str) -> int:
        own = self.blocks_of(request_id)
        shared = [self.pool.ref_counts[block] >= min(2, len(self.block_lists)) for block in own]
        return [*shared, False].index(False)


class SharedBehindAGap(FullAttentionGroup):
    """KV-FULL-7: all blocks of the list are counted, not only the leading ones."""

    def num_common_prefix_blocks(self, request_id: str) -> int:
        lists = sum(1 for blocks in self.block_lists.values() if blocks)
        return sum(self.pool.ref_counts[block] == lists for block in self.blocks_of(request_id))


class SkipsOneTokenLess(SlidingWindowGroup):
    """KV-SW-1: the window holds a token more than it has."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - self.window)


class CapOfAWholeWindow(SlidingWindowGroup):
    """KV-SW-7: the next token is counted beside its window."""

    def max_admission_blocks(self) -> int:
        tokens = self.window + self.context.max_num_batched_tokens
        return cdiv(min(tokens, self.context.max_model_len_tokens), self.block_size) + 1


class CapOfALongSequence(SlidingWindowGroup):
    """KV-SW-7: the cap forgets that no sequence is longer than max_model_len."""

    def max_admission_blocks(self) -> int:
        tokens = self.window - 1 + self.context.max_num_batched_tokens
        return cdiv(tokens, self.block_size) + 1


class ChunkBeforeTheLast(ChunkedLocalGroup):
    """KV-CHUNK-1: a chunk that has just ended is not skipped yet."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(num_computed_tokens - 1, 0) // self.chunk * self.chunk


class ChunkCapOfOneChunk(ChunkedLocalGroup):
    """KV-CHUNK-5: what one step adds is not in the cap."""

    def max_admission_blocks(self) -> int:
        return cdiv(min(self.chunk, self.context.max_model_len_tokens), self.block_size)


class ChunkNullsAloneAreNoHit(ChunkedLocalGroup):
    """KV-CHUNK-2, KV-POL-4: nulls count only beside a cached block, which the profile denies."""

    def __init__(self, context: Any, *rest: Any) -> None:
        super().__init__(replace(context, null_prefix_is_hit=False), *rest)


class ChunkIsMasked(ChunkedLocalGroup):
    """KV-CHUNK-4: only the last block of a chunk is cached."""

    def is_worth_caching(self, block_index: int, request: object) -> bool:
        return (block_index + 1) * self.block_size % self.chunk == 0


class StateOfTheTokenBefore(MambaGroup):
    """KV-MAMBA-1: one state more than needed is kept."""

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        return max(0, num_computed_tokens - 2)


class WaitsWithOneBlockTooFew(MambaGroup):
    """KV-MAMBA-2: waiting is a need of num_blocks, not of one more."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        if self.is_hit_too_new(hits):
            return self.pool.num_blocks
        return super().num_blocks_needed(request_id, hits, demand)


class DraftsOnlyAtFirst(MambaGroup):
    """KV-MAMBA-4: a running request gets no blocks for drafted states."""

    def with_speculative_blocks(self, demand: Demand) -> Demand:
        return demand if demand.num_local_tokens else super().with_speculative_blocks(demand)


class AlignedNeedsNothingForHits(AlignedMambaGroup):
    """KV-MAMBA-7: a request that starts from a hit moves its drafted states, as a running one."""

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        need = super().num_blocks_needed(request_id, hits, demand)
        drafted = self.num_speculative_blocks
        return need - drafted if hits and need > drafted else need


class EncoderIsAllocatedTwice(CrossAttentionGroup):
    """KV-CROSS-2: every allocation takes blocks for the encoder's tokens."""

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        held = len(self.blocks_of(request_id))
        more = cdiv(self.num_tokens_held(demand), self.block_size)
        return self.extend(request_id, held + more if held < 2 * more else 0)


class EncoderRoundsDown(CrossAttentionGroup):
    """KV-CROSS-1: the encoder's last tokens get no block."""

    def num_tokens_held(self, demand: Demand) -> int:
        return super().num_tokens_held(demand) // self.block_size * self.block_size


def no_context_parallel(config: ManagerConfig, *rest: Any) -> list[Group]:
    """KV-FULL-5: a block covers as many tokens as without context parallelism."""
    return configuration.build_groups(replace(config, dcp_world_size=1, pcp_world_size=1), *rest)


def only_decode_parallel(config: ManagerConfig, *rest: Any) -> list[Group]:
    """KV-FULL-5: prefill context parallelism does not widen a block."""
    return configuration.build_groups(replace(config, pcp_world_size=1), *rest)


def no_largest_step(config: ManagerConfig, *rest: Any) -> list[Group]:
    """KV-SW-7, KV-CHUNK-5: a step counts with max_model_len, whatever max_num_batched_tokens."""
    return configuration.build_groups(replace(config, max_num_batched_tokens=None), *rest)


def flags_only_themselves(config: ManagerConfig, specs: list[LayerSpec]) -> set[int]:
    """KV-COORD-4, KV-CFG-8: groups with the spec of a flagged one are no eagle groups."""
    flagged = {i for i, group in enumerate(config.kv_cache.groups) if group.is_eagle_group}
    return set(range(len(specs))) if config.use_eagle and not flagged else flagged


def flags_need_use_eagle(config: ManagerConfig, specs: list[LayerSpec]) -> set[int]:
    """KV-CFG-8: a flag counts only with use_eagle."""
    return configuration_eagle(config, specs) if config.use_eagle else set()


def use_eagle_flags_all(config: ManagerConfig, specs: list[LayerSpec]) -> set[int]:
    """KV-CFG-8: use_eagle flags every group, although some are flagged."""
    return set(range(len(specs))) if config.use_eagle else configuration_eagle(config, specs)


def use_eagle_flags_nobody(config: ManagerConfig, specs: list[LayerSpec]) -> set[int]:
    """KV-CFG-8: without a flag there is no eagle group."""
    return configuration_eagle(replace(config, use_eagle=False), specs)


configuration_eagle = configuration.eagle_groups
_BUILT = (manager, "build_groups")
_EAGLE = (configuration, "eagle_groups")

MUTANTS = (
    *classes_in(__name__),
    patched(no_context_parallel, _BUILT),
    patched(only_decode_parallel, _BUILT),
    patched(no_largest_step, _BUILT),
    patched(flags_only_themselves, _EAGLE),
    patched(flags_need_use_eagle, _EAGLE),
    patched(use_eagle_flags_all, _EAGLE),
    patched(use_eagle_flags_nobody, _EAGLE),
)
