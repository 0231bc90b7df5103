"""KV-ERR-2, KV-ERR-5: errors about what the notation cannot express."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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
from kvspec.interface import Feature
from kvspec.specs import LayerSpec


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
    """Check that each is a KVSpecError, and the built-in error that a caller would catch."""
    holds(issubclass(error, KVSpecError))
    holds(issubclass(error, also))


@cases(None, 7, [], (("layer",),))
@example("KV-ERR-5", level=Level.SAFETY)
def groups_are_a_tuple_of_groups(bench: Bench, groups: tuple[KVCacheGroup, ...]) -> None:
    """Check that anything else is refused."""
    with raises(ConfigError, field="groups"):
        KVCacheConfig(6, groups)


class UnheardOfSpec(LayerSpec):
    """A spec that no implementation knows."""


@example("KV-ERR-5")
def a_spec_that_is_lacking_is_named(bench: Bench) -> None:
    """Check that the UnsupportedError names the spec and the implementation."""
    with raises(UnsupportedError) as caught:
        bench.subject.create(bench.config(6, UnheardOfSpec(4)))
    holds("UnheardOfSpec" in caught.value.capability)
    equal(caught.value.implementation, bench.subject.capabilities.name)


@cases(
    ("num_preemptions", -1), ("status", "asleep"), ("num_computed_tokens", -1),
    ("junction_tokens", -1), ("junction_tokens", True), ("num_in_flight_tokens", -1),
)  # fmt: skip
@example("KV-ERR-2")
def what_the_scheduler_says_of_a_request_is_checked(
    bench: Bench, member: str, value: object
) -> None:
    """Check that the error names the member and its value, when it is set or when it is used."""
    manager, a, _ = bench.story()
    needed = {"junction_tokens": Feature.JUNCTIONS, "num_in_flight_tokens": Feature.IN_FLIGHT}
    bench.need(*(feature for name, feature in needed.items() if name == member))

    def say_so_and_allocate() -> None:
        setattr(a, member, value)
        manager.allocate_slots(a, 1)

    with raises(InvalidArgumentError) as caught:
        say_so_and_allocate()
    holds(not isinstance(caught.value, ConfigError))
    holds(caught.value.field in (member, f"request.{member}"))
    equal(caught.value.value, value)


@example("KV-ERR-2", level=Level.IDENTITY)
def what_is_no_clock_configuration_or_manager_is_shown(bench: Bench) -> None:
    manager, a, _ = bench.story()
    config: Any = 7
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: bench.manager(6, clock=7), "clock"),
        (lambda: bench.subject.create(config), "config"),
        (lambda: bench.subject.make_request(7, a), "manager"),  # type: ignore[arg-type]  # the point
        (lambda: manager.make_request(7), "request"),
        (lambda: bench.restore(manager.config, 7), "snapshot"),
    ]
    for call, field in wrong:
        with raises(InvalidArgumentError) as caught:
            call()
        equal((caught.value.field, caught.value.value), (field, 7))
    leaked = replace(manager.snapshot(), free_queue=())
    with raises(InvalidArgumentError, field="snapshot"):
        bench.restore(manager.config, leaked)
