"""kvref through the protocol: the same answers, states and errors, and what no trace covers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.play.elsewhere import foresee
from kvcheck.play.fit import random_program
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.records.planning import replay_planning
from kvcheck.remote.client import RemoteImplementation
from kvcheck.remote.connection import DROP_AT_ONCE
from kvcheck.remote.manager import RemoteRequest
from kvcheck.remote.values import NOT_SPOKEN
from kvcheck.rules.notation.running import outcomes_of
from kvcheck.rules.notation.shipped import shipped_stories
from kvref import implementation
from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import (
    ConfigError,
    InvalidArgumentError,
    InvariantViolation,
    RemoteError,
    UnknownBlockError,
    UnsupportedError,
)
from kvspec.interface import Capabilities, HitRateWindow, Implementation, KVCacheManager
from kvspec.planning import Planner
from kvspec.policy import Policy
from kvspec.request import Request
from kvspec.specs import FullAttentionSpec
from tests.remote.servers import FULL, WINDOW, config, count_waits, request_input, serve

KVREF = implementation()


@pytest.fixture(scope="module", params=["", "+json"], ids=["cbor", "json"])
def remote(request: pytest.FixtureRequest) -> Iterator[RemoteImplementation]:
    found = find_implementation(serve("kvref", options=request.param))
    assert isinstance(found, RemoteImplementation)
    yield found
    found.close()


def used(
    impl: Implementation, *, name: str = "a", **members: Any
) -> tuple[KVCacheManager, Request]:
    manager = impl.create(config(**members))
    request = impl.make_request(manager, request_input(name, 9))
    manager.allocate_slots(request, 9)
    request.num_computed_tokens = 9
    return manager, request


def test_everything_is_what_the_interface_asks_for(remote: RemoteImplementation) -> None:
    manager, request = used(remote)
    assert isinstance(remote, Implementation)
    assert isinstance(manager, KVCacheManager)
    assert isinstance(request, Request)
    assert isinstance(remote.planner, Planner)
    assert isinstance(remote.make_hit_rate_window(), HitRateWindow)


def test_capabilities_are_those_of_the_served_one_without_code_and_shared_memory(
    remote: RemoteImplementation,
) -> None:
    has, reference = remote.capabilities, KVREF.capabilities
    assert (has.name, has.version) == (reference.name, reference.version)
    assert has.hash_functions == reference.hash_functions
    assert has.features == reference.features - NOT_SPOKEN
    assert has.spec_types <= reference.spec_types


def test_foreseen_questions_go_out_with_the_next_message(
    remote: RemoteImplementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = remote.create(config())
    request = remote.make_request(manager, request_input("r", 5))
    free = manager.num_free_blocks
    waits = count_waits(monkeypatch)
    foresee(manager, "snapshot", "get_usage")
    assert manager.allocate_slots(request, 5) is not None
    assert len(manager.snapshot().free_queue) == manager.num_free_blocks == free - 2
    assert manager.usage > 0
    assert waits == [3]
    foresee(manager, "get_usage")
    with pytest.raises(UnknownBlockError):
        manager.evict_blocks([99])
    assert manager.num_free_blocks == free - 2
    assert waits == [3, 2]
    manager.free(request)
    assert manager.num_free_blocks == free
    assert waits == [3, 2, 1, 1]


def test_foreseen_questions_are_about_one_manager(remote: RemoteImplementation) -> None:
    first, second = remote.create(config()), remote.create(config())
    assert first.allocate_slots(remote.make_request(first, request_input("r", 5)), 5) is not None
    foresee(first, "get_usage")
    assert second.num_free_blocks == first.num_free_blocks + 2
    foresee(KVREF.create(config()), "get_usage")  # nothing to be sent


def test_a_manager_fills_in_its_configuration(remote: RemoteImplementation) -> None:
    for given in (config(), config(FULL, WINDOW), config(hash_seed=None)):
        manager = remote.create(given)
        assert (manager.config, len(manager.none_hash)) == (KVREF.create(given).config, 32)


def test_residency_samples_come_over(remote: RemoteImplementation) -> None:
    manager, request = used(remote, residency_sample_rate=1.0)
    manager.free(request)
    manager.evict_blocks((1, 2))
    samples = manager.take_residency_samples()
    assert len(samples) == 2
    assert all(0 <= sample.idle_ns <= sample.lifetime_ns for sample in samples)


@pytest.mark.shared
def test_planning_records_pass_through_the_protocol(shared: Path) -> None:
    remote = find_implementation(serve("kvref"))
    result = replay_planning(shared / "golden/planning.jsonl.gz", remote)
    assert result.failed == 0, result.mismatches
    assert result.passed > 500


class RingSpec(FullAttentionSpec):
    """A spec from outside the contract."""


def test_what_is_code_or_a_stranger_is_refused_here(remote: RemoteImplementation) -> None:
    manager, request = used(remote)
    ring = RingSpec(block_size=4, num_kv_heads=1, head_size=8, dtype="float16")
    registry = SpecRegistry((CustomSpec(RingSpec, lambda spec: FULL),))
    for unsent in (config(ring), config(ring, registry=registry)):
        with pytest.raises(UnsupportedError):
            remote.create(unsent)
    with pytest.raises(UnsupportedError, match="clock"):
        remote.create(config(), clock=lambda: 0)
    with pytest.raises(InvalidArgumentError):
        remote.create(config(), clock=7)  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(ConfigError):
        remote.create(None)  # type: ignore[arg-type]  # the point of the test
    foreign = KVREF.create(config())
    with pytest.raises(InvalidArgumentError):
        remote.append_tokens(foreign, request, [1])
    with pytest.raises(InvalidArgumentError):
        manager.free(KVREF.make_request(foreign, request_input()))
    with pytest.raises(InvalidArgumentError):
        manager.evict_blocks({1, 2})  # type: ignore[arg-type]  # the point of the test


def test_an_invariant_that_is_violated_there_is_violated_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "leaky.py").write_text(
        "from kvref.block_pool import BlockPool\n"
        "from kvref.implementation import ReferenceImplementation\n"
        "class Leaky(BlockPool):\n"
        "    def release(self, blocks): super().release(list(blocks)[1:])\n"
        "def make(): return ReferenceImplementation(Leaky)\n"
    )
    monkeypatch.chdir(tmp_path)
    manager, request = used(find_implementation(serve("leaky:make")))
    with pytest.raises(InvariantViolation) as caught:
        manager.free(request)
    assert caught.value.rule.startswith("KV-")
    assert "free queue" in caught.value.state


def test_what_nobody_uses_any_more_is_dropped_there() -> None:
    remote = find_implementation(serve("kvref"))
    assert isinstance(remote, RemoteImplementation)
    manager = remote.create(config())
    lost = remote.make_request(manager, request_input("lost"))
    assert isinstance(lost, RemoteRequest)
    handle, connection = lost.handle, lost.connection
    del lost
    for number in range(DROP_AT_ONCE):
        remote.make_request(manager, request_input(f"r{number}"))
    gc.collect()
    manager.new_step_starts()
    with pytest.raises(RemoteError, match="unknown_handle"):
        connection.call("free", manager=1, request=handle)
    assert manager.num_free_blocks == 11


def drawn(can: Capabilities) -> Iterator[Program]:
    for program in random_programs(0, 0, 12):
        fitting = random_program(program, can, Policy(), hashes_matter=True, oracle=KVREF)
        if fitting is not None:
            yield fitting


def test_random_programs_have_the_same_answers_and_states(remote: RemoteImplementation) -> None:
    programs = list(drawn(remote.capabilities))
    assert len(programs) > 20
    for program in programs:
        assert first_violation(program, remote, Level.IDENTITY, KVREF) is None


def test_a_server_that_answers_otherwise_would_be_noticed() -> None:
    wrong = find_implementation(serve("mistake:HitsOneBlockLess"))
    programs = drawn(wrong.capabilities)
    assert any(first_violation(each, wrong, Level.IDENTITY, KVREF) for each in programs)


def test_errors_are_those_of_the_examples(remote: RemoteImplementation) -> None:
    stories = [each for each in shipped_stories() if each.rules[0].startswith("KV-ERR-")]
    found = list(outcomes_of(stories, remote, Policy()))
    assert [each.place for each in found if each.violation is not None] == []
    assert sum(not each.left_out for each in found) > 30
