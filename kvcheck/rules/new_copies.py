"""Copies of managers: clones, and managers restored from a snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import mamba
from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.snapshot import RequestState, Snapshot
from kvspec.stats import ResidencySample

WATCHED: Mapping[str, Any] = {"enable_events": True, "log_stats": True}


def busy_manager(bench: Bench, **config: Any) -> Managed:
    """A manager with a queued event, a counted look-up and a sample to be taken."""
    manager = bench.manager(6, **WATCHED, residency_sample_rate=1.0, clock=lambda: 7, **config)
    manager.admit(manager.request("r", range(9)))
    manager.evict_blocks([1])
    return manager


@example("KV-MGR-20", level=Level.IDENTITY)
def a_clone_has_the_queued_events_statistics_and_samples(bench: Bench) -> None:
    """Taking them from one leaves those of the other."""
    original = busy_manager(bench)
    clone = original.clone()
    seen = clone.everything()
    equal(len(seen.events), 2)
    equal(seen.samples, (ResidencySample(0, 0, ()),))
    equal(original.everything(), seen)


@example("KV-MGR-20", level=Level.IDENTITY)
def requests_of_the_original_serve_the_clone(bench: Bench) -> None:
    """Also without a seed: the clone has the same first parent hash."""
    original = bench.manager(6, hash_seed=None)
    request = original.request("r", range(9))
    clone = original.clone()
    equal(clone.none_hash, original.none_hash)
    clone.admit(request)
    equal(clone.blocks(request), [1, 2, 3])
    equal(original.blocks(request), [])
    equal(clone.hit(original.request("s", range(9))), [1, 2])


@example("KV-MGR-20", level=Level.IDENTITY)
def a_restored_manager_starts_with_empty_queues(bench: Bench) -> None:
    """No events, no counts, no samples; but the ids queued for zeroing, which are state."""
    original = busy_manager(bench)
    restored = bench.restore(original.config, original.snapshot())
    seen = restored.everything()
    equal((seen.events, seen.samples), ((), ()))
    equal(seen.stats, bench.manager(6, log_stats=True).everything().stats)
    equal(restored.take_new_block_ids(), (1, 2, 3))


@example("KV-MGR-20", level=Level.IDENTITY)
def a_restored_manager_keeps_the_first_parent_hash(bench: Bench) -> None:
    """Requests of the original serve it, and requests made for it hit what the original cached."""
    original = bench.manager(6, hash_seed=None)
    request = original.request("r", range(9))
    original.admit(request)
    restored = bench.restore(original.config, original.snapshot())
    equal(restored.none_hash, original.none_hash)
    equal(restored.hit(restored.request("s", range(9))), [1, 2])
    restored.free(request)
    equal(restored.num_free_blocks, 5)


@example("KV-MGR-20", level=Level.IDENTITY)
def members_with_an_entry_per_group_may_be_left_out(bench: Bench) -> None:
    """A snapshot without zeroing queues, step keys and Mamba state is one where they are empty."""
    manager = bench.manager(6, mamba(4, "align"))
    manager.admit(manager.request("r", range(4)))
    manager.take_new_block_ids()
    snapshot = manager.snapshot()
    requests = {name: replace(state, mamba=()) for name, state in snapshot.requests.items()}
    bare = replace(snapshot, new_block_ids=(), step_keys=(), requests=requests)
    restored = bench.restore(manager.config, bare).snapshot()
    equal(restored.new_block_ids, ((),))
    equal(restored.block_keys, snapshot.block_keys)


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


@cases(*BAD_SNAPSHOTS)
@example("KV-MGR-20", level=Level.SAFETY)
def what_is_no_state_is_refused(bench: Bench, members: dict[str, Any]) -> None:
    """A snapshot that breaks an invariant is the caller's mistake, not the implementation's."""
    original = busy_manager(bench)
    with raises(InvalidArgumentError, field="snapshot"):
        bench.restore(original.config, replace(original.snapshot(), **members))


@cases(None, {}, "snapshot")
@example("KV-MGR-20", level=Level.SAFETY)
def only_a_snapshot_is_restored(bench: Bench, bad: Snapshot) -> None:
    """And only with a configuration."""
    with raises(InvalidArgumentError):
        bench.restore(bench.config(), bad)
    with raises(ConfigError):
        bench.restore(bad, bench.manager().snapshot())  # type: ignore[arg-type]  # the point
