"""The shadow in vLLM's scheduler, where vLLM 0.24.0 or 0.33.0 is installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvfast.engines.vllm.versions import is_since


@pytest.mark.usefixtures("followed")
@pytest.mark.parametrize(("follower", "runner"), [("kvref", "0"), ("kvfast", "0"), ("kvfast", "1")])
def test_a_shadow_finds_no_difference(
    shadowed: Any, setups: Any, monkeypatch: pytest.MonkeyPatch, follower: str, runner: str
) -> None:
    if runner == "1" and not is_since(33):
        pytest.skip("not beside vLLM 0.24")
    monkeypatch.setenv("KVSPEC_SHADOW", follower)
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", runner)
    for name in setups:
        both = shadowed(name)
        assert both.run(40) is None, name
        assert both.mirror.num_calls > 150, name


@pytest.mark.usefixtures("followed")
def test_a_shadow_finds_a_planted_difference(
    shadowed: Any, monkeypatch: pytest.MonkeyPatch, records: Path
) -> None:
    from vllm.v1.core.kv_cache_manager import KVCacheManager

    monkeypatch.setattr(KVCacheManager, "free", lambda manager, request: None)
    assert "record: " in str(shadowed("full").run(100))
    assert list(records.glob("kvspec-shadow-*.jsonl"))


def counted_twice(update: Callable[..., Any]) -> Callable[..., Any]:
    """Count one token too many in flight after vLLM's own update, before the shadow looks."""

    def mistaken(made: Any, plan: Any, output: Any) -> Any:
        answer = update(made, plan, output)
        for one in map(made.requests.get, plan.num_scheduled_tokens):
            if one is not None:
                one.num_in_flight_tokens += 1
        return answer

    return mistaken


def whole(place: int) -> Callable[[Any], Callable[..., int]]:
    """Leave the count that is given at this place: a chunk of a prompt that is not cut."""
    return lambda _: lambda *given, **named: given[place]


def always(answer: object) -> Callable[[Any], Callable[..., object]]:
    """Return this, and do nothing."""
    return lambda _: lambda *_: answer


@pytest.mark.usefixtures("later")
@pytest.mark.parametrize(
    ("setup", "member", "wrong", "said"),
    [
        ("full", "KVCacheManager.record_prefix_cache_stats", always(None), "prefix_cache_stats"),
        ("full, events", "KVCacheManager.take_events", always([]), "take_events"),
        ("two formats, zeroed", "KVCacheManager.take_new_block_ids", always([]), "new_block_ids"),
        (
            *("full and states", "KVCacheManager.take_kv_cache_block_copies"),
            *(always(([], [])), "take_kv_cache_block_copies"),
        ),
        ("full", "Scheduler.update_from_output", counted_twice, "update_from_output of r"),
        ("full and states", "Scheduler._free_cow_retained_blocks", always(None), "are held for"),
        ("full and states", "Scheduler._mamba_block_aligned_split", whole(2), "block"),
        ("modules", "Scheduler._reserve_prefill_lookahead", whole(3), "of which a drafter"),
        ("unfollowed", "Scheduler._reserve_prefill_lookahead", whole(3), "of which a drafter"),
    ],
)
def test_a_mistake_in_033_is_found(
    shadowed: Any,
    setups: Any,
    engine: Any,
    monkeypatch: pytest.MonkeyPatch,
    setup: str,
    member: str,
    wrong: Callable[[Any], object],
    said: str,
) -> None:
    from vllm.v1.core.sched import scheduler

    of, call = member.split(".")
    owner = getattr(scheduler, of)
    monkeypatch.setattr(owner, call, wrong(getattr(owner, call)))
    full, wide = (engine.layer("FullAttentionSpec", size) for size in (4, 8))
    drafted = {"num_drafts": 3, "use_eagle": True, "has_modules": True}
    made = {
        **setups,
        "modules": engine.Setup((full,), 90, 4, 4, **drafted),
        "unfollowed": engine.Setup((full, wide), 90, 8, 4, **drafted, drops_blocks=True),
    }
    both = shadowed(made[setup])
    both.run(200)
    found = str(both.mirror.difference)
    assert said in found
    assert ("the scheduler asks for" in found) is (of == "Scheduler")
    assert (both.mirror.num_calls > 0) is (setup != "unfollowed")


@pytest.mark.usefixtures("later")
def test_a_connector_that_is_offered_a_part_of_a_block_is_found(model: str, engine: Any) -> None:
    """Make the scheduler take the unit of hashes for that of blocks."""
    from examples.vllm.known_differences import Story, Told

    specs = (engine.layer("FullAttentionSpec", 16), engine.states(16, "align"))
    setup = engine.Setup(specs, 200, 16, 4, mamba_mode="align", loads="sync")
    both = Told(Story(setup, prompts=((0, range(13)), (6, range(75)))), model)
    for side in both.sides:
        side.scheduler.block_size = 4
    both.run(20)
    assert both.mirror is not None
    assert "asks for tokens behind 12, no multiple of 16" in str(both.mirror.difference)


@pytest.mark.usefixtures("later")
def test_what_is_not_followed_is_said_by_name(
    shadowed: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcheck.adapters.vllm import shadow

    said: list[str] = []
    logger = SimpleNamespace(warning=lambda text, what: said.append(text % what), error=print)
    monkeypatch.setattr(shadow, "init_logger", lambda name: logger)
    specs = (engine.layer("FullAttentionSpec", 4), engine.states(8, "align"))
    setup = engine.Setup(
        specs, 90, 8, 4, mamba_mode="align", loads="sync", num_drafts=2, use_eagle=True
    )
    both = shadowed(setup)
    assert both.run(30) is None
    assert both.mirror.num_calls == 0
    assert said == [
        "No shadow: states inside blocks where EAGLE drops them, beside a KV connector."
        " What the scheduler must keep is checked."
    ]
    whole = (engine.layer("FullAttentionSpec", 8), engine.states(8, "align"))
    both = shadowed(replace(setup, specs=whole, num_blocks=300, hash_block_size=8))
    assert both.run(30) is None
    assert both.mirror.num_calls > 0
    assert both.mirror.difference is None


@pytest.mark.usefixtures("followed", "engine")
def test_known_differences_are_reported_and_expected() -> None:
    from examples.vllm import known_differences

    assert known_differences.main() == 0
