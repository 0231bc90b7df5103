"""KV-ERR: refusals are values, illegal calls are typed errors that change nothing."""

from __future__ import annotations

from itertools import product
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import full
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import (
    BlockReleaseError,
    ConfigError,
    InvalidArgumentError,
    InvariantViolation,
    KVSpecError,
    StaleHitError,
    UnknownBlockError,
    UnsupportedError,
)
from kvspec.interface import Feature
from kvspec.specs import FullAttentionSpec, LayerSpec


@example("KV-ERR-1", "KV-MGR-7", level=Level.SAFETY)
def lack_of_space_is_an_answer(bench: Bench) -> None:
    """2 blocks are free and a request needs 3: None, until another request gives way."""
    manager = bench.manager(6)
    other = manager.started("other", range(12))
    equal(manager.num_free_blocks, 2)
    request = manager.request("r", range(50, 62))
    for _ in range(2):
        equal(manager.admit(request), None)
    if bench.has(Feature.DRAFTING):  # more than the request has
        equal(manager.allocate_slots(request, 1000), None)
    if bench.has(Feature.RESET):
        holds(manager.reset_prefix_cache() is False)
    manager.free(other)
    holds(manager.admit(request) is not None)


@example("KV-ERR-2", "KV-ERR-3", level=Level.IDENTITY)
def an_illegal_call_changes_nothing(bench: Bench) -> None:
    """free_blocks([3, 2, 99]) carries 99 and 6; blocks 3 and 2 are still popped."""
    config: dict[str, Any] = {
        "enable_events": True,
        "log_stats": True,
        "residency_sample_rate": 1.0,
        "clock": lambda: 0,
    }
    manager, a, _ = bench.story(**config)
    manager.pop_blocks_for_free(a)
    manager.everything()
    before = manager.everything()
    with manager.refuses(UnknownBlockError) as caught:
        manager.free_blocks([3, 2, 99])
    equal((caught.value.block_id, caught.value.num_blocks), (99, 6))
    equal(manager.everything(), before)
    equal(manager.snapshot().popped_blocks, (1, 2, 3))


@example("KV-ERR-2")
def an_error_names_argument_value_and_what_is_legal(bench: Bench) -> None:
    """-3 new tokens: the field, the value and a sentence."""
    manager, a, _ = bench.story()
    with manager.refuses(InvalidArgumentError) as caught:
        manager.allocate_slots(a, -3)
    equal((caught.value.field, caught.value.value), ("num_new_tokens", -3))
    holds(caught.value.allowed)
    holds("num_new_tokens = -3" in str(caught.value))


@cases(
    (InvalidArgumentError, ValueError),
    (ConfigError, InvalidArgumentError),
    (StaleHitError, InvalidArgumentError),
    (BlockReleaseError, InvalidArgumentError),
    (UnknownBlockError, KeyError),
    (UnsupportedError, NotImplementedError),
    (InvariantViolation, KVSpecError),
)
@example("KV-ERR-2")
def every_error_is_of_the_contract(
    bench: Bench, error: type[Exception], also: type[Exception]
) -> None:
    """Each is a KVSpecError, and the built-in error that a caller would catch."""
    holds(issubclass(error, KVSpecError))
    holds(issubclass(error, also))


@cases(
    *product([-1, 6, 10**12, True, False, 1.0, None, "1", ((1,),)], ["free_blocks", "evict_blocks"])
)
@example("KV-ERR-3", "KV-POOL-9", "KV-POOL-10", level=Level.SAFETY)
def a_block_id_is_an_int_of_the_pool(bench: Bench, bad: object, call: str) -> None:
    """-1 and 6 are no blocks in a pool of 6; a bool is no int; 0 stands for nothing."""
    manager = bench.story()[0]
    before = manager.visible()
    with raises(UnknownBlockError, block_id=bad, num_blocks=6) as caught:
        getattr(manager, call)([0, bad])
    holds(bench.is_remote or str(bad) in str(caught.value))
    getattr(manager, call)([0])
    equal(manager.visible(), before)


@example("KV-ERR-4", "KV-MGR-12", "KV-MGR-13", "KV-MGR-14", level=Level.SAFETY)
def an_unknown_request_holds_nothing(bench: Bench) -> None:
    """A request that was aborted before it was admitted can be freed, popped and asked about."""
    manager = bench.story()[0]
    before = manager.visible()
    stranger = manager.request("stranger", range(9))
    for _ in range(2):
        manager.free(stranger)
        if bench.has(Feature.DELAYED_CACHING):
            manager.cache_blocks(stranger, 8)
        if bench.has(Feature.SKIPPED_REMOVAL):
            manager.remove_skipped_blocks(stranger, 8)
        if bench.has(Feature.DEFERRED_FREE):
            equal(tuple(manager.pop_blocks_for_free(stranger)), ())
        if bench.has(Feature.UNHASHED_BLOCKS):
            equal([list(ids) for ids in manager.get_unhashed_block_ids(stranger)], [[]])
        if bench.has(Feature.COMMON_PREFIX):
            equal(tuple(manager.get_num_common_prefix_blocks(stranger)), (0,))
        equal(manager.get_blocks(stranger).to_lists(), [[]])
    equal(manager.visible(), before)


@example("KV-ERR-4", "KV-GRP-1")
def a_request_is_known_by_its_name(bench: Bench) -> None:
    """Another value of the same name stands for the same blocks."""
    manager = bench.story()[0]
    twin = manager.request("a", [99])
    manager.same(manager.lists(twin), [[1, 2, 3]])
    manager.same(manager.get_unhashed_block_ids(twin), ((3,),))


@cases(
    ({"num_blocks": 0}, "num_blocks"),
    ({"num_blocks": True}, "num_blocks"),
    ({"max_model_len_tokens": 0}, "max_model_len_tokens"),
    ({"hash_lookahead_tokens": -1}, "hash_lookahead_tokens"),
    ({"watermark": 1.5}, "watermark"),
    ({"watermark": float("nan")}, "watermark"),
    ({"residency_sample_rate": -0.1}, "residency_sample_rate"),
    ({"hash_function": "md5"}, "hash_function"),
    ({"hash_seed": 7}, "hash_seed"),
    ({"hash_seed": "\ud83d"}, "hash_seed"),
    ({"policy": None}, "policy"),
    ({"registry": ()}, "registry"),
    ({"dcp_world_size": 0}, "dcp_world_size"),
    ({"enable_caching": 1}, "enable_caching"),
    ({"retention_interval_tokens": 1.0}, "retention_interval_tokens"),
)
@example("KV-ERR-5", level=Level.SAFETY)
def members_are_checked_when_the_value_is_made(
    bench: Bench, members: dict[str, Any], field: str
) -> None:
    """The ConfigError of `ManagerConfig` names the field."""
    with raises(ConfigError, field=field):
        bench.config(**members)


@cases(None, 7, [], (("layer",),))
@example("KV-ERR-5", level=Level.SAFETY)
def groups_are_a_tuple_of_groups(bench: Bench, groups: tuple[KVCacheGroup, ...]) -> None:
    """Anything else is refused."""
    with raises(ConfigError, field="groups"):
        KVCacheConfig(6, groups)


@cases(
    ({"dtype": "float17"}, "dtype"),
    ({"num_kv_heads": 0}, "num_kv_heads"),
    ({"head_size": 8.0}, "head_size"),
    ({"page_size_padded": 0}, "page_size_padded"),
    ({"indexes_kv_by_block_stride": 1}, "indexes_kv_by_block_stride"),
)
@example("KV-ERR-5", level=Level.SAFETY)
def members_of_a_spec_are_checked(bench: Bench, members: dict[str, Any], field: str) -> None:
    """The ConfigError of the spec names the field."""
    with raises(ConfigError, field=field):
        full(4, **members)


@example("KV-ERR-5", "KV-CFG-3", level=Level.SAFETY)
def combinations_are_checked_by_create(bench: Bench) -> None:
    """Caching without a group can be written down, and is refused by `create`."""
    config: ManagerConfig = bench.config(specs=[])
    with raises(ConfigError, field="kv_cache.groups"):
        bench.create(config)


class UnheardOfSpec(LayerSpec):
    """A spec that no implementation knows."""


@example("KV-ERR-5")
def a_spec_that_is_lacking_is_named(bench: Bench) -> None:
    """The UnsupportedError names the spec and the implementation."""
    with raises(UnsupportedError) as caught:
        bench.subject.create(bench.config(6, UnheardOfSpec(4)))
    holds("UnheardOfSpec" in caught.value.capability)
    equal(caught.value.implementation, bench.subject.capabilities.name)


@example("KV-ERR-6", since="0.2")
def the_largest_count_is_2_to_the_53_minus_1(bench: Bench) -> None:
    """With as many of lookahead there are the 32 slots of the longest sequence."""
    manager = bench.manager(20, max_model_len_tokens=32)
    request = manager.request("r", range(9))
    with manager.refuses(InvalidArgumentError, field="num_lookahead_tokens"):
        manager.allocate_slots(request, 1, num_lookahead_tokens=2**53)
    granted = manager.allocate_slots(request, 1, num_lookahead_tokens=2**53 - 1)
    holds(granted is not None)
    block_size = manager.config.scheduler_block_size_tokens or 1
    equal(len(granted.groups[0]) * block_size, manager.config.max_model_len_tokens)


@example("KV-ERR-6", level=Level.SAFETY)
def a_configuration_has_no_larger_count(bench: Bench) -> None:
    """The error names the member."""
    with raises(ConfigError, field="block_size"):
        FullAttentionSpec(2**53, 1, 1, "float16")
