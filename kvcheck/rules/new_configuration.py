"""KV-CFG: what can be configured, what is derived, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import full, mamba, sliding
from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.specs import FullAttentionSpec, LayerSpec, MLAAttentionSpec


def refused_field(bench: Bench, **config: Any) -> str:
    """The field that the ConfigError of this configuration names."""
    with raises(ConfigError) as caught:
        bench.manager(**config)
    return caught.value.field


@example("KV-CFG-1")
def specs_are_equal_values_of_one_type(bench: Bench) -> None:
    """Equal fields make one specification; another field, or another type, makes two."""
    equal(full(16), full(16))
    equal(hash(full(16)), hash(full(16)))
    holds(full(16) != full(16, head_size=16))
    holds(FullAttentionSpec(16, 1, 8, "float16") != MLAAttentionSpec(16, 1, 8, "float16"))


@example("KV-CFG-1", level=Level.SAFETY)
def specs_are_frozen(bench: Bench) -> None:
    """A spec cannot be changed after it was made, and is checked when it is made."""
    with raises(dataclasses.FrozenInstanceError):
        full().block_size = 8  # type: ignore[misc]  # the point
    with raises(ConfigError, field="block_size"):
        full(0)


@dataclasses.dataclass(frozen=True)
class RingSpec(LayerSpec):
    """A layer from outside the contract."""


@example("KV-CFG-1", level=Level.IDENTITY)
def a_custom_spec_counts_as_what_it_is_managed_as(bench: Bench) -> None:
    """A ring of 8 tokens, managed as full attention of 4, has blocks of 4 tokens."""
    registry = SpecRegistry((CustomSpec(RingSpec, lambda spec: full(spec.block_size // 2)),))
    manager = bench.manager(6, RingSpec(8), registry=registry)
    equal(manager.config.scheduler_block_size_tokens, 4)
    request = manager.request("r", range(9))
    manager.admit(request)
    equal(manager.blocks(request), [1, 2, 3])
    equal(manager.hit(manager.request("s", range(9))), [1, 2])
    with raises(UnsupportedError):
        bench.subject.create(bench.config(6, RingSpec(8)))


@example("KV-CFG-2", "KV-POOL-12", "KV-ERR-1")
def a_pool_of_the_null_block_refuses_everything(bench: Bench) -> None:
    """With 1 block every request that needs one is refused, and usage is 0.0."""
    manager = bench.manager(1)
    equal(manager.num_free_blocks, 0)
    equal(manager.admit(manager.request("r", [1])), None)
    equal(manager.usage, 0.0)


@example("KV-CFG-2", "KV-ERR-5")
def a_pool_has_a_block(bench: Bench) -> None:
    """0 blocks are refused."""
    equal(refused_field(bench, num_blocks=0), "num_blocks")


@example("KV-CFG-3", "KV-ERR-5")
def caching_needs_a_group(bench: Bench) -> None:
    """No group and caching on: an error; with caching off: a manager."""
    equal(refused_field(bench, specs=[]), "kv_cache.groups")
    bench.manager(specs=[], enable_caching=False)


@cases({"dcp_world_size": 2}, {"pcp_world_size": 2})
@example("KV-CFG-4")
def with_one_group_the_scheduler_block_size_is_the_span(
    bench: Bench, ranks: dict[str, int]
) -> None:
    """Block size 16 on 2 ranks: 32, given or not; 16 is an error."""
    equal(bench.manager(block_size=16, **ranks).config.scheduler_block_size_tokens, 32)
    bench.manager(block_size=16, scheduler_block_size_tokens=32, **ranks)
    field = refused_field(bench, block_size=16, scheduler_block_size_tokens=16, **ranks)
    equal(field, "scheduler_block_size_tokens")


@example("KV-CFG-4", "KV-CFG-5")
def with_several_groups_the_scheduler_block_size_is_their_lcm(bench: Bench) -> None:
    """16 and 24 give 48, and with caching off the hash block size equals it, whatever is given."""
    several: dict[str, Any] = {"specs": [full(16), full(24)], "enable_caching": False}
    config = bench.manager(**several, hash_block_size_tokens=4).config
    equal((config.scheduler_block_size_tokens, config.hash_block_size_tokens), (48, 48))
    bench.manager(**several, scheduler_block_size_tokens=48)
    for given in (24, 96):
        field = refused_field(bench, **several, scheduler_block_size_tokens=given)
        equal(field, "scheduler_block_size_tokens")


@example("KV-CFG-5", "KV-CFG-4")
def with_several_groups_hashes_end_where_every_block_ends(bench: Bench) -> None:
    """16 and 24 give 8 tokens per hash; 4 is legal, 16 is not."""
    several: dict[str, Any] = {"specs": [full(16), full(24)]}
    config = bench.manager(**several).config
    equal((config.scheduler_block_size_tokens, config.hash_block_size_tokens), (48, 8))
    given = bench.manager(**several, hash_block_size_tokens=4).config
    equal(given.hash_block_size_tokens, 4)
    field = refused_field(bench, **several, hash_block_size_tokens=16)
    equal(field, "hash_block_size_tokens")


@cases(
    ({}, 1),
    ({"hash_block_size_tokens": 8}, 8),
    ({"scheduler_block_size_tokens": 16, "hash_block_size_tokens": 8}, 16),
)
@example("KV-CFG-4")
def without_a_group_the_given_size_is_taken(bench: Bench, given: dict[str, int], size: int) -> None:
    """The scheduler block size, else the hash block size, else 1."""
    config = bench.manager(specs=[], enable_caching=False, **given).config
    equal(config.scheduler_block_size_tokens, size)


@cases(True, False)
@example("KV-CFG-5")
def with_one_group_a_given_hash_block_size_is_ignored(bench: Bench, caching: bool) -> None:
    """One group with block size 16: 16, also when 4 is given."""
    manager = bench.manager(block_size=16, hash_block_size_tokens=4, enable_caching=caching)
    equal(manager.config.hash_block_size_tokens, 16)


@cases("dcp_world_size", "pcp_world_size")
@example("KV-CFG-6")
def context_parallelism_needs_exactly_one_group(bench: Bench, field: str) -> None:
    """One MLA group is legal; two groups or none are an error that names the world size above 1."""
    ranks: dict[str, Any] = {field: 2}
    bench.manager(specs=[MLAAttentionSpec(4, 1, 8, "float16")], **ranks)
    for specs in ([], [full(), full()]):
        equal(refused_field(bench, specs=specs, enable_caching=False, **ranks), field)


@example("KV-CFG-6")
def context_parallelism_needs_full_attention(bench: Bench) -> None:
    """A sliding-window group on 2 ranks is an error."""
    equal(refused_field(bench, specs=[sliding(4, 8)], dcp_world_size=2), "dcp_world_size")


@cases(32, 0, -1, 3)
@example("KV-CFG-7")
def retention_needs_a_window(bench: Bench, interval: int) -> None:
    """One full-attention group and an interval: an error, whatever the number."""
    field = refused_field(bench, block_size=16, retention_interval_tokens=interval)
    equal(field, "retention_interval_tokens")


@cases(sliding(16, 8), mamba(16))
@example("KV-CFG-7")
def retention_is_a_multiple_of_the_scheduler_block_size(bench: Bench, spec: LayerSpec) -> None:
    """With a window or Mamba state 0 and 32 are legal; -16 and 24 are not."""
    for interval in (None, 0, 32):
        bench.manager(6, spec, retention_interval_tokens=interval)
    for interval in (-16, 24):
        field = refused_field(bench, specs=[spec], retention_interval_tokens=interval)
        equal(field, "retention_interval_tokens")


@cases((False, (), [1, 2]), (True, (), [1]), (False, (0,), [1]), (True, (0,), [1]))
@example("KV-CFG-8", "KV-FULL-3", level=Level.IDENTITY)
def use_eagle_flags_every_group_when_none_is(
    bench: Bench, use_eagle: bool, flagged: tuple[int, ...], hit: list[int]
) -> None:
    """Not flagged: it drops with `use_eagle` only. Flagged: it drops in both cases."""
    manager = bench.manager(6, use_eagle=use_eagle, eagle_groups=flagged)
    manager.admit(manager.request("first", range(9)))
    equal(manager.hit(manager.request("r", range(9))), hit)


@cases((False, (), (12, 12)), (True, (), (8, 8)), (False, (1,), (12, 8)), (True, (1,), (12, 8)))
@example("KV-CFG-8", "KV-FULL-3")
def one_flag_keeps_use_eagle_from_flagging_the_others(
    bench: Bench, use_eagle: bool, flagged: tuple[int, ...], lengths: tuple[int, int]
) -> None:
    """Of two groups with three blocks cached, only the flagged one drops; without a flag both."""
    specs = [full(4), full(4, head_size=16)]
    manager = bench.manager(12, specs=specs, use_eagle=use_eagle, eagle_groups=flagged)
    manager.admit(manager.request("first", range(13)))
    hits = manager.find_longest_cache_hit_per_group(manager.request("r", range(13)), 12)
    equal(hits.hit_lengths_tokens, lengths)
