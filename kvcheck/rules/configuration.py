"""Examples of the chapter on configuration: what is derived, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.scenarios.groups import chunked, mamba, window
from kvcheck.rules.specs import full
from kvspec.config import CustomSpec, KVCacheConfig, SpecRegistry
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.interface import Feature
from kvspec.specs import (
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
)

CROSS = CrossAttentionSpec(8, 1, 8, "float16")
ENCODER = EncoderOnlyAttentionSpec(4, 1, 8, "float16")
MLA = MLAAttentionSpec(4, 1, 8, "float16")


@dataclass(frozen=True)
class RingSpec(LayerSpec):
    """A layer from outside the contract."""


@dataclass(frozen=True)
class WideRingSpec(RingSpec):
    """A subclass of it, which no pair names."""


def refused(bench: Bench, field: str, *specs: LayerSpec, **options: Any) -> None:
    """The configuration is an error of this field."""
    with raises(ConfigError, field=field):
        bench.manager(20, *specs, **options)


def sizes(manager: Managed) -> tuple[int | None, int | None]:
    """The scheduler and the hash block size."""
    config = manager.config
    return config.scheduler_block_size_tokens, config.hash_block_size_tokens


@example("KV-CFG-1", "KV-COORD-4")
def groups_share_a_specification_when_type_and_all_fields_agree(bench: Bench) -> None:
    bench.need(Feature.HITS_PER_GROUP, Feature.EVICTION_BY_ID)
    others = ((full(4, sliding_window=9), 12), (MLA, 12), (full(4), 4))
    for other, length in others:
        manager = bench.manager(60, full(4), other, window(6, 4))
        request = manager.started("r", range(13))
        manager.evict_blocks(manager.get_blocks(request).to_lists()[1][1:])
        hits = manager.find_longest_cache_hit_per_group(request, 12)
        equal(hits.hit_lengths_tokens[0], length, f"the first group's own hit beside {other}")


@example("KV-CFG-2", "KV-POOL-12")
def all_groups_draw_from_one_pool_whose_first_block_is_null(bench: Bench) -> None:
    manager = bench.manager(1)
    equal((manager.num_free_blocks, manager.usage), (0, 0.0))
    equal(manager.admit(manager.request("r", (1,))), None, "a request there")
    shared = bench.manager(6, full(4), MLA)
    shared.started("r", range(8))
    equal(shared.num_free_blocks, 1, "free blocks after two in each group")
    late = shared.request("late", (9,))
    equal(shared.admit(late), None, "a request that needs one in each")


@example("KV-CFG-3")
def without_a_group_nothing_can_be_cached(bench: Bench) -> None:
    bench.need(Feature.MULTIPLE_GROUPS)
    wrong = replace(bench.config(6), kv_cache=KVCacheConfig(6, ()))
    with raises(ConfigError, field="kv_cache.groups"):
        bench.create(wrong)
    manager = bench.create(replace(wrong, enable_caching=False))
    request = manager.request("r", range(9))
    granted = manager.allocate_slots(request, 9)
    equal(None if granted is None else granted.to_lists(), [], "what it needs without a group")
    equal(sizes(manager), (1, 1), "the sizes without a group")


@example("KV-CFG-4")
def scheduler_size(bench: Bench) -> None:
    """The scheduler block size is the span of one group, or the LCM of several."""
    equal(sizes(bench.manager(6, full(16))), (16, 16), "one group of 16")
    refused(bench, "scheduler_block_size_tokens", full(16), scheduler_block_size_tokens=32)
    several = bench.manager(20, full(16), full(24), scheduler_block_size_tokens=48)
    equal(sizes(several)[0], 48, "groups of 16 and 24")
    for given in (24, 96):
        options = {"scheduler_block_size_tokens": given}
        refused(bench, "scheduler_block_size_tokens", full(16), full(24), **options)
    equal(sizes(bench.manager(6, dcp_world_size=2, pcp_world_size=3)), (24, 24))


@example("KV-CFG-5")
def the_hash_block_size_is_that_of_one_group_or_divides_those_of_several(bench: Bench) -> None:
    equal(sizes(bench.manager(6, hash_block_size_tokens=2)), (4, 4), "one group, 2 given")
    equal(sizes(bench.manager(20, full(16), full(24)))[1], 8, "groups of 16 and 24")
    given = bench.manager(20, full(16), full(24), hash_block_size_tokens=4)
    equal(sizes(given)[1], 4, "4 given")
    for size in (16, 3, 5):
        options = {"hash_block_size_tokens": size}
        refused(bench, "hash_block_size_tokens", full(16), full(24), **options)
    off = bench.manager(20, full(16), full(24), enable_caching=False, hash_block_size_tokens=5)
    equal(sizes(off), (48, 48), "with caching off")


@example("KV-CFG-6", "KV-COORD-3")
def context_parallelism_is_refused_but_for_one_full_group(bench: Bench) -> None:
    bench.need(Feature.CONTEXT_PARALLEL)
    for field in ("dcp_world_size", "pcp_world_size"):
        ranks: dict[str, Any] = {field: 2}
        equal(sizes(bench.manager(6, **ranks)), (8, 8), "the span on two ranks")
        refused(bench, field, full(4), MLA, enable_caching=False, **ranks)
        refused(bench, field, window(6, 4), **ranks)
        refused(bench, field, full(4), window(6, 4), **ranks)


@example("KV-CFG-7")
def retention(bench: Bench) -> None:
    """Retention needs a window or a state, and is a multiple of the scheduler block size."""
    bench.need(Feature.RETENTION)
    field = "retention_interval_tokens"
    for interval in (0, 8, -1):
        refused(bench, field, full(4), retention_interval_tokens=interval)
    for spec in (window(6, 4), mamba("all", 4)):
        for interval in (-4, 6, 2):
            refused(bench, field, spec, retention_interval_tokens=interval)
        for fine in (0, 4, 12):
            bench.manager(6, spec, retention_interval_tokens=fine)
    refused(bench, field, full(8), window(6, 4), retention_interval_tokens=12)


@example("KV-CFG-8", "KV-FULL-3")
def flags(bench: Bench) -> None:
    """use_eagle flags all groups when none is flagged, and a flag counts without it."""
    cases = ((False, (), 8), (True, (), 4), (False, (0,), 4), (True, (0,), 4))
    for use_eagle, flagged, length in cases:
        manager = bench.manager(6, use_eagle=use_eagle, eagle_groups=flagged)
        manager.started("first", range(9))
        hit = manager.get_computed_blocks(manager.request("r", range(9)))
        what = f"the hit with use_eagle {use_eagle} and flags {flagged}"
        equal(hit.hit_length_tokens, length, what)
    bench.need(Feature.HITS_PER_GROUP)
    several = ((True, (), (8, 8)), (False, (1,), (12, 8)), (True, (1,), (12, 8)))
    for use_eagle, flagged, lengths in several:
        manager = bench.manager(20, full(4), MLA, use_eagle=use_eagle, eagle_groups=flagged)
        request = manager.started("r", range(13))
        hits = manager.find_longest_cache_hit_per_group(request, 12)
        what = f"hits per group with use_eagle {use_eagle} and flags {flagged}"
        equal(tuple(hits.hit_lengths_tokens), lengths, what)


@example("KV-CFG-9", "KV-COORD-3")
def a_custom_spec_is_managed_as_its_answer_for_this_manager_alone(bench: Bench) -> None:
    bench.need(Feature.CUSTOM_SPECS)
    pairs = (
        CustomSpec(RingSpec, lambda spec: full(spec.block_size // 2)),
        CustomSpec(RingSpec, lambda spec: full(16)),
    )
    registry = SpecRegistry(pairs)
    manager = bench.manager(6, RingSpec(8), registry=registry)
    equal(sizes(manager), (4, 4), "the first pair counts")
    manager.started("r", range(9))
    hit = manager.get_computed_blocks(manager.request("s", range(9)))
    equal(hit.hit_length_tokens, 8, "a hit")
    equal(manager.config.kv_cache.groups[0].spec, RingSpec(8), "the configuration shows")
    refused(bench, "kv_cache.groups", full(4), RingSpec(8), registry=registry)
    for spec, used in ((RingSpec(8), SpecRegistry()), (WideRingSpec(8), registry)):
        config = bench.config(6, spec, registry=used)
        with raises(UnsupportedError):
            bench.subject.create(config)
    odd = SpecRegistry((CustomSpec(RingSpec, lambda spec: spec),))
    config = bench.config(6, RingSpec(8), registry=odd)
    with raises(UnsupportedError):
        bench.subject.create(config)


@example("KV-CHUNK-3", "KV-POL-6")
def chunks(bench: Bench) -> None:
    """Chunks are multiples of blocks, and rule out drafting and other block sizes."""
    if bench.policy.chunk_must_align:
        refused(bench, "attention_chunk_size", chunked(6, 4))
        refused(bench, "attention_chunk_size", chunked(6, 4), enable_caching=False)
    else:
        manager = bench.manager(9, chunked(6, 4))
        granted = manager.allocate_slots(manager.request("r", range(9)), 9)
        holds(granted is not None, "a chunk of 6 in blocks of 4 is served")
    refused(bench, "block_size", chunked(16, 4), full(8))
    refused(bench, "is_eagle_group", chunked(16, 4), eagle_groups=(0,))
    refused(bench, "is_eagle_group", chunked(16, 4), use_eagle=True)
    bench.manager(9, chunked(16, 4), full(8), enable_caching=False, use_eagle=True)


@example("KV-CROSS-4", "KV-CROSS-3")
def groups_of_encoder_tokens_rule_out_caching(bench: Bench) -> None:
    for spec in (CROSS, ENCODER):
        refused(bench, "enable_caching", full(4), spec)
        refused(bench, "enable_caching", spec)
        manager = bench.manager(20, full(4), spec, enable_caching=False)
        for name in ("one", "two"):
            manager.started(name, range(9), cache_salt=None)
        probe = manager.request("probe", range(9))
        equal(manager.get_computed_blocks(probe).hit_length_tokens, 0, "a hit")


@example("KV-COORD-3")
def several_cached_groups_need_two_different_specs(bench: Bench) -> None:
    refused(bench, "kv_cache.groups", full(4), full(4))
    bench.manager(20, full(4), full(4), enable_caching=False)
    bench.manager(20, full(4), full(4), MLA)


@example("KV-FULL-8")
def kinds_of_full_attention_behave_alike_and_sinks_are_set_aside_at_start(bench: Bench) -> None:
    spec = SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=8)
    manager = bench.manager(8, spec)
    equal(manager.num_free_blocks, 5, "free blocks of 8 with two of sinks")
    if bench.has(Feature.SNAPSHOT):
        equal(manager.snapshot().reserved_blocks, (1, 2), "set aside")
    request = manager.started("r", range(9))
    if bench.has(Feature.NEW_BLOCK_IDS):
        equal(tuple(manager.take_new_block_ids()), (), "to be zeroed")
    manager.free(request)
    equal(manager.num_free_blocks, 5, "free blocks in the end")
    equal(manager.usage, 1.0 - 5 / 7, "usage in the end")
    create = bench.subject.create
    with raises(ConfigError):
        create(bench.config(2, spec))


@example("KV-ERR-5", "KV-POL-8")
def errors_name_the_field(bench: Bench) -> None:
    """What the implementation lacks is named, and a refused configuration leaves nothing."""
    can = bench.subject.capabilities
    for spec in (FullAttentionSpec, MLAAttentionSpec, CrossAttentionSpec):
        if spec not in can.spec_types:
            config = bench.config(6, spec(4, 1, 8, "float16"), enable_caching=False)
            with raises(UnsupportedError):
                bench.subject.create(config)
    bench.manager(6)  # from here on with full attention and caching
    for function in ("sha256_cbor", "sha256_cbor_64bit", "xxhash_cbor"):
        config = bench.config(6, hash_function=function, trusted_tenants=True)
        if function in can.hash_functions:
            equal(bench.create(config).config.hash_function, function)
        else:
            with raises(UnsupportedError):
                bench.subject.create(config)
    refused(bench, "retention_interval_tokens", retention_interval_tokens=-1)
    refused(bench, "scheduler_block_size_tokens", scheduler_block_size_tokens=7)
