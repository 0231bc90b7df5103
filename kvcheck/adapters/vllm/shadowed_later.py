"""Calls that vLLM 0.33's scheduler adds or makes differently from 0.24's."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from kvcheck.adapters.vllm import preconditions
from kvcheck.adapters.vllm.manager import stats_of
from kvcheck.adapters.vllm.mirror import Mirror
from kvcheck.adapters.vllm.preconditions import Asked
from kvcheck.adapters.vllm.shadowed import ShadowedManager, ShadowedPool, ids_of
from kvcheck.adapters.vllm.steps import Steps
from kvspec.foreign import beyond_contract
from kvspec.inside import hits_end_inside, last_boundary
from kvspec.profile import find_profile
from kvspec.specs import MambaSpec


def later_members(scheduler: Any) -> dict[str, Any]:
    """Return configuration members that 0.33's scheduler passes to its manager without keeping
    them.
    """
    return {
        "max_num_batched_tokens": scheduler.vllm_config.max_in_flight_tokens,
        "hash_lookahead_tokens": scheduler.num_hash_lookahead_tokens,
        "policy": find_profile("vllm-0.33").policy,
    }


def unfollowed(scheduler: Any) -> str | None:
    """Return a feature of 0.33's manager that the contract lacks, so that it cannot be followed."""
    is_dropping, groups = scheduler.use_eagle_block_drop, scheduler.kv_cache_config.kv_cache_groups
    refused = {
        **beyond_contract(scheduler),
        "several modules that draft, where several groups drop blocks": is_dropping
        and len(groups) > 1
        and scheduler.kv_cache_manager.coordinator.num_reprefillable_tokens > 0,
        "states inside blocks where EAGLE drops them, beside a KV connector": is_dropping
        and scheduler.mamba_partial_cache_hit
        and scheduler.connector is not None,
    }
    return next((what for what, is_there in refused.items() if is_there), None)


class LaterShadowedPool(ShadowedPool):
    """vLLM 0.33's pool, to which references held for copies are returned."""

    def __init__(self, stock: Any, mirror: Mirror, steps: Steps) -> None:
        super().__init__(stock, mirror)
        self.steps = steps

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        """Return references, in this order."""
        blocks = list(ordered_blocks)
        self.steps.returns([block.block_id for block in blocks])
        super().free_blocks(blocks)


class LaterShadowedManager(ShadowedManager):
    """vLLM 0.33's manager, followed.

    `steps`: what its scheduler has under way. `num_read`: tokens after a chunk that its drafter
    reads; `most_tokens`: the most tokens of a chunk of one request.
    """

    def __init__(
        self, *parts: Any, steps: Steps, num_read: int, most_tokens: int, has_connector: bool
    ) -> None:
        super().__init__(*parts)
        self.has_connector = has_connector
        self.steps = steps
        self.num_read = num_read
        self.most_tokens = most_tokens

    @property
    def num_reread(self) -> int:
        """Tokens at the end that are not cached: a drafter of several modules computes them again.

        With several groups and hash look-ahead vLLM caches them all the same.
        """
        coordinator = self.stock.coordinator
        is_alone = len(coordinator.single_type_managers) == 1
        return int(coordinator.num_reprefillable_tokens) if is_alone else 0

    def _granted(self, mine: Any, num_new_tokens: int, options: Mapping[str, Any]) -> Any:
        """Allocate in the follower; a separate call caches what is not cached yet."""
        if not self.num_reread or options.get("delay_cache_blocks"):
            return super()._granted(mine, num_new_tokens, options)
        answer = super()._granted(mine, num_new_tokens, {**options, "delay_cache_blocks": True})
        if answer is not None:
            computed = mine.num_computed_tokens + options["num_new_computed_tokens"]
            computed += options.get("num_external_computed_tokens", 0)
            total = min(computed, self.stock.max_model_len) + num_new_tokens
            self._cached(mine, min(total, mine.num_tokens))
        return answer

    def _cached(self, mine: Any, num_computed_tokens: int) -> None:
        super()._cached(mine, max(num_computed_tokens - self.num_reread, 0))

    @property
    def copies_wait(self) -> bool:
        """Whether copies are pending that were not taken."""
        groups = self.stock.coordinator.single_type_managers
        return any(getattr(group, "_pending_cow_copies", ()) for group in groups)

    def new_step_starts(self) -> None:
        self.steps.starts()
        super().new_step_starts()

    def _check(self, request: Any, new: int, new_computed: int, options: Any) -> Asked:
        """Check the preconditions of an allocation."""
        call = f"allocate_slots of {request.request_id}"
        self.steps.allocates(call, request)
        asked = super()._check(request, new, new_computed, options)
        broken = preconditions.known_behind_chunk(asked, self.num_read)
        self.mirror.require(call, broken)
        for spec in self.mirror.config.managed_specs:
            # With states inside a chunk it may: vLLM then keys the state before (docs/FINDINGS.md).
            if not isinstance(spec, MambaSpec) or spec.has_checkpoints:
                continue
            if spec.mamba_cache_mode == "align":
                self.mirror.require(call, preconditions.realigned_chunk(asked, spec.block_size))
        return asked

    def _stops(self, asked: Asked, request: Any, block_size: int) -> Collection[int]:
        """Return the prompt's last boundary inside a block.

        The chunk may end anywhere in a block larger than a chunk, and where an item no longer fits.
        """
        if block_size > self.most_tokens or request.mm_features:
            return (asked.end,)
        stops = [request.shared_prefix_boundary] * self.stock.mamba_shared_prefix_checkpoint
        if hits_end_inside(self.mirror.config):
            stops.append(last_boundary(request.num_prompt_tokens, self.mirror.config))
        return stops

    def get_computed_blocks(  # type: ignore[override]  # 0.24 returns no junction
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[Any, int, int]:
        """Return the longest cached prefix, its tokens, and the junction."""
        queue = self.stock.block_pool.kv_event_queue
        before = len(queue)
        blocks, length, junction = self.mirror.answered(
            "get_computed_blocks",
            lambda: self.stock.get_computed_blocks(request, max_cache_hit_length),
        )
        self.reports += queue[before:]  # nothing is stored here
        theirs = (ids_of(blocks), length, junction)
        self.mirror.same("get_computed_blocks", lambda: self._hit(request), theirs)
        return blocks, length, junction

    def _hit(self, request: Any) -> tuple[Any, int, int]:
        """Return the follower's result in vLLM's form."""
        hit = self.shadow.get_computed_blocks(self.mirror.current(request))
        length, beyond = hit.hit_length_tokens, hit.uncached_common_prefix_tokens
        return hit.blocks, length, length + beyond if beyond else 0

    def get_computed_blocks_for_connector(
        self, request: Any, max_cache_hit_length: int | None = None
    ) -> tuple[Any, int, int, bool]:
        """Return each group's own hit if full attention has the longest, else the common one."""
        call = "get_computed_blocks_for_connector"
        blocks, length, junction, diverged = self.mirror.answered(
            call,
            lambda: self.stock.get_computed_blocks_for_connector(request, max_cache_hit_length),
        )
        full = getattr(self.stock.coordinator, "full_attention_group_id", None)
        has_own = self.stock.kv_cache_config.has_mamba_layers and full is not None

        def ours() -> object:
            if has_own and self.stock.prefix_cache_lookup_enabled(request):
                mine, most = self.mirror.current(request), request.num_tokens - 1
                hits = self.shadow.find_longest_cache_hit_per_group(mine, most)
                lengths = hits.hit_lengths_tokens
                if max(lengths) <= lengths[full]:
                    return hits.blocks, lengths[full], 0, min(lengths) < lengths[full]
            return *self._hit(request), False

        self.mirror.same(call, ours, (ids_of(blocks), length, junction, diverged))
        return blocks, length, junction, diverged

    def remove_skipped_blocks(
        self,
        request_id: str,
        processed_computed_tokens: int,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Release what attention no longer needs."""
        self.stock.remove_skipped_blocks(request_id, processed_computed_tokens, num_prompt_tokens)
        self.same_of(request_id, "remove_skipped_blocks", None, processed_computed_tokens)

    def take_new_block_ids(self) -> list[int]:
        """Return blocks to be zeroed; not compared with a connector, which changes them."""
        if self.has_connector:
            self.mirror.uncompared.add("take_new_block_ids")
        return super().take_new_block_ids()

    def record_prefix_cache_stats(self, request: Any, num_hits: int) -> None:
        """Count a look-up whose request was admitted."""
        self.stock.record_prefix_cache_stats(request, num_hits)
        self.mirror.same(
            "record_prefix_cache_stats",
            lambda: self.shadow.record_prefix_cache_stats(self.mirror.current(request), num_hits),
            None,
        )

    def take_kv_cache_block_copies(self) -> tuple[list[Any], Sequence[Any]]:
        """Copies on write, and the blocks that are held for them until the step is over."""
        copies, retained = self.stock.take_kv_cache_block_copies()
        pairs = tuple((each.src_block_id, each.dst_block_id) for each in copies)
        ids = tuple(block.block_id for block in retained)
        self.mirror.popped.extend(ids)
        self.steps.copied(pairs, ids)

        def ours() -> object:
            found = self.shadow.take_block_copies()
            return found.pairs, found.retained

        self.mirror.same("take_kv_cache_block_copies", ours, (pairs, ids))
        return copies, retained

    def make_prefix_cache_stats(self) -> Any:
        """Look-ups since the last call."""
        stats = self.stock.make_prefix_cache_stats()
        self.same("make_prefix_cache_stats", stats_of(stats))
        return stats
