"""vLLM's scheduler on kvfast beside the stock one, where vLLM is installed."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest

from kvfast.engines.vllm.versions import is_since
from kvspec.errors import KVSpecError


@pytest.mark.parametrize("runner", ["0", "1"])
def test_both_schedulers_do_the_same(
    pair: Any, setups: Any, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)  # 1: on devices 0.33's default
    for name, setup in setups.items():
        both = pair(setup)
        assert both.run(40) is None
        ours = both.sides[1].scheduler
        assert (ours.num_steps_kvfast, ours.num_steps_stock) == (40, 0)
        assert ours.num_steps_batched + ours.single_steps.total() == 40
        assert ours.use_v2_model_runner is bool(int(runner))
        # A ring takes no more blocks than it has, and counts as if it would.
        words = ("loads", "adapters", "ring", "own", "unusual", *["states"] * (not is_since(33)))
        is_usual = not any(word in name for word in words)
        is_common = not setup.encoder_cache and not setup.pools
        least = 30 * is_usual if is_common else 18 * is_usual * is_since(33)
        assert ours.num_steps_batched + ours.single_steps["throttled"] >= least
        assert ours.num_updates_short >= least - 5


def unsplit(steps: Any) -> Any:
    """Choose chunks that end where no state can be kept."""
    steps.seats.split = None
    return steps.seats.choose(steps.budget, steps._threshold(), steps.scheduler.current_step + 1)


def plain_count(admission: Any, request: Any, computed: int, budget: int) -> tuple[int, bool]:
    """Count tokens without padding, and without a limit for long prompts."""
    return min(len(request._all_token_ids) - computed, budget), False


def without(member: str) -> Any:
    """Return a way to know a request of 0.33 but for one number."""
    told = {
        "num_in_flight_tokens": "num_in_flight_tokens",
        "junction_tokens": "shared_prefix_boundary",
    }

    def note(_: Any, mine: Any, request: Any) -> None:
        for name, source in told.items():
            setattr(mine, name, 0 if name == member else getattr(request, source))

    return note


def in_its_seat(scheduler: Any, session: Any, update: Any) -> None:
    """Let a session continue in the seat that it has, whose prompt is the old one."""
    from vllm.v1.core.sched.scheduler import Scheduler

    Scheduler._update_request_as_session(scheduler, session, update)


def nothing(*_: object) -> None:
    """Do nothing."""


IN_ANY: tuple[tuple[str, str, object], ...] = (
    ("full, drafts", "steps.BatchedSteps._make_equal", nothing),  # tells kvfast nothing
    ("full, drafts", "taking.Taker.rewind", nothing),
    ("full, lives", "manager.KvfastManager.free", nothing),
    ("full, lives", "events.Lives.drain_events", lambda lives: []),
)
IN_033: tuple[tuple[str, str, object], ...] = (
    ("full, drafts", "updates.Update.caches", lambda update: False),
    ("full, loads fail", "manager.KvfastManager.withdraw", nothing),
    ("full", "updates.Update.prefilled", nothing),
    ("full, sessions", "updates.Update.remove_stopped", nothing),
    ("full, sessions, unusual", "schedulers.OnKvfast._update_request_as_session", in_its_seat),
    ("full and window, sessions, retention, eagle", "manager.NAME", "not that"),  # hashed once
    ("full, pooling", "updates.Update.told", lambda update, *told: told[:3]),
    ("full, eagle", "steps.BatchedSteps._needs_drafts", lambda *_: False),
    ("full and window, eagle", "steps.BatchedSteps._needs_drafts", lambda *_: True),
    ("full, async, long prompts", "steps.BatchedSteps._threshold", lambda steps: 4),
    ("full, long prompts", "steps.BatchedSteps._admitted", lambda steps, *_: steps.nobody),
    ("full and window, async", "steps.BatchedSteps.in_flight", False),
    ("full, eagle", "admissions.Admission.count_for", plain_count),
    ("full, sessions", "admissions.Admission.pass_over", lambda o, it: o.others.appendleft(it)),
    ("latent and replayed window", "admissions.replayed", lambda window, hit: (hit, window - 1)),
    ("full and states", "steps.BatchedSteps._copies", nothing),
    ("full and states", "steps.BatchedSteps._needed", lambda *_: 0),
    ("full and states, long prompts", "steps.BatchedSteps._chosen", unsplit),
    ("full and states", "admissions.Admission.count_for", plain_count),
    ("full and window, async, items", "admissions.Admission.encode", nothing),
    ("full", "taking.Taker.land", lambda *_: False),
    ("full, drafts", "taking.Taker.settle", nothing),
    ("full and window, async", "requests.Requests._note", without("num_in_flight_tokens")),
    ("full and states, sessions, retention", "requests.Requests._note", without("junction_tokens")),
    ("full and states", "manager.KvfastManager.take_kv_cache_block_copies", lambda *_: ([], [])),
    ("full", "manager.KvfastManager.record_prefix_cache_stats", nothing),
    (
        "two formats, zeroed, loads",
        "manager.KvfastManager.take_new_block_ids",
        lambda manager: list(manager.fast.take_new_block_ids()),
    ),
    ("full, events", "manager.vllm_event", nothing),
    ("full", "manager.KvfastManager._covered", lambda *_: 0),
)
"""A setup, and a member of kvfast's engine with what stands in its place."""
ALL_RAN = property(lambda _: True, nothing)
FIRST_RUNNER = ("full, long prompts", "steps.BatchedSteps.all_ran", ALL_RAN)  # workers forget some


@pytest.mark.parametrize(("setup", "member", "wrong"), [*IN_ANY, *IN_033, FIRST_RUNNER])
def test_a_mistake_is_found(
    pair: Any, monkeypatch: pytest.MonkeyPatch, setup: str, member: str, wrong: object
) -> None:
    from kvfast.engines.vllm import taking, updates

    if is_since(33):
        monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", str(int(wrong is not ALL_RAN)))
    elif (setup, member, wrong) in IN_033:
        pytest.skip("for vLLM 0.33")
    monkeypatch.setattr(updates, "Taker", taking.Taker)  # that of plain Python can be changed
    monkeypatch.setattr(f"kvfast.engines.vllm.{member}", wrong, raising=wrong is not ALL_RAN)
    try:
        difference = pair(setup).run(300)
    except (AssertionError, KeyError, KVSpecError) as error:  # vLLM's own, of impossible counts
        difference = repr(error)
    assert difference is not None


@pytest.mark.usefixtures("later")
def test_what_kvfast_does_not_do_stays_with_the_manager_of_033(
    setups: Any, on_kvfast: Any, engine: Any
) -> None:
    inside = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 4}
    setup = engine.Setup((engine.states(8, "align", **inside),), 90, 8, 8, mamba_mode="align")
    made = on_kvfast(setup)
    assert "states inside a chunk in this configuration (KV-INSIDE-19)" in made.kvfast_reason
    made.schedule()
    assert made.num_steps_stock == 1
    specs = (engine.states(8, "none", **inside),)
    uncached = replace(setup, specs=specs, enable_caching=False, mamba_mode="none")
    assert on_kvfast(uncached).kvfast_reason is None
    setup = replace(setups["full and states, eagle"], drops_blocks=True)
    assert "EAGLE drops blocks, with sparse retention" in on_kvfast(setup).kvfast_reason


@pytest.mark.usefixtures("engine")
def test_further_arguments_are_those_of_vllm() -> None:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    from kvfast.engines.vllm.manager import OPTIONS

    names = list(signature(KVCacheManager.allocate_slots).parameters)
    assert names[5:] == [*OPTIONS, *(["skip_zeroing_group_ids"] if is_since(32) else [])]


def test_what_lock_step_leaves_out_stays_with_the_stock_manager(on_kvfast: Any) -> None:
    from examples.vllm.setups import every_setup, is_refused

    setups = every_setup()
    for setup in filter(is_refused, setups.values()):
        assert "in vLLM 0." in on_kvfast(setup).kvfast_reason
    made = on_kvfast(replace(setups["full and states"], loads="sync"))
    assert made.kvfast_reason == "kvfast does not support Mamba layers beside a KV connector"
    made.schedule()
    assert (made.num_steps_kvfast, made.num_steps_stock) == (0, 1)


@pytest.mark.usefixtures("engine")
def test_faults_of_vllms_scheduler_are_not_kvfasts() -> None:
    from examples.vllm.faults import ended, recomputed
    from kvfast.engines.vllm.schedulers import KvfastScheduler

    assert "fourth has [1, 6, 4, 9]" in ended()  # no content of a failed load is hit
    assert "fourth has [1, 6, 7, 9]" in ended(KvfastScheduler)
    for is_aborted, right in ((False, 4), (True, 0)):  # what another one computes in the same step
        assert recomputed(is_aborted=is_aborted) == "second is behind 8 tokens"
        mended = recomputed(KvfastScheduler, is_aborted=is_aborted)
        assert mended == f"second is behind {right} tokens"


@pytest.mark.parametrize(
    ("setup", "seed", "num_steps"),
    [
        ("full, async, sessions", 104, 95),  # one ends while it is preempted, and waits
        ("two formats, zeroed, loads", 103, 220),  # a load behind a hit that is new in its step
        ("full, async, drafts", 105, 745),  # 0.24 takes drafts of a discarded output back; an abort
    ],
)
def test_what_lock_step_has_found_stays_mended(
    pair: Any, setups: Any, setup: str, seed: int, num_steps: int
) -> None:
    if setup not in setups:
        pytest.skip("not of this version")
    assert pair(setup, seed=seed).run(num_steps) is None


@pytest.mark.usefixtures("later")
def test_an_aborted_replay_leaves_the_keys_of_its_hit(
    lockstep: Any, pair: Any, setups: Any
) -> None:
    """Chunks of 8 tokens end inside the window of 9 that is computed again."""
    setup = replace(setups["latent and replayed window"], max_num_seqs=8)
    both = pair(replace(setup, max_num_batched_tokens=8))
    for name, num_steps in (("first", 4), ("again", 1)):
        both.add(lockstep.Prompt(name, tuple(range(30)), max_tokens=9))
        assert [both.step() for _ in range(num_steps)] == [None] * num_steps
        for side in both.sides:
            side.scheduler.finish_requests(name, lockstep.RequestStatus.FINISHED_ABORTED)
        assert both.compare_state() is None


def test_events_that_were_not_taken_are_shown_and_stay(lockstep: Any, pair: Any) -> None:
    both = pair("full, events")
    both.arrive()
    both.add(lockstep.Prompt(name="a", tokens=tuple(range(9)), max_tokens=1))
    taken = []
    for side in both.sides:
        manager = side.scheduler.kv_cache_manager
        manager.take_events()
        side.scheduler.schedule()
        queued = [lockstep.shown(each) for each in manager.block_pool.kv_event_queue]
        taken.append([lockstep.shown(each) for each in manager.take_events()])
        assert len(manager.block_pool.kv_event_queue) == 0
    assert queued == taken[0] == taken[1] != []


def test_what_writes_into_a_view_is_refused(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = pair("full")
    assert both.run(20) is None
    pool = both.sides[1].scheduler.kv_cache_manager.block_pool
    cached: Any = pool.cached_block_hash_to_block
    key, block = next(iter(cached._cache.items()))
    assert cached.get_one_block(key) is block
    with pytest.raises(AttributeError, match="pop"):
        cached._cache.pop(key)
    with pytest.raises(TypeError, match="item assignment"):
        cached._cache[key] = pool.blocks[2]
    with pytest.raises(AttributeError, match="pop"):
        cached.pop(key, 1)
    with pytest.raises(AttributeError, match="append"):
        pool.kv_event_queue.append("made up")
    with pytest.raises(AttributeError):
        pool.blocks[1].ref_cnt = 0
    assert cached.get_one_block(key) is block
    state = SimpleNamespace(block_keys=((), (b"a",), (b"b", b"c", b"d")))
    monkeypatch.setattr(pool, "state", lambda: state)
    assert pool.cached_block_hashes_by_block == {2: {b"c", b"d"}}  # a connector of 0.33 reads them


def test_a_manager_without_a_scheduler_keeps_the_keys_of_what_it_granted(
    engine: Any, on_kvfast: Any, setups: Any
) -> None:
    """Allocate in no step: nobody counts these tokens as computed, in vLLM's own tests either."""
    setup = setups["full"]
    for is_driven, is_final, expected in ((False, False, 8), (True, False, 0), (True, True, 8)):
        manager = on_kvfast(setup).kv_cache_manager
        manager.is_driven = is_driven
        first, again = (engine.Prompt(name, tuple(range(9)), 2).request(setup) for name in "ab")
        manager.allocate_slots(first, 9)
        if is_final:
            manager.planned.clear()  # as the scheduler does once it has made its plan
        manager.free(first)
        assert manager.get_computed_blocks(again)[1] == expected
