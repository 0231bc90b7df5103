"""Examples about values that only Python has: requests, configurations, errors."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import cross, full
from kvspec.errors import ConfigError, InvalidArgumentError, UnsupportedError
from kvspec.interface import Feature
from kvspec.request import RequestInput
from kvspec.specs import LayerSpec, MLAAttentionSpec


@example("KV-REQ-1", level=Level.IDENTITY)
def making_a_request_changes_no_manager(bench: Bench) -> None:
    """Check that state, events, statistics and samples are unchanged."""
    manager = bench.manager(enable_events=True, log_stats=True, residency_sample_rate=1.0)
    before = manager.everything()
    manager.request("r", range(100))
    equal(manager.everything(), before)


class ForeignRequest:
    request_id = "r"
    num_computed_tokens = 0
    num_tokens = 4
    token_ids: Sequence[int] = (1, 2, 3, 4)
    block_hashes: Sequence[bytes] = (bytes(32),)


@cases(ForeignRequest(), "r", None)
@example("KV-REQ-1", "KV-ERR-2")
def a_foreign_request_is_refused(bench: Bench, foreign: object) -> None:
    """Check that a request of another implementation is refused and nothing is changed."""
    bench.here("requests that were not made by the subject")
    manager = bench.manager()
    before = manager.visible()
    calls = (
        lambda: manager.get_computed_blocks(foreign),
        lambda: manager.allocate_slots(foreign, 1),  # type: ignore[arg-type]  # the point
        lambda: manager.free(foreign),
    )
    for call in calls:
        with raises(InvalidArgumentError):
            call()  # type: ignore[no-untyped-call]  # the point
    equal(manager.visible(), before)


@example("KV-REQ-5", level=Level.SAFETY)
def tokens_may_come_as_an_array_which_is_read_at_once(bench: Bench) -> None:
    manager = bench.manager(6)
    listed = manager.request("l", (1, 2, 3, 4))
    tokens = array("i", (1, 2, 3, 4))
    request = manager.make_request(RequestInput("r", tokens))
    manager.append(request, array("q", (5, 6)))
    tokens[0] = 9
    equal(list(request.token_ids), [1, 2, 3, 4, 5, 6], "tokens")
    equal(list(request.block_hashes), list(listed.block_hashes), "hashes")
    wrong: tuple[Any, ...] = ({1, 2}, array("d", (1.0, 2.0)), 7)
    for appended in wrong:
        with raises(InvalidArgumentError):
            manager.append(request, appended)
    equal(request.num_tokens, 6, "tokens after errors")


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
