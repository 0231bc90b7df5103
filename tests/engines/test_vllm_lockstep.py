"""vLLM's scheduler on kvfast beside the stock one, where vLLM is installed."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from typing import Any

import pytest

from kvfast.engines.vllm.versions import is_since
from kvspec.errors import KVSpecError


@pytest.fixture
def later() -> Any:
    """Module of kvfast's engine for vLLM 0.33; skips beside 0.24."""
    if not is_since(33):
        pytest.skip("for vLLM 0.33")
    from kvfast.engines.vllm import later

    return later


@pytest.mark.parametrize("runner", ["0", "1"])
def test_both_schedulers_do_the_same(
    lockstep: Any, model: str, monkeypatch: pytest.MonkeyPatch, runner: str
) -> None:
    if runner == "1" and not is_since(33):
        pytest.skip("vLLM 0.24 has the second runner with Triton alone")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)  # 1: on devices 0.33's default
    for name, setup in lockstep.setups().items():
        both = lockstep.Lockstep(setup, model, seed=3)
        assert both.run(40) is None
        ours = both.sides[1].scheduler
        assert (ours.num_steps_kvfast, ours.num_steps_stock) == (40, 0)
        assert ours.num_steps_batched + ours.single_steps.total() == 40
        assert ours.use_v2_model_runner is bool(int(runner))
        # A ring takes no more blocks than it has, and counts as if it would.
        is_usual = not any(word in name for word in ("loads", "adapters", "ring", "own"))
        least = 30 if is_usual and not setup.encoder_cache else 18 * is_usual * is_since(33)
        assert ours.num_steps_batched + ours.single_steps["throttled"] >= least
        assert ours.num_updates_short >= least - 5


@pytest.mark.parametrize("step", ["tells kvfast nothing", "takes no drafts back"])
def test_a_broken_short_way_is_found(
    lockstep: Any, model: str, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Break computed tokens taken back, hashes that are due, or rejected drafts."""
    from kvfast.engines.vllm import taking, updates
    from kvfast.engines.vllm.steps import BatchedSteps

    if step == "tells kvfast nothing":
        monkeypatch.setattr(BatchedSteps, "_make_equal", lambda *_: None)
    else:
        monkeypatch.setattr(updates, "Taker", taking.Taker)  # that of plain Python can be changed
        monkeypatch.setattr(taking.Taker, "rewind", lambda *_: None)
    both = lockstep.Lockstep(lockstep.setups()["full, drafts"], model, seed=3)
    try:
        difference = both.run(100)
    except KVSpecError as error:
        difference = str(error)
    assert difference is not None


def unsplit(steps: Any) -> Any:
    """Choose chunks that end where no state can be kept."""
    steps.seats.split = None
    return steps.seats.choose(steps.budget, steps._threshold(), steps.scheduler.current_step + 1)


def plain_count(admission: Any, request: Any, computed: int, budget: int) -> tuple[int, bool]:
    """Count tokens without padding, and without a limit for long prompts."""
    return min(len(request._all_token_ids) - computed, budget), False


@pytest.mark.parametrize(
    ("setup", "part", "call", "answer"),
    [
        ("full, drafts", "LaterUpdate", "caches", lambda update: False),
        ("full", "LaterUpdate", "prefilled", lambda update, request: None),
        ("full, sessions", "LaterUpdate", "remove_stopped", lambda update: None),
        ("full, eagle", "LaterSteps", "_needs_drafts", lambda *_: False),
        ("full and window, eagle", "LaterSteps", "_needs_drafts", lambda *_: True),
        ("full, async, long prompts", "LaterSteps", "_threshold", lambda steps: 4),
        ("full, long prompts", "LaterSteps", "_admitted", lambda steps, *_: steps.nobody),
        ("full and window, async", "LaterSteps", "in_flight", False),
        ("full, eagle", "Admission", "count_for", plain_count),
        ("full, sessions", "Admission", "pass_over", lambda one, it: one.others.appendleft(it)),
        ("full and states", "LaterSteps", "_copies", lambda steps: None),
        ("full and states", "LaterSteps", "_needed", lambda *_: 0),
        ("full and states, long prompts", "LaterSteps", "_chosen", unsplit),
        ("full and states", "Admission", "count_for", plain_count),
        ("full and window, async, items", "Admission", "encode", lambda *_: None),
        ("full", "Taker", "land", lambda *_: False),
        ("full, drafts", "Taker", "settle", lambda *_: None),
    ],
)
def test_a_broken_short_way_of_033_is_found(
    lockstep: Any,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    later: Any,
    setup: str,
    part: str,
    call: str,
    answer: object,
) -> None:
    from kvfast.engines.vllm import later_steps, taking, updates

    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    monkeypatch.setattr(updates, "Taker", taking.Taker)  # that of plain Python can be changed
    module = {"Taker": taking, "LaterUpdate": updates}.get(part, later_steps)
    monkeypatch.setattr(getattr(module, part), call, answer)
    both = lockstep.Lockstep(lockstep.setups()[setup], model, seed=3)
    try:
        difference = both.run(300)
    except (AssertionError, KeyError) as error:  # vLLM's own, of counts that cannot be
        difference = repr(error)
    assert difference is not None


@pytest.mark.parametrize(
    ("setup", "member"),
    [
        ("full and window, async", "num_in_flight_tokens"),
        ("full and states, sessions, retention", "junction_tokens"),
    ],
)
def test_requests_of_033_that_are_told_less_are_found(
    lockstep: Any,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    later: Any,
    setup: str,
    member: str,
) -> None:
    current = later.LaterRequests.current

    def told_less(requests: Any, request: Any) -> Any:
        mine = current(requests, request)
        setattr(mine, member, 0)
        return mine

    monkeypatch.setattr(later.LaterRequests, "current", told_less)
    assert lockstep.Lockstep(lockstep.setups()[setup], model, seed=3).run(300) is not None


@pytest.mark.parametrize(
    ("setup", "call", "answer"),
    [
        ("full and states", "take_kv_cache_block_copies", ([], [])),
        ("full", "record_prefix_cache_stats", None),
        ("full, events", "_told", None),
        ("full", "_covered", 0),
    ],
)
def test_a_manager_of_033_that_does_less_is_found(
    lockstep: Any,
    model: str,
    monkeypatch: pytest.MonkeyPatch,
    later: Any,
    setup: str,
    call: str,
    answer: object,
) -> None:
    monkeypatch.setattr(later.LaterManager, call, lambda *_: answer)
    assert lockstep.Lockstep(lockstep.setups()[setup], model, seed=3).run(300) is not None


def test_what_kvfast_does_not_do_stays_with_the_manager_of_033(
    lockstep: Any, model: str, later: Any, engine: Any
) -> None:
    from kvfast.engines.vllm.schedulers import KvfastScheduler

    inside = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 4}
    setup = engine.Setup((engine.states(8, "align", **inside),), 90, 8, 8, mamba_mode="align")
    made = lockstep.make_scheduler(KvfastScheduler, setup, lockstep.vllm_config(setup, model))
    assert "states inside a chunk in this configuration (KV-INSIDE-19)" in made.kvfast_reason
    made.schedule()
    assert made.num_steps_stock == 1
    specs = (engine.states(8, "none", **inside),)
    uncached = replace(setup, specs=specs, enable_caching=False, mamba_mode="none")
    made = lockstep.make_scheduler(KvfastScheduler, uncached, lockstep.vllm_config(uncached, model))
    assert made.kvfast_reason is None
    setup = replace(lockstep.setups()["full and states, eagle"], drops_blocks=True)
    made = lockstep.make_scheduler(KvfastScheduler, setup, lockstep.vllm_config(setup, model))
    assert "EAGLE drops blocks, with sparse retention" in made.kvfast_reason


@pytest.mark.parametrize("what", ["keeps blocks", "shows no lives of blocks"])
def test_a_broken_manager_is_found(
    lockstep: Any, model: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    from kvfast.engines.vllm.events import Lives
    from kvfast.engines.vllm.manager import KvfastManager

    if what == "keeps blocks":
        monkeypatch.setattr(KvfastManager, "free", lambda manager, request: None)
    else:
        monkeypatch.setattr(Lives, "drain_events", lambda lives: [])
    both = lockstep.Lockstep(lockstep.setups()["full, lives"], model, seed=3)
    assert both.run(100) is not None


def test_further_arguments_are_those_of_vllm(lockstep: Any) -> None:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    from kvfast.engines.vllm.manager import OPTIONS

    names = list(signature(KVCacheManager.allocate_slots).parameters)
    assert names[5:] == [*OPTIONS, *(["skip_zeroing_group_ids"] if is_since(32) else [])]


def test_what_lock_step_leaves_out_stays_with_the_stock_manager(lockstep: Any, model: str) -> None:
    from examples.vllm import setups
    from kvfast.engines.vllm.schedulers import KvfastScheduler

    for setup in setups.every_setup().values():
        if setups.is_refused(setup):
            config = lockstep.vllm_config(setup, model)
            made = lockstep.make_scheduler(KvfastScheduler, setup, config)
            assert "in vLLM 0." in made.kvfast_reason


def test_mamba_beside_a_connector_stays_with_the_stock_manager(lockstep: Any, model: str) -> None:
    from examples.vllm import setups
    from kvfast.engines.vllm.schedulers import KvfastScheduler

    setup = replace(setups.every_setup()["full and states"], loads="sync")
    made = lockstep.make_scheduler(KvfastScheduler, setup, lockstep.vllm_config(setup, model))
    assert made.kvfast_reason == "kvfast does not support Mamba layers beside a KV connector"
    made.schedule()
    assert (made.num_steps_kvfast, made.num_steps_stock) == (0, 1)


def test_events_that_nobody_took_are_shown_and_stay(lockstep: Any, model: str) -> None:
    both = lockstep.Lockstep(lockstep.setups()["full, events"], model, seed=3)
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


def test_what_is_not_served_stays_with_the_stock_manager(lockstep: Any, model: str) -> None:
    """Leave alone a manager of another class, which may behave in its own way."""
    from vllm.v1.core import kv_cache_manager

    from kvfast.engines.vllm import schedulers
    from kvfast.engines.vllm.fit import given_to
    from kvfast.engines.vllm.managers import kvfast_manager
    from kvspec.errors import UnsupportedError

    class Other(kv_cache_manager.KVCacheManager):  # type: ignore[misc]  # vLLM may be absent
        """A manager of another class."""

    setup = lockstep.setups()["full"]
    config = lockstep.vllm_config(setup, model)
    made = lockstep.make_scheduler(schedulers.KvfastScheduler, setup, config)
    assert made.kvfast_reason is None
    stock = lockstep.make_scheduler(lockstep.Scheduler, setup, config).kv_cache_manager
    stock.__class__ = Other
    with pytest.raises(UnsupportedError, match="Other"):
        kvfast_manager(stock, given_to(made))
