"""Properties of every accepted plan, beside those that `kvspec check` asks of random models.

Each check raises AssertionError where it fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

from hypothesis import strategies as st

from kvcheck.rules.random_plans import Case, random_case
from kvspec.config import KVCacheConfig, ManagerConfig
from kvspec.errors import CacheMemoryError, ConfigError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.planning import AUTO_FIT, Plan, Planner, PlanningConfig
from kvspec.policy import Policy
from kvspec.request import RequestInput
from kvspec.specs import AttentionSpec, LayerSpec, MambaSpec, MLAAttentionSpec

__all__ = ["CASES", "Case", "page_of"]

CASES = st.randoms(use_true_random=True).map(lambda random: random_case(random, Policy()))

BYTES = {"float16": 2, "float32": 4}


def page_of(spec: LayerSpec) -> int:
    if isinstance(spec, MambaSpec):
        real = sum(
            prod(shape) * BYTES[dtype]
            for shape, dtype in zip(spec.shapes, spec.dtypes, strict=True)
        )
        return spec.page_size_padded or real
    assert isinstance(spec, AttentionSpec)
    vectors = 1 if isinstance(spec, MLAAttentionSpec) else 2
    real = vectors * spec.block_size * spec.num_kv_heads * spec.head_size * BYTES[spec.dtype]
    return spec.page_size_padded or real


Check = Callable[[Implementation, Planner, Case], None]


def tensors_have_their_pages(_: Implementation, planner: Planner, case: Case) -> None:
    """Check KV-PLAN-13, KV-PLAN-15: a tensor has a page of each of its layers for every block.

    Its size is exactly that of the largest page, without the blocks cut off.
    """
    plan = case.plan(planner)
    if plan is None:
        return
    layers = dict(case.layers)
    for cache in plan.configs:
        sizes = _page_sizes(cache)
        for tensor in cache.tensors:
            largest = max(sizes[name] for name in tensor.shared_by)
            own = max(page_of(layers[name]) for name in tensor.shared_by)
            assert own <= largest
            packed = tensor.block_stride_bytes is not None
            per_block = tensor.block_stride_bytes if packed else largest
            assert tensor.size_bytes == (per_block or 0) * cache.num_blocks


def _page_sizes(cache: KVCacheConfig) -> dict[str, int]:
    """Return the bytes of a page by layer, from the groups' specs."""
    sizes = {}
    for group in cache.groups:
        layers = dict(getattr(group.spec, "kv_cache_specs", ()))
        for name in group.layer_names:
            sizes[name] = page_of(layers.get(name, group.spec))
    return sizes


def packed_tensors_lie_side_by_side(_: Implementation, planner: Planner, case: Case) -> None:
    """Check KV-PLAN-14: the pages of a block fill it without gap or overlap."""
    plan = case.plan(planner)
    if plan is None:
        return
    for cache in plan.configs:
        packed = [t for t in cache.tensors if t.block_stride_bytes is not None]
        assert len(packed) in (0, len(cache.tensors))
        sizes, end = _page_sizes(cache), 0
        for tensor in packed:
            assert tensor.offset_bytes == end
            end += max(sizes[name] for name in tensor.shared_by)
        assert all(tensor.block_stride_bytes == end for tensor in packed)


def each_layer_has_one_place(_: Implementation, planner: Planner, case: Case) -> None:
    """Check KV-PLAN-11, KV-PLAN-13: one group, one tensor, none twice for one group."""
    plan = case.plan(planner)
    if plan is None:
        return
    for layers, cache in zip(case.workers, plan.configs, strict=True):
        mine = sorted(name for name, _ in layers)
        assert sorted(n for group in cache.groups for n in group.layer_names) == mine
        assert sorted(n for tensor in cache.tensors for n in tensor.shared_by) == mine
        for group in cache.groups:
            for tensor in cache.tensors:
                assert len(set(group.layer_names) & set(tensor.shared_by)) <= 1
    assert len({len(cache.groups) for cache in plan.configs}) == 1


def the_memory_is_used_and_not_exceeded(_: Implementation, planner: Planner, case: Case) -> None:
    """Check KV-PLAN-12: no worker exceeds its memory, and one has no room for another block."""
    plan = case.plan(planner)
    if plan is None or not any(cache.tensors for cache in plan.configs):
        return
    num_blocks = plan.configs[0].num_blocks
    if case.config.num_blocks_override is not None:
        assert num_blocks == case.config.num_blocks_override
        return
    room = []
    for cache, memory in zip(plan.configs, case.memory, strict=True):
        sizes = _page_sizes(cache)
        per_block = sum(max(sizes[n] for n in tensor.shared_by) for tensor in cache.tensors)
        assert per_block * num_blocks <= memory or not cache.tensors
        room.append(not cache.tensors or per_block * (num_blocks + 1) <= memory)
    assert not all(room)


def the_estimate_is_the_largest_that_fits(_: Implementation, planner: Planner, case: Case) -> None:
    """Check KV-PLAN-10: the check passes up to the estimate, and fails beyond it."""
    layers, memory = case.workers[0], case.memory[0]
    try:
        longest = planner.estimate_max_model_len(layers, case.config, memory)
    except ConfigError:
        return  # no groups can be made
    for length in range(1, case.config.max_model_len_tokens + 1):
        asked = replace(case.config, max_model_len_tokens=length)
        refusal = None
        try:
            planner.check_enough_memory(layers, asked, memory)
        except CacheMemoryError as error:
            refusal = error
        assert (refusal is None) == (length <= longest or not layers)
        assert refusal is None or refusal.longest_tokens == longest


def automatic_length_is_the_longest_plan(_: Implementation, planner: Planner, case: Case) -> None:
    """Check KV-PLAN-10: the length found is planned for, and one token more is refused."""
    automatic = replace(case, config=replace(case.config, original_max_model_len_tokens=AUTO_FIT))
    found = automatic.plan(planner)
    if found is None:
        return
    length = found.max_model_len_tokens
    assert 1 <= length <= case.config.max_model_len_tokens
    for asked, fits in ((length, True), (length + 1, False)):
        if asked <= case.config.max_model_len_tokens:
            fixed = replace(
                case.config, original_max_model_len_tokens=None, max_model_len_tokens=asked
            )
            assert (replace(case, config=fixed).plan(planner) is not None) == fits


def an_accepted_plan_serves_a_request_of_full_length(
    implementation: Implementation, planner: Planner, case: Case
) -> None:
    """Check KV-PLAN-20: alone in the pool, prefilled or decoded, it is never refused."""
    plan = case.plan(planner)
    if plan is None or not any(cache.tensors for cache in plan.configs):
        return
    length = plan.max_model_len_tokens
    config = replace(case.config, max_model_len_tokens=length)
    for prompt, must_fit in ((length, True), (length, False), (max(1, length // 3), False)):
        manager = manager_of(implementation, planner, plan, config)
        request = implementation.make_request(
            manager, RequestInput("r", list(range(1, prompt + 1)))
        )
        while request.num_computed_tokens < length:
            if request.num_computed_tokens == request.num_tokens:
                implementation.append_tokens(manager, request, [request.num_tokens + 1])
            left = request.num_tokens - request.num_computed_tokens
            new = min(config.max_num_batched_tokens, left)
            answer = manager.allocate_slots(
                request,
                new,
                num_encoder_tokens=config.max_encoder_tokens,
                full_sequence_must_fit=must_fit and request.num_computed_tokens == 0,
                has_scheduled_reqs=False,
            )
            assert answer is not None, f"refused at {request.num_computed_tokens} of {length}"
            request.num_computed_tokens += new
            manager.new_step_starts()


def manager_of(
    implementation: Implementation, planner: Planner, plan: Plan, config: PlanningConfig
) -> KVCacheManager:
    """Make an engine's manager for a plan, with caching if these groups can be cached."""
    if config.enable_caching:
        try:
            return _created(implementation, planner, plan, config)
        except ConfigError:
            config = replace(config, enable_caching=False)
    return _created(implementation, planner, plan, config)  # KV-PLAN-21: never refused


def _created(
    implementation: Implementation, planner: Planner, plan: Plan, config: PlanningConfig
) -> KVCacheManager:
    cache = planner.scheduler_config(plan.configs)
    sizes = planner.block_sizes(cache, config)
    several = len(cache.groups) > 1
    return implementation.create(
        ManagerConfig(
            KVCacheConfig(cache.num_blocks, cache.groups),
            max_model_len_tokens=config.max_model_len_tokens,
            scheduler_block_size_tokens=sizes.scheduler_block_size_tokens if several else None,
            hash_block_size_tokens=sizes.hash_block_size_tokens if several else None,
            max_num_batched_tokens=config.max_num_batched_tokens,
            enable_caching=config.enable_caching,
            dcp_world_size=config.dcp_world_size,
            hash_seed="0",
            policy=config.policy,
        )
    )


CHECKS: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        tensors_have_their_pages,
        packed_tensors_lie_side_by_side,
        each_layer_has_one_place,
        the_memory_is_used_and_not_exceeded,
        the_estimate_is_the_largest_that_fits,
        automatic_length_is_the_longest_plan,
        an_accepted_plan_serves_a_request_of_full_length,
    )
}
