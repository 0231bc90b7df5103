"""A manager that audits itself raises at the call that broke it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.rules.specs import full
from kvref.manager import ReferenceManager
from kvspec.audit import audited
from kvspec.config import CustomSpec, SpecRegistry
from kvspec.errors import InvalidArgumentError, InvariantViolation
from kvspec.interface import KVCacheManager
from kvspec.snapshot import Snapshot
from kvspec.specs import LayerSpec
from tests.contract.builders import admit, make_config, new_request


class Sloppy(ReferenceManager):
    """A manager with two bugs: a query that changes state, and an error raised too late."""

    def get_unhashed_block_ids(self, request: object) -> tuple[tuple[int, ...], ...]:
        self.take_new_block_ids()
        return ()

    def free_blocks(self, block_ids: object) -> None:
        self.take_new_block_ids()
        raise InvalidArgumentError("block_ids", block_ids, "better ones")


@pytest.fixture
def sloppy() -> tuple[Sloppy, KVCacheManager]:
    bare = Sloppy(make_config())
    manager = audited(bare)
    admit(manager, new_request(kvref.implementation(), bare, "r", range(4)))
    return bare, manager


def test_answers_and_properties_pass_through(sloppy: tuple[Sloppy, KVCacheManager]) -> None:
    bare, manager = sloppy
    assert manager.num_free_blocks == bare.num_free_blocks == 4
    assert manager.usage == bare.usage
    assert manager.config is bare.config
    assert manager.snapshot() == bare.snapshot()
    assert manager.take_new_block_ids() == (1,)


def test_a_broken_state_is_found_at_the_next_call(sloppy: tuple[Sloppy, KVCacheManager]) -> None:
    bare, manager = sloppy
    bare.pool.ref_counts[1] += 1
    for _ in range(2):
        with pytest.raises(InvariantViolation) as caught:
            manager.new_step_starts()
        assert caught.value.invariant == "references_are_accounted_for"
    with pytest.raises(InvariantViolation):
        audited(bare)


class ShowsItsOwn(ReferenceManager):
    """A snapshot that shares a list with the manager instead of copying it."""

    def snapshot(self) -> Snapshot:
        own: Any = self.pool.ref_counts
        return replace(super().snapshot(), ref_counts=own)


def test_a_broken_state_is_found_where_it_shows_in_earlier_snapshots_too() -> None:
    bare = ShowsItsOwn(make_config())
    manager = audited(bare)
    bare.pool.ref_counts[1] += 1
    with pytest.raises(InvariantViolation) as caught:
        manager.new_step_starts()
    assert caught.value.invariant == "free_means_unreferenced"


def test_a_question_that_changes_state_is_found(sloppy: tuple[Sloppy, KVCacheManager]) -> None:
    bare, manager = sloppy
    with pytest.raises(InvariantViolation) as caught:
        manager.get_unhashed_block_ids(new_request(kvref.implementation(), bare, "r", [1]))
    assert caught.value.invariant == "pure_calls_change_nothing"


def test_a_late_error_is_found(sloppy: tuple[Sloppy, KVCacheManager]) -> None:
    _, manager = sloppy
    with pytest.raises(InvariantViolation) as caught:
        manager.free_blocks([1])
    assert caught.value.invariant == "errors_change_nothing"
    assert isinstance(caught.value.__context__, InvalidArgumentError)


def test_a_refusal_is_no_violation(sloppy: tuple[Sloppy, KVCacheManager]) -> None:
    bare, manager = sloppy
    large = new_request(kvref.implementation(), bare, "large", range(50, 99))
    assert manager.allocate_slots(large, 49) is None
    assert manager.reset_prefix_cache() is False


def test_an_audit_asks_for_custom_specs_once() -> None:
    asked: list[LayerSpec] = []

    def managed(spec: LayerSpec) -> LayerSpec:
        asked.append(spec)
        return full(spec.block_size)

    registry = SpecRegistry((CustomSpec(LayerSpec, managed),))
    bare = ReferenceManager(make_config(specs=[LayerSpec(4)], registry=registry))
    manager = audited(bare)
    when_made = len(asked)
    admit(manager, new_request(kvref.implementation(), bare, "r", range(4)))
    for _ in range(3):
        manager.new_step_starts()
    assert len(asked) <= when_made + 1
