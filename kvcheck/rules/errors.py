"""KV-ERR: refusals are values, illegal calls are typed errors that change nothing."""

from __future__ import annotations

from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvspec.config import KVCacheConfig, KVCacheGroup
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
from kvspec.specs import LayerSpec


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


class UnheardOfSpec(LayerSpec):
    """A spec that no implementation knows."""


@example("KV-ERR-5")
def a_spec_that_is_lacking_is_named(bench: Bench) -> None:
    """The UnsupportedError names the spec and the implementation."""
    with raises(UnsupportedError) as caught:
        bench.subject.create(bench.config(6, UnheardOfSpec(4)))
    holds("UnheardOfSpec" in caught.value.capability)
    equal(caught.value.implementation, bench.subject.capabilities.name)
