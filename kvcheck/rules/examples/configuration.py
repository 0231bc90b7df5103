"""Examples of the chapter on configuration: what is derived, and what is refused."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kvcheck.rules.examples.bench import Bench, full
from kvcheck.rules.examples.example import example
from kvcheck.rules.scenarios.groups import chunked, mamba, window
from kvspec.config import CustomSpec, KVCacheConfig, SpecRegistry
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.interface import Feature, KVCacheManager
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
    bench.raises(
        f"a configuration of {specs} with {options}",
        ConfigError,
        bench.manager,
        20,
        *specs,
        field=field,
        **options,
    )


def sizes(manager: KVCacheManager) -> tuple[int | None, int | None]:
    """The scheduler and the hash block size."""
    config = manager.config
    return config.scheduler_block_size_tokens, config.hash_block_size_tokens


@example("KV-CFG-1", "KV-COORD-4")
def equal_specs(bench: Bench) -> None:
    """Groups share a specification when type and all fields agree."""
    bench.need(Feature.HITS_PER_GROUP, Feature.EVICTION_BY_ID)
    others = ((full(4, sliding_window=9), 12), (MLA, 12), (full(4), 4))
    for other, length in others:
        manager = bench.manager(60, full(4), other, window(6, 4))
        request = bench.started(manager, "r", range(13))
        manager.evict_blocks(manager.get_blocks(request).to_lists()[1][1:])
        hits = manager.find_longest_cache_hit_per_group(request, 12)
        bench.equal(f"the first group's own hit beside {other}", length, hits.hit_lengths_tokens[0])


@example("KV-CFG-2", "KV-POOL-12")
def one_pool(bench: Bench) -> None:
    """All groups draw from one pool, whose first block is null."""
    manager = bench.manager(1)
    bench.equal("free blocks and usage of one block", (0, 0.0),
                (manager.num_free_blocks, manager.usage))  # fmt: skip
    bench.equal("a request there", None, bench.admit(manager, bench.request(manager, "r", (1,))))
    shared = bench.manager(6, full(4), MLA)
    bench.started(shared, "r", range(8))
    bench.equal("free blocks after two in each group", 1, shared.num_free_blocks)
    late = bench.request(shared, "late", (9,))
    bench.equal("a request that needs one in each", None, bench.admit(shared, late))


@example("KV-CFG-3")
def caching_needs_a_group(bench: Bench) -> None:
    """Without a group nothing can be cached."""
    bench.need(Feature.MULTIPLE_GROUPS)
    wrong = replace(bench.config(6), kv_cache=KVCacheConfig(6, ()))
    what = "caching without a group"
    bench.raises(what, ConfigError, bench.create, wrong, field="kv_cache.groups")
    manager = bench.create(replace(wrong, enable_caching=False))
    request = bench.request(manager, "r", range(9))
    granted = manager.allocate_slots(request, 9)
    bench.equal(
        "what it needs without a group", [], None if granted is None else granted.to_lists()
    )
    bench.equal("the sizes without a group", (1, 1), sizes(manager))


@example("KV-CFG-4")
def scheduler_size(bench: Bench) -> None:
    """The scheduler block size is the span of one group, or the LCM of several."""
    bench.equal("one group of 16", (16, 16), sizes(bench.manager(6, full(16))))
    refused(bench, "scheduler_block_size_tokens", full(16), scheduler_block_size_tokens=32)
    several = bench.manager(20, full(16), full(24), scheduler_block_size_tokens=48)
    bench.equal("groups of 16 and 24", 48, sizes(several)[0])
    for given in (24, 96):
        options = {"scheduler_block_size_tokens": given}
        refused(bench, "scheduler_block_size_tokens", full(16), full(24), **options)
    bench.equal("block size 4 on 6 ranks", (24, 24),
                sizes(bench.manager(6, dcp_world_size=2, pcp_world_size=3)))  # fmt: skip


@example("KV-CFG-5")
def hash_size(bench: Bench) -> None:
    """The hash block size is that of one group, or divides those of several."""
    bench.equal("one group, 2 given", (4, 4), sizes(bench.manager(6, hash_block_size_tokens=2)))
    bench.equal("groups of 16 and 24", 8, sizes(bench.manager(20, full(16), full(24)))[1])
    given = bench.manager(20, full(16), full(24), hash_block_size_tokens=4)
    bench.equal("4 given", 4, sizes(given)[1])
    for size in (16, 3, 5):
        options = {"hash_block_size_tokens": size}
        refused(bench, "hash_block_size_tokens", full(16), full(24), **options)
    off = bench.manager(20, full(16), full(24), enable_caching=False, hash_block_size_tokens=5)
    bench.equal("with caching off", (48, 48), sizes(off))


@example("KV-CFG-6", "KV-COORD-3")
def context_parallelism(bench: Bench) -> None:
    """Context parallelism needs one group of full attention."""
    bench.need(Feature.CONTEXT_PARALLEL)
    for field in ("dcp_world_size", "pcp_world_size"):
        ranks: dict[str, Any] = {field: 2}
        bench.equal("the span on two ranks", (8, 8), sizes(bench.manager(6, **ranks)))
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
        bench.started(manager, "first", range(9))
        hit = manager.get_computed_blocks(bench.request(manager, "r", range(9)))
        what = f"the hit with use_eagle {use_eagle} and flags {flagged}"
        bench.equal(what, length, hit.hit_length_tokens)
    bench.need(Feature.HITS_PER_GROUP)
    several = ((True, (), (8, 8)), (False, (1,), (12, 8)), (True, (1,), (12, 8)))
    for use_eagle, flagged, lengths in several:
        manager = bench.manager(20, full(4), MLA, use_eagle=use_eagle, eagle_groups=flagged)
        request = bench.started(manager, "r", range(13))
        hits = manager.find_longest_cache_hit_per_group(request, 12)
        what = f"hits per group with use_eagle {use_eagle} and flags {flagged}"
        bench.equal(what, lengths, tuple(hits.hit_lengths_tokens))


@example("KV-CFG-9", "KV-COORD-3")
def custom_specs(bench: Bench) -> None:
    """A custom spec is managed as its answer, for this manager alone."""
    bench.need(Feature.CUSTOM_SPECS)
    pairs = (
        CustomSpec(RingSpec, lambda spec: full(spec.block_size // 2)),
        CustomSpec(RingSpec, lambda spec: full(16)),
    )
    registry = SpecRegistry(pairs)
    manager = bench.manager(6, RingSpec(8), registry=registry)
    bench.equal("the first pair counts", (4, 4), sizes(manager))
    bench.started(manager, "r", range(9))
    hit = manager.get_computed_blocks(bench.request(manager, "s", range(9)))
    bench.equal("a hit", 8, hit.hit_length_tokens)
    bench.equal("the configuration shows", RingSpec(8), manager.config.kv_cache.groups[0].spec)
    refused(bench, "kv_cache.groups", full(4), RingSpec(8), registry=registry)
    for spec, used in ((RingSpec(8), SpecRegistry()), (WideRingSpec(8), registry)):
        config = bench.config(6, spec, registry=used)
        bench.raises(f"{spec} without a pair", UnsupportedError, bench.subject.create, config)
    odd = SpecRegistry((CustomSpec(RingSpec, lambda spec: spec),))
    config = bench.config(6, RingSpec(8), registry=odd)
    bench.raises("an answer that is no built-in spec", UnsupportedError,
                 bench.subject.create, config)  # fmt: skip


@example("KV-CHUNK-3", "KV-POL-6")
def chunks(bench: Bench) -> None:
    """Chunks are multiples of blocks, and rule out drafting and other block sizes."""
    if bench.policy.chunk_must_align:
        refused(bench, "attention_chunk_size", chunked(6, 4))
        refused(bench, "attention_chunk_size", chunked(6, 4), enable_caching=False)
    else:
        manager = bench.manager(9, chunked(6, 4))
        granted = manager.allocate_slots(bench.request(manager, "r", range(9)), 9)
        bench.holds("a chunk of 6 in blocks of 4 is served", granted is not None)
    refused(bench, "block_size", chunked(16, 4), full(8))
    refused(bench, "is_eagle_group", chunked(16, 4), eagle_groups=(0,))
    refused(bench, "is_eagle_group", chunked(16, 4), use_eagle=True)
    bench.manager(9, chunked(16, 4), full(8), enable_caching=False, use_eagle=True)


@example("KV-CROSS-4", "KV-CROSS-3")
def encoders(bench: Bench) -> None:
    """Groups of encoder tokens rule out caching."""
    for spec in (CROSS, ENCODER):
        refused(bench, "enable_caching", full(4), spec)
        refused(bench, "enable_caching", spec)
        manager = bench.manager(20, full(4), spec, enable_caching=False)
        for name in ("one", "two"):
            bench.started(manager, name, range(9), cache_salt=None)
        probe = bench.request(manager, "probe", range(9))
        bench.equal("a hit", 0, manager.get_computed_blocks(probe).hit_length_tokens)


@example("KV-COORD-3")
def different_specs(bench: Bench) -> None:
    """Several cached groups need two different specs."""
    refused(bench, "kv_cache.groups", full(4), full(4))
    bench.manager(20, full(4), full(4), enable_caching=False)
    bench.manager(20, full(4), full(4), MLA)


@example("KV-FULL-8")
def sinks(bench: Bench) -> None:
    """Kinds of full attention behave alike, and sinks are set aside at start."""
    spec = SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=8)
    manager = bench.manager(8, spec)
    bench.equal("free blocks of 8 with two of sinks", 5, manager.num_free_blocks)
    if bench.has(Feature.SNAPSHOT):
        bench.equal("set aside", (1, 2), manager.snapshot().reserved_blocks)
    request = bench.started(manager, "r", range(9))
    if bench.has(Feature.NEW_BLOCK_IDS):
        bench.equal("to be zeroed", (), tuple(manager.take_new_block_ids()))
    manager.free(request)
    bench.equal("free blocks in the end", 5, manager.num_free_blocks)
    bench.equal("usage in the end", 1.0 - 5 / 7, manager.usage)
    create = bench.subject.create
    bench.raises("a pool too small for them", ConfigError, create, bench.config(2, spec))


@example("KV-ERR-5", "KV-POL-8")
def errors_name_the_field(bench: Bench) -> None:
    """What the implementation lacks is named, and a refused configuration leaves nothing."""
    can = bench.subject.capabilities
    for spec in (FullAttentionSpec, MLAAttentionSpec, CrossAttentionSpec):
        if spec not in can.spec_types:
            config = bench.config(6, spec(4, 1, 8, "float16"), enable_caching=False)
            bench.raises(spec.__name__, UnsupportedError, bench.subject.create, config)
    bench.manager(6)  # from here on with full attention and caching
    for function in ("sha256_cbor", "sha256_cbor_64bit", "xxhash_cbor"):
        config = bench.config(6, hash_function=function)
        if function in can.hash_functions:
            bench.equal(f"the function of {function}", function,
                        bench.subject.create(config).config.hash_function)  # fmt: skip
        else:
            bench.raises(function, UnsupportedError, bench.subject.create, config)
    refused(bench, "retention_interval_tokens", retention_interval_tokens=-1)
    refused(bench, "scheduler_block_size_tokens", scheduler_block_size_tokens=7)


CONFIGURATION = (
    equal_specs, one_pool, caching_needs_a_group, scheduler_size, hash_size, context_parallelism,
    retention, flags, custom_specs, chunks, encoders, different_specs, sinks, errors_name_the_field,
)  # fmt: skip
