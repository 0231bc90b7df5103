"""Each call with one allocation after the other that fails: a program, since it may crash.

python -m tests.contract.without_memory IMPLEMENTATION
"""

from __future__ import annotations

import _testcapi  # type: ignore[import-not-found] # CPython's own tests have it
import gc
import sys
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from kvcheck.discovery import find_implementation
from kvcheck.rules.specs import full, sliding
from kvcheck.rules.steps import rows_of, slots_of
from kvspec.batched import StepOutput, StepPlan
from kvspec.errors import InvalidArgumentError, SpoiltError
from kvspec.interface import Implementation
from kvspec.invariants import check_snapshot
from kvspec.sequential import SequentialManager
from kvspec.specs import LayerSpec
from tests.contract.builders import admit, make_config, new_request


class Scene:
    """Two requests that hold blocks, one that was popped, one that waits; events and lives."""

    specs: Sequence[LayerSpec] = (full(4), sliding(4, 9))

    def __init__(self, implementation: Implementation) -> None:
        config = make_config(
            60, specs=self.specs, log_stats=True, enable_events=True, residency_sample_rate=1.0
        )
        self.implementation = implementation
        self.manager = implementation.create(config, check_invariants=False, clock=lambda: 7)
        self.batched = implementation.batched(self.manager)  # type: ignore[attr-defined] # has it
        self.a, self.b, self.c, self.gone = (
            new_request(implementation, self.manager, name, [*range(17), start])
            for start, name in enumerate(("a", "b", "c", "gone"))
        )
        admit(self.manager, self.gone)
        self.popped = self.manager.pop_blocks_for_free(self.gone)
        admit(self.manager, self.a)
        self.ha, self.hb, self.hc = (self.batched.register(r) for r in (self.a, self.b, self.c))
        self.batched.admit([self.hb])
        self.free: Any = new_request(implementation, self.manager, "free", range(9))
        self.rows, self.slots = rows_of(50), slots_of(50)
        self.output = StepOutput(self.rows, [self.slots, None][: len(self.specs)])
        self.plan = StepPlan(preempted=[self.ha], decoding=[self.hb], new=[self.hc])
        self.hit = self.manager.get_computed_blocks(self.c)
        self.ids = array("q", [1, 2])
        self.tokens = list(range(100, 140))

    def allocate(self) -> object:
        return self.manager.allocate_slots(
            self.c,
            18 - self.hit.hit_length_tokens,
            num_new_computed_tokens=self.hit.hit_length_tokens,
            new_computed_blocks=self.hit.blocks,
        )

    def seen(self) -> tuple[object, ...]:
        requests = (self.a, self.b, self.c, self.free, self.gone)
        return (
            self.manager.snapshot(),
            [
                (r.num_computed_tokens, r.status, r.num_preemptions, list(r.token_ids))
                for r in requests
            ],
            [list(r.block_hashes) for r in requests],
            self.batched.num_pending_deltas(),
            self.manager.take_events(),
            self.manager.take_residency_samples(),
            self.manager.make_prefix_cache_stats(),
        )


class PlainScene(Scene):
    """One group that keeps all: an implementation may count ahead what only needs a count."""

    specs = (full(4),)

    def illegal(self, plan: StepPlan, output: StepOutput | None = None) -> str:
        """Return the field a step is refused for, after its running requests were found legal."""
        try:
            return repr(self.batched.step(plan, output))
        except InvalidArgumentError as error:
            return error.field


ILLEGAL: Mapping[str, Callable[[Any], object]] = {
    "count, no new one": lambda s: s.illegal(StepPlan(decoding=[s.ha], new=[s.hb])),
    "count, no room": lambda s: s.illegal(
        StepPlan(decoding=[s.ha, s.hb]), StepOutput(None, [slots_of(1)])
    ),
}
"""Refused steps. Not of compiled code: where CPython 3.11 has no memory for a caller's frame, it
drops the exception that leaves the callee. Python code gets a SystemError, Cython's crashes.
"""

PLAIN: Mapping[str, Callable[[Any], object]] = {
    "count": lambda s: s.batched.decode([s.ha, s.hb]),
    "count, fill": lambda s: s.batched.decode([s.ha, s.hb], [1, 2], num_lookahead_tokens=2),
    **ILLEGAL,
}
"""Steps of a `PlainScene`."""

CALLS: Mapping[str, Callable[[Scene], object]] = {
    "get_computed_blocks": lambda s: s.manager.get_computed_blocks(s.c),
    "find_longest_cache_hit_per_group": lambda s: s.manager.find_longest_cache_hit_per_group(
        s.c, 16
    ),
    "allocate_slots": Scene.allocate,
    "get_num_blocks_to_allocate": lambda s: s.manager.get_num_blocks_to_allocate(
        s.c, num_tokens=18, total_computed_tokens=0, num_tokens_main_model=18
    ),
    "cache_blocks": lambda s: s.manager.cache_blocks(s.a, 16),
    "evict_blocks": lambda s: s.manager.evict_blocks([1, 2, 3]),
    "withdraw": lambda s: s.manager.withdraw(s.a, 4),
    "free": lambda s: s.manager.free(s.a),
    "pop_blocks_for_free": lambda s: s.manager.pop_blocks_for_free(s.a),
    "free_blocks": lambda s: s.manager.free_blocks(s.popped),
    "hold_blocks": lambda s: s.manager.hold_blocks([1, 2, 11]),
    "get_block": lambda s: s.manager.get_block(1),
    "remove_skipped_blocks": lambda s: s.manager.remove_skipped_blocks(s.a, 17),
    "get_num_common_prefix_blocks": lambda s: s.manager.get_num_common_prefix_blocks(s.a),
    "get_blocks": lambda s: s.manager.get_blocks(s.a),
    "get_unhashed_block_ids": lambda s: s.manager.get_unhashed_block_ids(s.a),
    "take_events": lambda s: s.manager.take_events(),
    "take_new_block_ids": lambda s: s.manager.take_new_block_ids(),
    "make_prefix_cache_stats": lambda s: s.manager.make_prefix_cache_stats(),
    "take_residency_samples": lambda s: s.manager.take_residency_samples(),
    "append_tokens": lambda s: s.implementation.append_tokens(s.manager, s.b, s.tokens),
    "request.append": lambda s: s.free.append(s.tokens),
    "register": lambda s: s.batched.register(s.free),
    "batched.append": lambda s: s.batched.append([s.ha, s.hb], s.tokens, [20, 20]),
    "rewind": lambda s: s.batched.rewind([s.hb], 1),
    "lookup": lambda s: s.batched.lookup([s.hc]),
    "step": lambda s: s.batched.step(s.plan, s.output),
    "decode": lambda s: s.batched.decode([s.hb], output=s.output),
    "preempt": lambda s: s.batched.preempt([s.ha]),
    "take_deltas": lambda s: s.batched.take_deltas(s.rows),
    "list_lengths": lambda s: s.batched.list_lengths([s.ha, s.hb]),
    **PLAIN,
}

ATOMIC = frozenset(CALLS) - {
    *("allocate_slots", "cache_blocks", "evict_blocks", "withdraw", "free", "pop_blocks_for_free"),
    *("free_blocks", "hold_blocks", "remove_skipped_blocks", "take_new_block_ids", "register"),
    *("batched.append", "rewind", "lookup", "step", "decode", "preempt", "take_deltas"),
    *PLAIN,
    *("get_computed_blocks", "make_prefix_cache_stats"),
}
"""Calls that are as if they never came when memory runs out, in any implementation (KV-ERR-8)."""


MANY = 5000
"""More allocations than any call makes."""

HASHING = frozenset({"append_tokens", "request.append", "batched.append"})
"""Not of kvref: the encoder that its hashes come from ends the process when memory runs out."""


def scene_of(name: str) -> type[Scene]:
    return PlainScene if name in PLAIN else Scene


def play(implementation: Implementation, name: str, counts: Counter[str]) -> None:
    """Make one call: first with all allocations failing from number k on, then number k alone.

    The first ones are bounded: to enter a handler, CPython 3.11 makes an int of its position, and
    tries again and again if that is beyond 256 and fails.
    """
    call, made = CALLS[name], scene_of(name)
    quiet = made(implementation)
    answer, before, after = repr(call(made(implementation))), quiet.seen(), None
    done = made(implementation)
    call(done)
    after = done.seen()
    k = 0
    while not fails(implementation, name, (k, k + MANY), (answer, before, after), counts):
        k += 1
    for alone in range(k):
        fails(implementation, name, (alone, alone + 1), (answer, before, after), counts)


def fails(
    implementation: Implementation,
    name: str,
    which: tuple[int, int],
    wanted: tuple[str, object, object],
    counts: Counter[str],
) -> bool:
    scene, call = scene_of(name)(implementation), CALLS[name]
    answer: Any = None
    error: BaseException | None = None
    forget, fail = _testcapi.remove_mem_hooks, _testcapi.set_nomemory
    fail(*which)
    try:
        answer = call(scene)
    except BaseException as raised:
        forget()
        error = raised
    forget()
    if error is None:
        assert repr(answer) == wanted[0], (name, which)
        assert scene.seen() == wanted[2], (name, which)
        return True
    allowed = (MemoryError, SystemError) if name in ILLEGAL else MemoryError
    assert isinstance(error, allowed), (name, which, error)
    try:
        check_snapshot(scene.manager.config, scene.manager.snapshot())
        scene.batched.num_pending_deltas()  # one made of single calls may be spoilt alone
    except SpoiltError as spoilt:
        counts[spoilt.cause] += 1
        assert name not in ATOMIC, (name, which)
        refused(scene, name)
        return False
    counts["as before"] += 1
    assert scene.seen() == wanted[1], (name, which)
    return False


def refused(scene: Scene, name: str) -> None:
    calls: tuple[Callable[[], object], ...] = (
        lambda: scene.batched.list_lengths([scene.ha]),
        lambda: CALLS["free"](scene),
        lambda: scene.manager.num_free_blocks,
        lambda: scene.manager.usage,
        lambda: scene.implementation.clone(scene.manager),
    )
    alone = isinstance(scene.batched, SequentialManager) and scene.batched.turn.cause is not None
    for call in calls[:1] if alone else calls:
        try:
            call()
        except SpoiltError:
            continue
        raise AssertionError(f"a spoilt manager answers, after {name}")


def check_references(implementation: Implementation) -> None:
    """Take events where one allocation after the other fails: no reference is lost (KV-ERR-8)."""
    tokens = list(range(100, 156))  # small ints, which live for ever

    def taken(number: int) -> None:
        manager = implementation.create(make_config(40, enable_events=True), check_invariants=False)
        request = new_request(implementation, manager, "r", tokens)
        manager.allocate_slots(request, len(tokens))
        _testcapi.set_nomemory(number, number + 1)
        try:
            manager.take_events()
        except MemoryError:
            pass
        finally:
            _testcapi.remove_mem_hooks()

    counts = []
    for _ in range(2):  # what the first round makes for good, the second one does not
        gc.disable()  # it would lose objects itself, without memory
        for number in range(1, 121):
            taken(number)
        gc.enable()
        gc.collect()
        counts.append([sys.getrefcount(token) for token in tokens])
    grown = [after - before for before, after in zip(*counts, strict=True)]
    assert min(grown) == median(grown), f"some lost references: {grown}"


if __name__ == "__main__":
    found = find_implementation(sys.argv[1])
    for each in CALLS:
        if each in {"kvref": HASHING, "kvfast": ILLEGAL}.get(sys.argv[1], ()):
            continue
        tally: Counter[str] = Counter()
        play(found, each, tally)
        print(each, dict(tally), flush=True)
    check_references(found)
