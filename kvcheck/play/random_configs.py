"""Random configurations for programs: mixtures of groups that may be combined, small pools."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from math import lcm
from random import Random
from typing import Any

from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    HiddenStateCacheSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    ReplayedWindowSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    TQFullAttentionSpec,
)

# Several of one kind are likely: equal specs are looked up jointly (KV-COORD-4).
MIXTURES: tuple[tuple[str, ...], ...] = (
    ("full",), ("full",), ("mla",), ("window",), ("chunked",), ("mamba",), ("sink",),
    ("full", "window"), ("full", "mamba"), ("full", "chunked"), ("window", "mamba"),
    ("full", "window", "window"), ("full", "window", "window"), ("full", "window", "mamba"),
    ("window", "full", "window"), ("window", "window"), ("full", "mla", "window"),
    ("full", "window", "mamba", "window"), ("full", "chunked", "window", "mamba"),
    ("latent window", "full", "mamba"), ("tq", "hidden", "window"), ("full", "cross"),
    ("full", "encoder", "window"),
)  # fmt: skip

ENCODERS = frozenset({"cross", "encoder"})

OTHER_ORDERS = ("priority", "lfu", "pin:1", "pin:2", "pin:3", "ttl:1", "ttl:4")
"""Orders of eviction beside `lru`."""


HYBRIDS: tuple[tuple[str, ...], ...] = (
    ("full", "window", "window"), ("window", "window"), ("full", "window", "mamba"),
    ("full", "window", "mamba", "window"), ("window", "mamba", "window"),
    ("full", "window", "window", "window"), ("window", "window", "window"), ("full", "window"),
    ("full", "mla", "window", "window"),
)  # fmt: skip
"""Mixtures whose groups may disagree about a hit and must search."""


KINDS = ("full", "full", "mla", "window", "window", "chunked", "mamba", "cross")
"""Types that may be combined in any way."""


def random_config(random: Random, *, hybrid: bool = False, is_mixed: bool = False) -> ManagerConfig:
    """Draw a configuration that every implementation with these types must accept.

    `hybrid`: with caching, and a pool that holds a long text. `is_mixed`: one to four types, mixed
    in any way. Later types and switches are drawn apart, so that all other draws stay as they were.
    """
    kinds = random.choice(HYBRIDS if hybrid else MIXTURES)
    if is_mixed and not hybrid and random.random() < 0.7:
        kinds = tuple(random.choices(KINDS, k=random.randint(1, 4)))
    config = _usual_config(random, kinds, hybrid=hybrid)
    aside = Random(copy(random).random())  # Hypothesis's random numbers have no state to set
    return with_switches(aside, with_later_types(aside, config))


def with_switches(random: Random, config: ManagerConfig) -> ManagerConfig:
    """Turn off events or statistics, hash from another seed, align hits: each now and then."""
    sizes = [spec.block_size for spec in config.managed_specs]
    aligned = lcm(*sizes) * config.dcp_world_size * config.pcp_world_size  # KV-CFG-4
    return replace(
        config,
        enable_events=random.random() >= 0.12,
        log_stats=random.random() >= 0.12,
        hash_seed=random.choice(("0",) * 9 + ("another seed",)),
        scheduler_block_size_tokens=aligned if sizes and random.random() < 0.06 else None,
    )


def with_later_types(random: Random, config: ManagerConfig) -> ManagerConfig:
    """Add, now and then, a circular buffer, a replayed window, R-SWA, or retained tokens."""
    chance, cache = random.random(), config.kv_cache
    if chance < 0.08:
        later = tuple(_later_group(random, group) for group in cache.groups)
        return replace(config, kv_cache=replace(cache, groups=later))
    sizes = [spec.block_size for spec in config.managed_specs]
    if chance > 0.2 or config.dcp_world_size > 1:
        return config
    size, more = random.choice(sizes), random.choice((1, 3, 5))
    added: LayerSpec = CircularBufferSpec(size, 1, 8, "float16")
    if chance > 0.14:
        window = random.choice((1, 2, 3, 5, 8))
        added, more = ReplayedWindowSpec(size, 1, 8, "float16", sliding_window=window), 4 * more
    groups = [*cache.groups]
    groups.insert(random.randrange(len(groups) + 1), KVCacheGroup(("uncached",), added))
    num_blocks = cache.num_blocks + more
    return replace(config, kv_cache=replace(cache, groups=tuple(groups), num_blocks=num_blocks))


def _later_group(random: Random, group: KVCacheGroup) -> KVCacheGroup:
    """Replace full attention by R-SWA, and let a window retain more (KV-RSWA-1, KV-SW-9)."""
    spec = group.spec
    if type(spec) is FullAttentionSpec:
        window = random.choice((1, 2, 3, 5))
        spec = RSWASpec(spec.block_size, 1, 8, "float16", rswa_window=window)
    elif isinstance(spec, SlidingWindowSpec):
        spec = replace(spec, extra_retained_tokens=random.choice((1, 2, 3, 5)))
    return replace(group, spec=spec)


def _usual_config(random: Random, kinds: Sequence[str], *, hybrid: bool) -> ManagerConfig:
    """Draw a configuration of these types.

    Chunked local attention rules out drafting and unequal block sizes (KV-CHUNK-3); groups of
    encoder tokens rule out caching (KV-CROSS-4); several cached groups need two different specs
    (KV-COORD-3); context parallelism needs one group of full attention (KV-CFG-6).
    """
    base = random.choice((1, 2, 2))
    equal_sizes = "chunked" in kinds or random.random() < (0.8 if hybrid else 0.6)
    sizes = [base if equal_sizes else base * random.choice((1, 1, 2, 4)) for _ in kinds]
    windows = (2, 3, 4, 5, 6) if hybrid else (1, 2, 3, 4, 5, 8, 11)
    specs = [_spec(random, kind, size, windows) for kind, size in zip(kinds, sizes, strict=True)]
    caching = not ENCODERS & set(kinds) and (hybrid or random.random() < 0.95)
    if caching and len(specs) > 1 and all(spec == specs[0] for spec in specs):
        specs[-1] = MLAAttentionSpec(sizes[-1], 1, 32, "bfloat16")
    drafting = "chunked" not in kinds
    options = _options(random, specs, caching=caching, drafting=drafting)
    flags = [drafting and random.random() < 0.25 for _ in specs]
    groups = tuple(
        KVCacheGroup((f"layer.{number}",), spec, is_eagle_group=flag)
        for number, (spec, flag) in enumerate(zip(specs, flags, strict=True))
    )
    scarce = random.random() < 0.6
    num_blocks = len(specs) * random.choice((3, 4, 5) if scarce else (8, 12, 16)) + 2
    if hybrid:
        num_blocks = len(specs) * 45
    num_blocks += sum(_set_aside(spec) for spec in specs)
    return ManagerConfig(KVCacheConfig(num_blocks, groups), **options)


def _options(
    random: Random, specs: list[LayerSpec], *, caching: bool, drafting: bool
) -> dict[str, Any]:
    """Draw the switches, at their defaults most of the time."""
    windowed = any(spec.retains_sparsely for spec in specs)
    alignment = max(spec.block_size for spec in specs)  # sizes are powers of two times the base
    options: dict[str, Any] = {
        "max_model_len_tokens": random.choice((16, 48, 48)),
        "max_num_batched_tokens": random.choice((None, 4, 8)),
        "enable_caching": caching,
        "use_eagle": drafting and random.random() < 0.2,
        "log_stats": True,
        "enable_events": True,
        "int_event_hashes": random.random() < 0.1,
        "hash_seed": "0",
        "hash_function": random.choice(("sha256_cbor",) * 5 + ("sha256_cbor_64bit",)),
        "trusted_tenants": True,
        "watermark": random.choice((0.0, 0.0, 0.0, 0.2, 0.4)),
        "residency_sample_rate": random.choice((0.0, 0.0, 0.5, 1.0)),
        "hash_lookahead_tokens": random.choice((0,) * 8 + (1, 3)),
    }
    # Of another, so that later draws are the same as without.
    options["eviction_order"] = Random(copy(random).random()).choice(("lru",) * 6 + OTHER_ORDERS)
    if windowed:
        interval = random.choice((None, None, 0, alignment, 2 * alignment))
        options["retention_interval_tokens"] = interval
    if len(specs) == 1 and specs[0].is_full_attention and random.random() < 0.2:
        options["dcp_world_size"] = 2
    return options


def _set_aside(spec: LayerSpec) -> int:
    return spec.num_sink_blocks


def _spec(random: Random, kind: str, size: int, windows: Sequence[int]) -> LayerSpec:
    full = FullAttentionSpec(size, 1, 8, "float16")
    window = SlidingWindowSpec(size, 1, 8, "float16", sliding_window=random.choice(windows))
    if kind == "window":
        return window
    if kind == "latent window":
        return SlidingWindowMLASpec(size, 1, 8, "float16", sliding_window=window.sliding_window)
    if kind == "chunked":
        chunk = size * random.choice((1, 2, 3, 4))
        return ChunkedLocalAttentionSpec(size, 1, 8, "float16", attention_chunk_size=chunk)
    if kind == "mamba":
        return MambaSpec(
            size,
            ((2,),),
            ("float32",),
            mamba_cache_mode=random.choice(("none", "all", "align", "align")),
            num_speculative_blocks=random.choice((0, 0, 1, 2)),
        )
    if kind == "sink":
        return SinkFullAttentionSpec(size, 1, 8, "float16", sink_len=size)
    others: dict[str, LayerSpec] = {
        "mla": MLAAttentionSpec(size, 1, 16, "bfloat16"),
        "tq": TQFullAttentionSpec(size, 1, 8, "float16", tq_slot_size=4),
        "hidden": HiddenStateCacheSpec(size, 1, 8, "float16"),
        "cross": CrossAttentionSpec(size, 1, 8, "float16"),
        "encoder": EncoderOnlyAttentionSpec(size, 1, 8, "float16"),
    }
    return others.get(kind, replace(full))
