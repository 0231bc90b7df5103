"""Copies of managers: clones, and managers restored from a snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings

from kvspec.audit import AuditedManager
from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.snapshot import RequestState, Snapshot
from kvspec.stats import ResidencySample
from tests.rules.builders import (
    admit,
    blocks_of,
    everything,
    hit_of,
    make_config,
    new_manager,
    new_request,
)
from tests.rules.scenarios import CONFIGS, Player, Step, steps
from tests.rules.specs import mamba

pytestmark = pytest.mark.rule("KV-MGR-20")
WATCHED: dict[str, Any] = {"enable_events": True, "log_stats": True}


@pytest.mark.parametrize("config", CONFIGS)
@given(before=steps, after=steps)
@settings(max_examples=15)
def test_a_restored_manager_gives_every_later_answer(
    implementation: Implementation, config: dict[str, Any], before: list[Step], after: list[Step]
) -> None:
    """Random calls, a snapshot, a restored manager: the same calls on both answer the same."""
    original = new_manager(implementation, 12, **config, **WATCHED, hash_seed=None)
    player = Player(implementation, original)
    player.play(before)
    restored = implementation.restore(original.config, original.snapshot())
    assert restored.snapshot() == original.snapshot()
    other = player.on(restored)
    assert other.play(after) == player.play(after)


@pytest.mark.parametrize("config", CONFIGS)
@given(before=steps, after=steps)
@settings(max_examples=15)
def test_a_clone_gives_every_later_answer_and_disturbs_nobody(
    implementation: Implementation, config: dict[str, Any], before: list[Step], after: list[Step]
) -> None:
    """The clone answers as the original does later, which saw nothing of the clone's calls."""
    original = new_manager(implementation, 12, **config, **WATCHED)
    player = Player(implementation, original)
    player.play(before)
    clone = implementation.clone(original)
    state = original.snapshot()
    answers = player.on(clone).play(after)
    assert original.snapshot() == state
    assert player.play(after) == answers


def busy_manager(implementation: Implementation, **config: Any) -> KVCacheManager:
    """A manager with a queued event, a counted look-up and a sample to be taken."""
    manager = new_manager(
        implementation, 6, **WATCHED, residency_sample_rate=1.0, clock=lambda: 7, **config
    )
    admit(manager, new_request(implementation, manager, "r", range(9)))
    manager.evict_blocks([1])
    return manager


def test_a_clone_has_the_queued_events_statistics_and_samples(
    implementation: Implementation,
) -> None:
    """Taking them from one leaves those of the other."""
    original = busy_manager(implementation)
    clone = implementation.clone(original)
    seen = everything(clone)
    assert len(seen.events) == 2
    assert seen.samples == (ResidencySample(0, 0, ()),)
    assert everything(original) == seen


def test_requests_of_the_original_serve_the_clone(implementation: Implementation) -> None:
    """Also without a seed: the clone has the same first parent hash."""
    original = new_manager(implementation, 6, hash_seed=None)
    request = new_request(implementation, original, "r", range(9))
    clone = implementation.clone(original)
    assert clone.none_hash == original.none_hash
    admit(clone, request)
    assert blocks_of(clone, request) == [1, 2, 3]
    assert blocks_of(original, request) == []
    assert hit_of(clone, new_request(implementation, original, "s", range(9))) == [1, 2]


@pytest.mark.parametrize("check", [True, False])
def test_a_clone_audits_itself_as_the_original_does(
    implementation: Implementation, check: bool
) -> None:
    """An unaudited manager has an unaudited clone."""
    clone = implementation.clone(implementation.create(make_config(), check_invariants=check))
    assert isinstance(clone, AuditedManager) is check


def test_a_restored_manager_starts_with_empty_queues(implementation: Implementation) -> None:
    """No events, no counts, no samples; but the ids queued for zeroing, which are state."""
    original = busy_manager(implementation)
    restored = implementation.restore(original.config, original.snapshot())
    seen = everything(restored)
    assert (seen.events, seen.samples) == ((), ())
    assert seen.stats == everything(new_manager(implementation, 6, log_stats=True)).stats
    assert restored.take_new_block_ids() == (1, 2, 3)


def test_a_restored_manager_keeps_the_first_parent_hash(implementation: Implementation) -> None:
    """Requests of the original serve it, and requests made for it hit what the original cached."""
    original = new_manager(implementation, 6, hash_seed=None)
    request = new_request(implementation, original, "r", range(9))
    admit(original, request)
    restored = implementation.restore(original.config, original.snapshot())
    assert restored.none_hash == original.none_hash
    assert hit_of(restored, new_request(implementation, restored, "s", range(9))) == [1, 2]
    restored.free(request)
    assert restored.num_free_blocks == 5


def test_members_with_an_entry_per_group_may_be_left_out(implementation: Implementation) -> None:
    """A snapshot without zeroing queues, step keys and Mamba state is one where they are empty."""
    manager = new_manager(implementation, 6, specs=[mamba(4, "align")])
    admit(manager, new_request(implementation, manager, "r", range(4)))
    manager.take_new_block_ids()
    snapshot = manager.snapshot()
    requests = {name: replace(state, mamba=()) for name, state in snapshot.requests.items()}
    bare = replace(snapshot, new_block_ids=(), step_keys=(), requests=requests)
    restored = implementation.restore(manager.config, bare).snapshot()
    assert restored.new_block_ids == ((),)
    assert restored.block_keys == snapshot.block_keys


BAD_SNAPSHOTS: tuple[dict[str, Any], ...] = (
    {"num_blocks": 7},
    {"free_queue": (5, 5)},
    {"ref_counts": (0, 9, 2, 1, 1, 0)},
    {"new_block_ids": ((), ())},
    {"step_keys": (frozenset(), frozenset())},
    {"requests": {"r": RequestState(((1,), (2,)), (None, None))}},
    {"requests": {"r": RequestState(((),), (1,))}},
    {"num_blocks": True},
    {"free_queue": [5]},
    {"free_queue": None},
    {"ref_counts": (0, 1, "2", 1, 1, 0)},
    {"ref_counts": (0, 1, True, 1, 1, 0)},
    {"popped_blocks": (-1,)},
    {"reserved_blocks": (2**70,)},
    {"covered_tokens": (2**70,) * 6},
    {"block_keys": (("x",),) * 6},
    {"block_keys": (7,) * 6},
    {"lookup_order": {"x": (1,)}},
    {"lookup_order": {b"x": None}},
    {"lookup_order": ()},
    {"none_hash": b"short"},
    {"none_hash": None},
    {"new_block_ids": ("12",)},
    {"step_keys": ((b"x",),)},
    {"step_keys": (frozenset({1}),)},
    {"requests": {"r": True}},
    {"requests": {7: RequestState(((),), (None,))}},
    {"requests": {"r": RequestState(((),), ("1",))}},  # type: ignore[arg-type]  # the point
    {"requests": {"r": RequestState(((),), (None,), (7,))}},  # type: ignore[arg-type]  # the point
)


@pytest.mark.parametrize("members", BAD_SNAPSHOTS)
def test_what_is_no_state_is_refused(
    implementation: Implementation, members: dict[str, Any]
) -> None:
    """A snapshot that breaks an invariant is the caller's mistake, not the implementation's."""
    original = busy_manager(implementation)
    with pytest.raises(InvalidArgumentError) as caught:
        implementation.restore(original.config, replace(original.snapshot(), **members))
    assert caught.value.field == "snapshot"


@pytest.mark.parametrize("bad", [None, {}, "snapshot"])
def test_only_a_snapshot_is_restored(implementation: Implementation, bad: Snapshot) -> None:
    """And only with a configuration."""
    with pytest.raises(InvalidArgumentError):
        implementation.restore(make_config(), bad)
    with pytest.raises(ConfigError):
        implementation.restore(bad, new_manager(implementation).snapshot())  # type: ignore[arg-type]  # the point
