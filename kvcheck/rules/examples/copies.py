"""Copies: a clone, and a manager restored from a snapshot (KV-MGR-20)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.examples.bench import Bench
from kvcheck.rules.examples.example import example
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature, KVCacheManager
from kvspec.request import Request

PROMPT = range(9)


def _used(bench: Bench) -> tuple[KVCacheManager, Request]:
    """A manager with cached blocks that are free, out of order, and a request that runs."""
    manager = bench.manager(9)
    for name, start in (("a", 0), ("b", 20)):
        request = bench.started(manager, name, range(start, start + 9))
        manager.free(request)
    return manager, bench.started(manager, "r", range(40, 45))


def _later(bench: Bench, manager: KVCacheManager, running: Request) -> list[Any]:
    """Answers of calls that look up, evict, decode and release."""
    again = bench.request(manager, "again", [*PROMPT, 9, 10, 11])
    hit = manager.get_computed_blocks(again)
    answers: list[Any] = [hit.blocks.to_lists(), hit.hit_length_tokens]
    running.num_computed_tokens = 5
    bench.subject.append_tokens(manager, running, list(range(60, 69)))
    answers.append(bench.run(manager, running, 9))
    manager.free(running)
    granted = bench.admit(manager, bench.request(manager, "new", range(80, 109)))
    answers.append(granted.to_lists() if granted is not None else None)
    return [*answers, manager.num_free_blocks, bench.visible(manager)]


@example("KV-MGR-20", level=Level.IDENTITY)
def a_clone_goes_on(bench: Bench) -> None:
    """A clone answers as the original goes on to, which sees nothing of it."""
    bench.need(Feature.CLONE, Feature.PREFIX_CACHING)
    manager, running = _used(bench)
    clone = bench.subject.clone(manager)
    before = bench.visible(manager)
    bench.equal("the state of the clone", before, bench.visible(clone))
    expected = _later(bench, *_used(bench))
    bench.equal("what the clone answers", expected, _later(bench, clone, running))
    bench.equal("the state of the original", before, bench.visible(manager))
    other = _used(bench)[1]
    bench.equal("what the original answers", expected, _later(bench, manager, other))


@example("KV-MGR-20", level=Level.IDENTITY)
def a_restored_manager_goes_on(bench: Bench) -> None:
    """A manager restored from a snapshot answers as the original goes on to."""
    bench.need(Feature.RESTORE, Feature.SNAPSHOT, Feature.PREFIX_CACHING)
    manager, running = _used(bench)
    snapshot = manager.snapshot()
    restored = bench.subject.restore(manager.config, snapshot)
    bench.equal("its state", snapshot, restored.snapshot())
    expected = _later(bench, *_used(bench))
    bench.equal("what it answers", expected, _later(bench, restored, running))
    bench.equal("the state of the original", snapshot, manager.snapshot())


@example("KV-MGR-20", level=Level.IDENTITY)
def no_snapshot_no_manager(bench: Bench) -> None:
    """What is no snapshot, or no state, is not restored."""
    bench.need(Feature.RESTORE, Feature.SNAPSHOT)
    manager, _ = _used(bench)
    config, snapshot = manager.config, manager.snapshot()
    twice = replace(snapshot, free_queue=snapshot.free_queue[1:] * 2)
    wrongs: tuple[Any, ...] = (None, "a snapshot", twice)
    for wrong in wrongs:
        bench.raises(
            "restoring it", InvalidArgumentError, bench.subject.restore, config, wrong,
            field="snapshot",
        )  # fmt: skip


COPIES = (a_clone_goes_on, a_restored_manager_goes_on, no_snapshot_no_manager)
