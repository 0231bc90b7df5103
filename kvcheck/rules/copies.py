"""Copies of managers: clones, and managers restored from a snapshot (KV-MGR-20)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import full, mamba
from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.interface import Feature
from kvspec.request import Request
from kvspec.snapshot import RequestState, Snapshot
from kvspec.stats import ResidencySample

WATCHED: Mapping[str, Any] = {"enable_events": True, "log_stats": True}


def used(bench: Bench) -> tuple[Managed, Request]:
    """A manager with cached blocks that are free, out of order, and a request that runs."""
    manager = bench.manager(9)
    for name, start in (("a", 0), ("b", 20)):
        request = manager.started(name, range(start, start + 9))
        manager.free(request)
    return manager, manager.started("r", range(40, 45))


def answers_of(bench: Bench, manager: Managed, running: Request) -> list[Any]:
    """Answers of calls that look up, evict, decode and release."""
    again = manager.request("again", range(12))
    hit = manager.get_computed_blocks(again)
    answers: list[Any] = [hit.blocks.to_lists(), hit.hit_length_tokens]
    running.num_computed_tokens = 5
    manager.append(running, list(range(60, 69)))
    answers.append(manager.run(running, 9))
    manager.free(running)
    granted = manager.admit(manager.request("new", range(80, 109)))
    answers.append(granted.to_lists() if granted is not None else None)
    return [*answers, manager.num_free_blocks, manager.visible()]


@example("KV-MGR-20", level=Level.IDENTITY, choices=())
def a_clone_goes_on_as_the_original_does_which_sees_nothing_of_it(bench: Bench) -> None:
    bench.need(Feature.CLONE, Feature.PREFIX_CACHING)
    manager, running = used(bench)
    clone = manager.clone()
    before = manager.visible()
    equal(clone.visible(), before, "the state of the clone")
    expected = answers_of(bench, *used(bench))
    equal(answers_of(bench, clone, running), expected, "what the clone answers")
    equal(manager.visible(), before, "the state of the original")
    other = used(bench)[1]
    equal(answers_of(bench, manager, other), expected, "what the original answers")


@example("KV-MGR-20", level=Level.IDENTITY, choices=())
def a_restored_manager_goes_on_as_the_original_does(bench: Bench) -> None:
    bench.need(Feature.RESTORE, Feature.SNAPSHOT, Feature.PREFIX_CACHING)
    manager, running = used(bench)
    snapshot = manager.snapshot()
    restored = bench.restore(manager.config, snapshot)
    equal(restored.snapshot(), snapshot, "its state")
    expected = answers_of(bench, *used(bench))
    equal(answers_of(bench, restored, running), expected, "what it answers")
    equal(manager.snapshot(), snapshot, "the state of the original")


@example("KV-MGR-20", level=Level.IDENTITY, choices=())
def a_manager_from_a_file_goes_on_as_the_original_does(bench: Bench) -> None:
    """Two blocks carry the key of tokens 0 … 3, and the one that came first was cached again."""
    bench.need(Feature.RESTORE, Feature.SNAPSHOT, Feature.PREFIX_CACHING)
    manager, running = used(bench)
    holds(manager.allocate_slots(manager.request("twin", range(4)), 4) is not None)
    snapshot = manager.snapshot()
    loaded = bench.through_file(manager)
    equal(loaded.snapshot(), snapshot, "its state")
    expected = answers_of(bench, bench.restore(manager.config, snapshot), running)
    other = used(bench)[1]
    equal(answers_of(bench, loaded, other), expected, "what it answers")
    equal(manager.snapshot(), snapshot, "the state of the original")


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


@example("KV-MGR-20")
def requests_of_the_original_serve_the_clone(bench: Bench) -> None:
    """Also without a seed: the clone has the same first parent hash."""
    original = bench.manager(6, hash_seed=None)
    request = original.request("r", range(9))
    clone = original.clone()
    equal(clone.none_hash, original.none_hash)
    clone.admit(request)
    clone.same(clone.blocks(request), [1, 2, 3])
    equal(original.blocks(request), [])
    clone.same(clone.hit(original.request("s", range(9))), [1, 2])


@example("KV-MGR-20", level=Level.IDENTITY)
def a_restored_manager_starts_with_empty_queues(bench: Bench) -> None:
    """No events, no counts, no samples; but the ids queued for zeroing, which are state."""
    original = busy_manager(bench)
    restored = bench.restore(original.config, original.snapshot())
    seen = restored.everything()
    equal((seen.events, seen.samples), ((), ()))
    equal(seen.stats, bench.manager(6, log_stats=True).everything().stats)
    if bench.zeroes_full_attention:
        equal(restored.take_new_block_ids(), (1, 2, 3))


@example("KV-MGR-20")
def a_restored_manager_keeps_the_first_parent_hash(bench: Bench) -> None:
    """Requests of the original serve it, and requests made for it hit what the original cached."""
    original = bench.manager(6, hash_seed=None)
    request = original.request("r", range(9))
    original.admit(request)
    restored = bench.restore(original.config, original.snapshot())
    equal(restored.none_hash, original.none_hash)
    restored.same(restored.hit(restored.request("s", range(9))), [1, 2])
    restored.free(request)
    equal(restored.num_free_blocks, 5)


@example("KV-MGR-20")
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


@example("KV-MGR-20")
def the_mark_of_a_state_may_be_left_out(bench: Bench) -> None:
    """None for a group in mode align: the request is restored as one that took no block yet."""
    manager = bench.manager(6, mamba(4, "align"))
    request = manager.started("r", range(4))
    holds(manager.has_taken_blocks(request))
    snapshot = manager.snapshot()
    unmarked = {"r": replace(snapshot.requests["r"], mamba=(None,))}
    restored = bench.restore(manager.config, replace(snapshot, requests=unmarked))
    holds(not restored.has_taken_blocks(request))


@example("KV-MGR-20", "KV-GRP-10", level=Level.IDENTITY)
def a_snapshot_has_the_ids_queued_for_zeroing(bench: Bench) -> None:
    """Per group: full attention zeroes, Mamba does not."""
    manager = bench.manager(6, full(4), mamba(4))
    manager.admit(manager.request("r", range(4)))
    equal(manager.snapshot().new_block_ids, ((1,), ()))
    equal(manager.take_new_block_ids(), (1,))
    equal(manager.snapshot().new_block_ids, ((), ()))


@example("KV-MGR-20", "KV-MAMBA-2")
def a_snapshot_has_the_keys_of_the_states_of_this_step(bench: Bench) -> None:
    """One for the state at the end of block 0, in group 1; none once the next step starts."""
    manager = bench.manager(6, full(4), mamba(4))
    request = manager.started("r", range(4))
    key = request.block_hashes[0] + (1).to_bytes(4, "big")
    equal(manager.snapshot().step_keys, (frozenset(), frozenset({key})))
    manager.new_step_starts()
    equal(manager.snapshot().step_keys, (frozenset(), frozenset()))


@example("KV-MGR-20", "KV-POOL-13", level=Level.IDENTITY)
def what_is_cached_after_a_restore_stands_behind_what_was_there(bench: Bench) -> None:
    """Request b computes the block of a anew; look-ups still answer a's, and b's when a's goes."""
    original = bench.manager()
    original.admit(original.request("a", range(4)))
    manager = bench.restore(original.config, original.snapshot())
    b = manager.request("b", range(4))
    holds(manager.allocate_slots(b, 4) is not None)  # without the hit that there is
    equal(manager.blocks(b), [2])
    key = b.block_hashes[0] + bytes(4)
    equal(manager.snapshot().lookup_order, {key: (1, 2)})
    c = manager.request("c", range(5))
    equal(manager.hit(c), [1])
    manager.evict_blocks([1])
    equal(manager.hit(c), [2])


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
def what_breaks_an_invariant_is_not_restored(bench: Bench, members: dict[str, Any]) -> None:
    """It is the caller's mistake, not the implementation's."""
    original = busy_manager(bench)
    with raises(InvalidArgumentError, field="snapshot"):
        bench.restore(original.config, replace(original.snapshot(), **members))


@cases(None, {}, "snapshot")
@example("KV-MGR-20", level=Level.SAFETY)
def only_a_snapshot_is_restored_and_only_under_a_configuration(bench: Bench, bad: Snapshot) -> None:
    with raises(InvalidArgumentError, field="snapshot"):
        bench.restore(bench.config(), bad)
    with raises(ConfigError):
        bench.restore(bad, bench.manager().snapshot())  # type: ignore[arg-type]  # the point
