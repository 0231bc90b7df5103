"""KV-CFG: what can be configured, what is derived, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import cross, full, mamba, sliding
from kvspec.errors import ConfigError, UnsupportedError
from kvspec.interface import Feature
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


@cases((full(4, sliding_window=9), 12), (MLAAttentionSpec(4, 1, 8, "float16"), 12), (full(4), 4))
@example("KV-CFG-1", "KV-COORD-4")
def groups_share_a_specification_when_type_and_all_fields_agree(
    bench: Bench, other: LayerSpec, length: int
) -> None:
    """The second group has kept one block of three, which ends the hit of groups like it."""
    bench.need(Feature.HITS_PER_GROUP)
    manager = bench.manager(60, full(4), other, sliding(4, 6))
    request = manager.started("r", range(13))
    manager.keep_cached(request, {0}, group=1)
    hits = manager.find_longest_cache_hit_per_group(request, 12)
    equal(hits.hit_lengths_tokens[0], length)


@example("KV-CFG-2", "KV-POOL-12", "KV-ERR-1")
def a_pool_of_the_null_block_refuses_everything(bench: Bench) -> None:
    """With 1 block every request that needs one is refused, and usage is 0.0."""
    manager = bench.manager(1)
    equal(manager.num_free_blocks, 0)
    equal(manager.admit(manager.request("r", [1])), None)
    equal(manager.usage, 0.0)


@example("KV-CFG-2")
def all_groups_draw_from_one_pool(bench: Bench) -> None:
    """Of 5 blocks each of two groups took 2: the last one is too few for a request."""
    shared = bench.manager(6, full(4), MLAAttentionSpec(4, 1, 8, "float16"))
    shared.started("r", range(8))
    equal(shared.num_free_blocks, 1)
    equal(shared.admit(shared.request("late", [9])), None)


@example("KV-CFG-2", "KV-ERR-5", level=Level.SAFETY)
def a_pool_has_at_least_one_block(bench: Bench) -> None:
    equal(refused_field(bench, num_blocks=0), "num_blocks")


@example("KV-CFG-3", "KV-ERR-5")
def caching_needs_a_group(bench: Bench) -> None:
    """No group and caching on: an error; with caching off: a manager that takes no block."""
    bench.need(Feature.MULTIPLE_GROUPS)
    equal(refused_field(bench, specs=[]), "kv_cache.groups")
    manager = bench.manager(specs=[], enable_caching=False)
    granted = manager.allocate_slots(manager.request("r", range(9)), 9)
    equal(None if granted is None else granted.to_lists(), [])


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


@cases(32, -1, 3)
@example("KV-CFG-7")
def retention_needs_a_window(bench: Bench, interval: int) -> None:
    """One full-attention group and an interval: an error; of 0 KV-POL-11 speaks."""
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


@cases((False, (), 8), (True, (), 4), (False, (0,), 4), (True, (0,), 4))
@example("KV-CFG-8", "KV-FULL-3", choices=("eagle_flag_counts_alone",))
def use_eagle_flags_every_group_when_none_is(
    bench: Bench, use_eagle: bool, flagged: tuple[int, ...], length: int
) -> None:
    """Not flagged: it drops with `use_eagle` only. Flagged: it drops in both cases."""
    manager = bench.manager(6, use_eagle=use_eagle, eagle_groups=flagged)
    manager.started("first", range(9))
    equal(manager.get_computed_blocks(manager.request("r", range(9))).hit_length_tokens, length)


@cases((False, (), (12, 12)), (True, (), (8, 8)), (False, (1,), (12, 8)), (True, (1,), (12, 8)))
@example("KV-CFG-8", "KV-FULL-3", choices=("eagle_flag_counts_alone",))
def one_flag_keeps_use_eagle_from_flagging_the_others(
    bench: Bench, use_eagle: bool, flagged: tuple[int, ...], lengths: tuple[int, int]
) -> None:
    """Of two groups with three blocks cached, only the flagged one drops; without a flag both."""
    specs = [full(4), full(4, head_size=16)]
    manager = bench.manager(12, specs=specs, use_eagle=use_eagle, eagle_groups=flagged)
    manager.admit(manager.request("first", range(13)))
    hits = manager.find_longest_cache_hit_per_group(manager.request("r", range(13)), 12)
    equal(hits.hit_lengths_tokens, lengths)


@cases("sha256_cbor", "sha256_cbor_64bit", "xxhash_cbor")
@example("KV-ERR-5", "KV-POL-8")
def hash_functions_are_served_as_the_capabilities_say(bench: Bench, function: str) -> None:
    bench.manager(6)  # with prefix caching at all
    config = bench.config(6, hash_function=function, trusted_tenants=True)
    if function in bench.subject.capabilities.hash_functions:
        equal(bench.create(config).config.hash_function, function)
        return
    with raises(UnsupportedError):
        bench.subject.create(config)


@cases(full(4), MLAAttentionSpec(4, 1, 8, "float16"), cross(4))
@example("KV-ERR-5", "KV-POL-8")
def specs_are_served_as_the_capabilities_say(bench: Bench, spec: LayerSpec) -> None:
    config = bench.config(6, spec, enable_caching=False)
    if type(spec) in bench.subject.capabilities.spec_types:
        bench.create(config)
        return
    with raises(UnsupportedError):
        bench.subject.create(config)


@cases(
    (full(4), MLAAttentionSpec(4, 1, 8, "float16"), sliding(4, 6)),
    (full(4), full(4), full(4)),
)
@example("KV-COORD-3")
def several_cached_groups_need_two_different_specs(
    bench: Bench, first: LayerSpec, second: LayerSpec, third: LayerSpec
) -> None:
    """Three equal ones are served without caching alone."""
    three = [first, second, third]
    bench.manager(20, specs=three, enable_caching=False)
    if first != third:
        bench.manager(20, specs=[first, first, third])
        return
    equal(refused_field(bench, specs=three), "kv_cache.groups")
