"""The loops over vLLM's requests beside a plain statement, over made-up requests without vLLM."""

from __future__ import annotations

import tomllib
from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from inspect import getsource
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

import kvfast
from kvfast.engines.vllm import loops, taking
from kvspec.config import GIVEN_HASHES, KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.following import FollowedInput
from kvspec.specs import FullAttentionSpec
from tests.engines.plain_steps import (
    ABORTED,
    LONGEST,
    PREEMPTED,
    RUNNING,
    SIZE,
    Given,
    Plainly,
    Told,
    ends,
    items_end,
    made_request,
    split,
    stop,
    whole_answer,
)

GIVEN = next(name for name, size in GIVEN_HASHES.items() if size == 8)
GROUP = KVCacheGroup(("layer",), FullAttentionSpec(SIZE, 1, 8, "float16"))
CONFIG = ManagerConfig(KVCacheConfig(400, (GROUP,)), LONGEST, hash_function=GIVEN)


class ByLoops:
    """A step by the loops of one build, whose seats are kept."""

    def __init__(self, made_of: Any, given: Given) -> None:
        self.made_of, self.given = made_of, given
        how = (given.ahead, given.has_drafts, given.is_async, given.each)
        self.seats = made_of.Seats(LONGEST, SIZE, *how)
        self.seats.in_flight, self.seats.staggers = given.in_flight, given.is_staggered
        self.seats.split = split if given.splits else None
        self.fast = made_of.implementation()
        config = replace(CONFIG, hash_lookahead_tokens=given.ahead)
        self.manager = self.fast.create(config, check_invariants=False)
        self.seats.batch = self.batch = self.fast.batched(self.manager)
        self.handles: dict[str, int] = {}
        self.mine: dict[int, Any] = {}

    def seat(self, running: list[Any], forgotten: set[str]) -> None:
        for name in forgotten & self.handles.keys():
            self.batch.unregister((self.handles.pop(name),))
        if running == self.seats.requests and not forgotten:
            return
        self.join(running[self.seats.keep(running, forgotten) :])
        assert not forgotten
        assert self.seats.requests == running
        assert list(self.seats.handles) == [self.handles[each.request_id] for each in running]

    def join(self, came: list[Any]) -> None:
        for each in came:
            if each.request_id not in self.handles:
                mine = self.followed(each)
                handle = self.handles[each.request_id] = self.batch.register(mine)
                self.mine[handle] = mine
        handles = [self.handles[each.request_id] for each in came]
        self.seats.join(came, handles, [self.mine[handle] for handle in handles])

    def followed(self, request: Any) -> Any:
        tokens = len(request._all_token_ids)
        hashes = [bytes(8)] * ((tokens - self.given.ahead) // SIZE)
        given = FollowedInput(request.request_id, tokens, request.num_prompt_tokens, hashes)
        mine = self.fast.make_followed(self.manager, given)
        assert mine.num_hashes == len(hashes)
        return mine

    def plan(self, running: list[Any], came: dict[Any, int], *limits: int) -> Told | None:
        chosen = self.chosen = self.seats.choose(*limits)
        if chosen is None:
            return None
        given = self.given
        due = self.seats.make_equal(chosen)
        behind = []
        for request, mine in zip(running, self.seats.mine, strict=True):
            if request in chosen.requests():
                assert mine.num_computed_tokens == request.num_computed_tokens
                if given.in_flight:
                    assert mine.num_in_flight_tokens == request.num_in_flight_tokens
                tokens, had = len(request._all_token_ids), mine.num_hashes
                if tokens - given.ahead >= SIZE * (had + 1):
                    new = request.block_hashes[had : (tokens - given.ahead) // SIZE]
                    behind.append((self.handles[request.request_id], tokens, new))
        assert [*zip(*due[:2], strict=True)] == [each[:2] for each in behind]
        assert due[2] == [one for each in behind for one in each[2]]
        if behind:
            self.batch.follow(*due)
        handles = list(chosen.handles)
        rows = [(h, g, 0, h + g) for h in handles if h % 3 for g in (0, 1)]
        numbers = array("i", [number for row in [*rows, (0, 0, 0, 0)] for number in row])
        view = memoryview(numbers).cast("B").cast("i", [len(rows) + 1, 4])
        blocks = chosen.granted(view, len(rows), 2)
        assert blocks == [([h], [h + 1]) if h % 3 else None for h in handles]
        self.join([*came])
        counts = self.seats.scheduled(chosen)
        counts.update((each.request_id, count) for each, count in came.items())
        assert chosen.total + sum(came.values()) == sum(counts.values())
        assert chosen.names + [each.request_id for each in came] == list(counts)
        self.counts = [*counts.values()]
        assert self.counts[: len(chosen.counts)] == chosen.counts
        self.seats.read(len(running), len(chosen.counts))
        same = chosen.counts[0] if len({*chosen.counts}) == 1 else 0
        assert (chosen.same, chosen.most) == (same, max(chosen.counts, default=0))
        return Told(counts, chosen.computed, chosen.outputs, chosen.drafts)

    def advance(self, told: Told, prefills: set[Any], eligible_at: int) -> None:
        later = [-1] * self.given.num_drafts if self.given.is_async else None
        self.seats.advance(self.counts, told.drafts, prefills, later, eligible_at)

    def take(self, told: Told, requests: Any, sampled: Any, pooled: Any) -> Any:
        given, log, ended = self.given, [], []

        def stopped(one: Any, status: int) -> str:
            if status == RUNNING:
                ended.append(one.request_id)
            return stop(one, status)

        taker = self.made_of.Taker(
            RUNNING, PREEMPTED, lambda *answer: answer, whole_answer, ends, stopped,
            (lambda one, final: log.append((one.request_id, final))) if given.caches else None,
            given.in_flight, given.by_flight, given.has_drafts, given.is_strict,
            (lambda one: log.append(one.request_id)) if given.in_flight else None,
        )  # fmt: skip
        taker.pooled = pooled
        taker.let_go = lambda one: log.append(("let go", one.request_id))
        places = {name: i for i, name in enumerate(told.counts)}
        answers = taker.take_all(self.seats, told.counts, requests, sampled, places, told.drafts)
        seated = [self.seats.names[place] for place in taker.ended]
        assert seated == ended or len(seated) < len(ended)  # one returned behind the others
        return answers, taker.num_rewound, log, ended


class Story:
    """Steps of a made-up scheduler, with all results, and its requests afterwards."""

    def __init__(self, made: Callable[[Given], Any], seed: int) -> None:
        self.rng = rng = Random(seed)
        self.given = given = Given(rng)
        self.doer = made(given)
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.preempted: list[Any] = []
        self.flight: list[tuple[Told, set[str]]] = []
        self.forgotten: set[str] = set()
        self.num_made = 0
        self.counts: Counter[str] = Counter()

    def request(self) -> Any:
        self.num_made += 1
        return made_request(self.rng, self.given, self.num_made)

    def between(self) -> None:
        rng = self.rng
        if self.running and rng.random() < 0.25:
            one = self.running.pop(rng.randrange(len(self.running)))
            self.forgotten.add(one.request_id)
            if rng.random() < 0.5:
                one.status = ABORTED
                del self.requests[one.request_id]
                self.counts["aborted"] += 1
            else:
                self.preempt(one)
        while len(self.running) < 11 and rng.random() < (0.9 if len(self.running) < 4 else 0.4):
            one = self.preempted.pop() if self.preempted and rng.random() < 0.7 else self.request()
            one.status = RUNNING
            self.requests[one.request_id] = one
            self.running.append(one)
        if self.running and rng.random() < 0.1:
            one = self.running[-1]  # freed, and back in its place
            one.events = ["preempted", "scheduled"]
            self.forgotten.add(one.request_id)
            self.counts["back in its place"] += 1

    def preempt(self, one: Any) -> None:
        one.status = PREEMPTED
        one.num_computed_tokens = 0
        if self.given.in_flight:
            one.num_stale_output_tokens = one.num_in_flight_tokens
        else:
            one.async_tokens_to_discard = one.num_output_placeholders
        one.num_output_placeholders = 0
        self.preempted.append(one)
        self.counts["preempted"] += 1

    def step(self, number: int) -> list[Any]:
        rng, given = self.rng, self.given
        self.between()
        self.doer.seat(self.running, self.forgotten)
        self.forgotten.clear()
        if given.has_drafts and not given.is_async:
            for each in self.running:
                each.spec_token_ids = [rng.randrange(50) for _ in range(rng.randint(0, 2))]
        budget, threshold = rng.randint(1, 60), rng.choice((0, 4))
        came = {
            self.request(): rng.randint(1, 3) for _ in range(rng.randint(0, len(self.running) < 7))
        }
        told = self.doer.plan(self.running, came, budget, threshold, number)
        if told is None:
            for one in self.running:  # as a step of vLLM's scheduler
                one.num_computed_tokens = max(one.num_computed_tokens, items_end(one))
            return ["beyond"]
        self.counts["skipped"] += len(told.counts) < len(self.running)
        self.counts["admitted"] += len(came)
        self.running += came
        self.requests.update((one.request_id, one) for one in came)
        prefills = {*self.running}
        self.doer.advance(told, prefills, number + 2 if given.is_staggered else 0)
        found = [told, sorted(each.request_id for each in prefills)]
        chunks = {each.request_id for each in self.running if each.is_prefill_chunk}
        self.flight.append((told, chunks))
        if rng.random() < 0.6:
            self.between()
        if len(self.flight) > given.is_async:
            found += self.update()
        found += [_state(each) for each in self.requests.values()]
        self.counts["steps"] += 1
        self.counts["drafts"] += bool(told.drafts)
        return found

    def update(self) -> list[Any]:
        told, chunks = self.flight.pop(0)
        sampled = [
            []
            if name in chunks or self.given.pools
            else [
                self.rng.randrange(12)
                for _ in range(1 + self.rng.randint(0, len(told.drafts.get(name, ()))))
            ]
            for name in told.counts
        ]
        pooled = None
        if self.given.pools:
            sampled, pooled = [], [None if name in chunks else (name,) for name in told.counts]
            self.counts["pooled"] += len({*told.counts} - chunks)
        self.doer.seat(self.running, self.forgotten)
        self.forgotten.clear()
        answers, rewound, log, ended = self.doer.take(told, self.requests, sampled, pooled)
        for name in ended:
            self.running.remove(self.requests[name])
            self.forgotten.add(name)
        over = [each for each in self.requests.values() if each.status == ABORTED]
        for one in over:
            del self.requests[one.request_id]
            self.preempted = [each for each in self.preempted if each is not one]
            self.counts["ended"] += 1
        return [answers, rewound, log, ended, [_state(one) for one in over]]


def _state(request: Any) -> dict[str, Any]:
    return {**vars(request), "update_block_hashes": None, "sampling_params": None}


def played(made_of: Any, num_seeds: int) -> Counter[str]:
    """Compare stories by these loops with the plain statement; count what occurred."""
    counts: Counter[str] = Counter()
    for seed in range(num_seeds):
        plain = Story(Plainly, seed)
        story = Story(lambda given: ByLoops(made_of, given), seed)
        for number in range(1, 26):
            expected, found = plain.step(number), story.step(number)
            assert str(found) == str(expected), (seed, number)
        counts += plain.counts
    return counts


@pytest.mark.parametrize("build", ["plain", "compiled"])
def test_the_loops_do_what_is_plainly_stated(build: str) -> None:
    built, implementation = [loops, taking], kvfast.uncompiled
    if build == "compiled":
        if not kvfast.compiled:
            pytest.skip("not compiled")
        built = [import_module(f"kvfast._compiled.vllm_{name}") for name in ("loops", "taking")]
        implementation = kvfast.implementation
    made_of = SimpleNamespace(Seats=built[0].Seats, Taker=built[1].Taker)
    made_of.implementation = implementation
    counts = played(made_of, 150)
    assert min(counts.values()) > 50, counts


MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))
ROWS = [(file, *row) for file in ("loops", "taking") for row in MISTAKES[file]]


@pytest.mark.parametrize(("file", "there", "wrong"), ROWS, ids=range(len(ROWS)))
def test_a_mistake_in_a_loop_is_found(file: str, there: str, wrong: str) -> None:
    made = {"loops": getsource(loops), "taking": getsource(taking)}
    assert made[file].count(there) == 1
    made[file] = made[file].replace(there, wrong)
    parts: dict[str, dict[str, Any]] = {name: {"__name__": name} for name in made}
    for name, source in made.items():
        exec(compile(source, name, "exec"), parts[name])  # a copy of our own file
    made_of = SimpleNamespace(Seats=parts["loops"]["Seats"], Taker=parts["taking"]["Taker"])
    made_of.implementation = kvfast.uncompiled
    with pytest.raises((AssertionError, IndexError, KeyError, AttributeError, UnboundLocalError)):
        played(made_of, 500)
