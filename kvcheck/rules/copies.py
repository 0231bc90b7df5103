"""Copies: a clone, and a manager restored from a snapshot (KV-MGR-20)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.managed import Managed
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature
from kvspec.request import Request

PROMPT = range(9)


def _used(bench: Bench) -> tuple[Managed, Request]:
    """A manager with cached blocks that are free, out of order, and a request that runs."""
    manager = bench.manager(9)
    for name, start in (("a", 0), ("b", 20)):
        request = manager.started(name, range(start, start + 9))
        manager.free(request)
    return manager, manager.started("r", range(40, 45))


def _later(bench: Bench, manager: Managed, running: Request) -> list[Any]:
    """Answers of calls that look up, evict, decode and release."""
    again = manager.request("again", [*PROMPT, 9, 10, 11])
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
def a_clone_answers_as_the_original_goes_on_to_which_sees_nothing_of_it(bench: Bench) -> None:
    bench.need(Feature.CLONE, Feature.PREFIX_CACHING)
    manager, running = _used(bench)
    clone = manager.clone()
    before = manager.visible()
    equal(clone.visible(), before, "the state of the clone")
    expected = _later(bench, *_used(bench))
    equal(_later(bench, clone, running), expected, "what the clone answers")
    equal(manager.visible(), before, "the state of the original")
    other = _used(bench)[1]
    equal(_later(bench, manager, other), expected, "what the original answers")


@example("KV-MGR-20", level=Level.IDENTITY, choices=())
def a_manager_restored_from_a_snapshot_answers_as_the_original_goes_on_to(bench: Bench) -> None:
    bench.need(Feature.RESTORE, Feature.SNAPSHOT, Feature.PREFIX_CACHING)
    manager, running = _used(bench)
    snapshot = manager.snapshot()
    restored = bench.restore(manager.config, snapshot)
    equal(restored.snapshot(), snapshot, "its state")
    expected = _later(bench, *_used(bench))
    equal(_later(bench, restored, running), expected, "what it answers")
    equal(manager.snapshot(), snapshot, "the state of the original")


@example("KV-MGR-20", level=Level.IDENTITY, choices=())
def what_is_no_snapshot_or_no_state_is_not_restored(bench: Bench) -> None:
    bench.need(Feature.RESTORE, Feature.SNAPSHOT)
    manager, _ = _used(bench)
    config, snapshot = manager.config, manager.snapshot()
    twice = replace(snapshot, free_queue=snapshot.free_queue[1:] * 2)
    wrongs: tuple[Any, ...] = (None, "a snapshot", twice)
    for wrong in wrongs:
        with raises(InvalidArgumentError, field="snapshot"):
            bench.restore(config, wrong)
