"""Small configurations and snapshots, with options and members drawn anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from kvcheck.play.random_configs import random_config
from kvfast import uncompiled
from kvspec.config import HASH_FUNCTIONS, KVCacheGroup, ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec, LayerSpec, SinkFullAttentionSpec
from tests.contract.hostile import Liar
from tests.lockstep.choices import OTHERS, with_policy

LARGE = (2**20, 2**31 - 1, 2**31, 2**40, 2**53 - 1)
ODD_RATES = (1e-9, 0.5, 1.0, 1)


def draw_config(random: Random) -> ManagerConfig:
    plain = random_config(random)
    for _ in range(5):
        changed = _changed(random, plain)
        try:
            uncompiled().create(changed)
        except KVSpecError:
            continue
        return changed
    return plain


def _changed(random: Random, config: ManagerConfig) -> ManagerConfig:
    new: dict[str, Any] = {}
    chosen: dict[str, Callable[[], object]] = {
        "max_model_len_tokens": lambda: random.choice((2, 7, 64, 256, *LARGE)),
        "max_num_batched_tokens": lambda: random.choice((None, 1, 2**53 - 1)),
        "enable_caching": lambda: False,
        "use_eagle": lambda: True,
        "log_stats": lambda: False,
        "enable_events": lambda: False,
        "int_event_hashes": lambda: True,
        "watermark": lambda: random.choice((0.0, 0.9, 1.0, 1e-300)),
        "retention_interval_tokens": lambda: random.choice((None, 0, 8, 16, 2**40)),
        "hash_function": lambda: random.choice(HASH_FUNCTIONS),
        "hash_seed": lambda: random.choice((None, "", "0", "ü" * 100)),
        "residency_sample_rate": lambda: random.choice(ODD_RATES),
    }
    for name, draw in chosen.items():
        if random.random() < 0.25:
            new[name] = draw()
    new["trusted_tenants"] = True
    groups = config.kv_cache.groups
    if random.random() < 0.3:
        groups = tuple(_other_spec(random, group) for group in groups)
    num_blocks = config.kv_cache.num_blocks
    if random.random() < 0.2:
        num_blocks = random.choice((1, 2, 3, 100, 300))
    return replace(
        with_policy(config, [name for name in OTHERS if random.random() < 0.1]),
        kv_cache=replace(config.kv_cache, groups=groups, num_blocks=num_blocks),
        **new,
    )


def _other_spec(random: Random, group: KVCacheGroup) -> KVCacheGroup:
    spec: LayerSpec = group.spec
    factor = random.choice((1, 1, 3, 16, 100))
    new: dict[str, Any] = {"block_size": spec.block_size * factor}
    if spec.window_tokens:
        new["sliding_window"] = random.choice((1, 2, 7, 1000, *LARGE))
    elif spec.chunk_tokens:
        new["attention_chunk_size"] = spec.block_size * factor * random.choice((1, 2, 5, 2**20))
    elif spec.is_state:
        new["num_speculative_blocks"] = random.choice((0, 1, 2, 5, 1000, *LARGE))
        new["mamba_cache_mode"] = random.choice(("none", "all", "align", "align"))
    elif isinstance(spec, SinkFullAttentionSpec):
        new["sink_len"] = spec.block_size * factor * random.choice((0, 1, 2))
    elif type(spec) is FullAttentionSpec and random.random() < 0.1:
        new["block_size"] = random.choice(LARGE)
    return replace(group, spec=replace(spec, **new), is_eagle_group=random.random() < 0.3)


ODD: tuple[Any, ...] = (-1, 0, 1, 2, 7, 2**31, 2**40, 2**70, None, True, "x", b"x", Liar(1))


def tamper(snapshot: Snapshot, member: str, seed: int) -> Snapshot:
    return replace(
        snapshot, **{member: _changed_of_tamper(getattr(snapshot, member), Random(seed))}
    )


def _changed_of_tamper(value: Any, random: Random) -> Any:
    if isinstance(value, dict) or hasattr(value, "items"):
        items = list(value.items())
        if not items or random.random() < 0.3:
            return {**dict(items), random.choice(("r", b"k" * 36, b"", 3)): random.choice(ODD)}
        at = random.randrange(len(items))
        if random.random() < 0.3:
            return dict(items[:at] + items[at + 1 :])
        items[at] = (items[at][0], _changed_of_tamper(items[at][1], random))
        return dict(items)
    if isinstance(value, tuple | frozenset):
        listed = sorted(value) if isinstance(value, frozenset) else list(value)
        way = random.randrange(5)
        if way == 0 or not listed:
            listed.insert(random.randint(0, len(listed)), random.choice(ODD))
        elif way == 1:
            del listed[random.randrange(len(listed))]
        elif way == 2:
            listed.append(random.choice(listed))
        else:
            at = random.randrange(len(listed))
            listed[at] = _changed_of_tamper(listed[at], random)
        return type(value)(listed)
    if isinstance(value, bytes):
        return random.choice((value[:-1], value + b"x", b"", bytes(len(value)), value[::-1]))
    if hasattr(value, "__dataclass_fields__"):
        member = random.choice(sorted(value.__dataclass_fields__))
        return replace(value, **{member: _changed_of_tamper(getattr(value, member), random)})
    return random.choice(ODD)
