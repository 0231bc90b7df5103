"""Random lives of the engine of examples/embed, with loads, failures and aborts: none gets stuck.

Each engine serves prompts of up to some thousand tokens over a pool in which few of them fit, and
must end all of them with the tokens that a model without any cache samples (KV-LIVE-4). After each
step its tables are the manager's lists, no slot is written twice, and shared blocks have equal
tokens. Over every manager it sends its workers the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import kvcheck
import kvfast
import kvref
from examples.embed.engine import Engine
from examples.embed.workers import Batch, Store, Workers, sampled
from kvcheck.mistakes import find
from kvfast._implementation import FastImplementation
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput
from kvspec.sequential import batched_of
from kvspec.specs import FullAttentionSpec
from tests.device.mistakes import planted

NUM_ENGINES, NUM_DEEP = 60, 10_000
MAX_STEPS_WITHOUT_PROGRESS = 60
MAX_RUNNING = 6


class WatchedWorkers(Workers):
    """Workers that keep what they were sent."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.batches: list[Batch] = []

    def run(self, batch: Batch) -> None:
        self.batches.append(batch)
        super().run(batch)


class Life:
    """One engine, with what is drawn for it. `seen` counts what happened."""

    def __init__(
        self,
        seed: int,
        implementation: Implementation,
        engine_class: type[Engine] = Engine,
        seen: Counter[str] | None = None,
    ) -> None:
        self.random, self.seen = Random(seed), Counter[str]() if seen is None else seen
        draw = self.random
        self.size = draw.choice((4, 16, 64))
        self.num_blocks = draw.randint(6, 60)
        self.most = (self.num_blocks - 1) * self.size
        spec = FullAttentionSpec(self.size, num_kv_heads=1, head_size=8, dtype="bfloat16")
        cache = KVCacheConfig(self.num_blocks, (KVCacheGroup(("layer.0",), spec),))
        config = ManagerConfig(cache, max_model_len_tokens=self.most, hash_seed="0")
        self.implementation = implementation
        manager = implementation.create(config, check_invariants=False)
        self.batched = batched_of(implementation, manager)
        self.workers = workers = WatchedWorkers(self.num_blocks, self.size, 2 * MAX_RUNNING)
        texts = [[draw.randrange(1000) for _ in range(self.most)] for _ in range(3)]
        self.texts = texts
        store = Store(workers, texts[:2], num_steps=draw.randint(1, 6), fails=self.fails)
        num_drafts = draw.choice((0, 0, 1, 3))
        self.engine = engine_class(
            self.batched,
            workers,
            max_running=MAX_RUNNING,
            max_tokens=max(self.most // draw.randint(1, 8), MAX_RUNNING * (1 + num_drafts)),
            num_drafts=num_drafts,
            max_deltas=3,
            store=store,
        )
        self.requests: dict[str, tuple[Request, int]] = {}

    def fails(self) -> bool:
        does = self.random.random() < 0.25
        self.seen["loads that failed" if does else "loads"] += 1
        return does

    def arrive(self) -> None:
        """Add a request: a beginning of a text, most often one that the store has."""
        text = self.random.choice(self.texts)
        cut = self.random.randint(1, max(self.most - 8, 1))
        cut -= self.random.choice((0, cut % self.size)) if cut > self.size else 0
        prompt = text[:cut] + [self.random.randrange(1000)] * self.random.randint(0, 3)
        num_new = self.random.randint(1, self.most - len(prompt))
        name = f"r{self.engine.num_added}"
        request = self.implementation.make_request(self.batched.manager, RequestInput(name, prompt))
        num_new = min(num_new, 12)
        self.engine.add(request, num_new)
        self.requests[name] = (request, num_new)

    def live(self) -> None:
        """Serve until all have ended; AssertionError where nothing moves or a token is wrong."""
        num_coming, idle_steps = self.random.randint(3, 10), 0
        engine = self.engine
        while num_coming or engine.running or engine.loading or engine.waiting:
            if num_coming and self.random.random() < 0.5:
                self.arrive()
                num_coming -= 1
            if self.requests and self.random.random() < 0.03:
                self.abort(self.random.choice(list(self.requests)))
            before = self.progress()
            self.seen["preempted"] -= sum(r.num_preemptions for r, _ in self.requests.values())
            ended = engine.step()
            self.expect_tables_and_slots()
            self.seen["preempted"] += sum(r.num_preemptions for r, _ in self.requests.values())
            for request in ended:
                self.expect_its_tokens(request)
            idle_steps = 0 if ended or self.progress() != before else idle_steps + 1
            assert idle_steps < MAX_STEPS_WITHOUT_PROGRESS, "the engine stands still"
        assert self.batched.manager.num_free_blocks == self.num_blocks - 1

    def progress(self) -> tuple[int, int]:
        """Return what grows while an engine serves."""
        return self.engine.num_added, sum(r.num_tokens for r, _ in self.requests.values())

    def abort(self, name: str) -> None:
        request, _ = self.requests.pop(name)
        where = [self.engine.running, self.engine.loading, self.engine.waiting]
        names = ("running", "loading", "waiting")
        for part, queue in zip(names, where, strict=True):
            self.seen[f"aborted {part}"] += any(one.request is request for one in queue)
        self.engine.abort(request)

    def expect_tables_and_slots(self) -> None:
        """Check that tables made of deltas are the lists, and who may read and write a block."""
        content: dict[int, list[int]] = {}
        for one in self.engine.running:
            blocks = list(self.batched.manager.get_blocks(one.request).groups[0])
            if not self.batched.num_pending_deltas():  # of a load that has just arrived
                assert self.workers.table[one.handle, : len(blocks)].tolist() == blocks, "table"
            for index, block in enumerate(blocks):
                tokens = list(one.request.token_ids[: (index + 1) * self.size])
                assert content.setdefault(block, tokens) == tokens, "shared, with other content"
        slots = self.workers.batches[-1].slots.tolist()
        assert len(set(slots)) == len(slots), "a slot is written twice"
        assert {slot // self.size for slot in slots} <= content.keys(), "nobody holds the block"

    @property
    def sent(self) -> list[list[Any]]:
        return [
            [one.deltas.tolist(), list(one.zeroed), one.tokens.tolist(), one.slots.tolist()]
            for one in self.workers.batches
        ]

    def expect_its_tokens(self, request: Request) -> None:
        """Check that the model samples the same tokens without a cache."""
        kept, num_new = self.requests.pop(request.request_id, (None, 0))
        if kept is None:  # aborted
            return
        tokens = list(request.token_ids[: request.num_prompt_tokens])
        for _ in range(num_new):
            tokens.append(sampled(np.array(tokens, np.int64)))
        assert list(request.token_ids) == tokens, "other tokens than without a cache"


class Monitored(FastImplementation):
    """kvfast, its managers under a monitor."""

    def __init__(self) -> None:
        super().__init__("uncompiled")

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        return kvcheck.monitor(super().create(config, **options))


@cache
def sent_by_reference(seed: int) -> tuple[list[list[Any]], Counter[str]]:
    seen = Counter[str]()
    life = Life(seed, kvref.implementation(), seen=seen)
    life.live()
    return life.sent, seen


@pytest.mark.parametrize(
    ("make", "num"),
    [(kvfast.implementation, NUM_ENGINES), (kvfast.uncompiled, 10), (Monitored, 2)],
)
def test_no_engine_stands_still_and_all_send_the_same(
    make: Callable[[], Implementation], num: int
) -> None:
    seen = Counter[str]()
    for seed in range(num):
        life = Life(seed, make())
        life.live()
        sent, happened = sent_by_reference(seed)
        assert life.sent == sent
        seen += happened
    drawn = {"loads", "loads that failed", "preempted", "aborted running", "aborted loading"}
    if num == NUM_ENGINES:
        assert all(seen[name] > 0 for name in drawn | {"aborted waiting"}), seen


@pytest.mark.deep
def test_no_engine_of_very_many_stands_still() -> None:
    for seed in range(NUM_DEEP):
        Life(seed, kvfast.implementation()).live()


EMBED = planted(Path(__file__).with_name("embed.diff"))
SEEN = {
    "KeepsWhatHasLoaded": "stands still",
    "ForgetsWhatIsLeft": "other tokens",
    "KeepsThePreempted": "it is new",
    "AppliesNoDeltas": "table",
    "ZeroesTooLate": "other tokens",
    "WritesOneSlotOn": "nobody holds the block",
}


@pytest.mark.parametrize("mistake", SEEN)
def test_an_engine_with_one_mistake_is_found(mistake: str) -> None:
    def all_lives() -> None:
        for seed in range(NUM_ENGINES):
            Life(seed, kvfast.implementation()).live()

    found = pytest.raises((AssertionError, InvalidArgumentError), match=SEEN[mistake])
    with find(mistake, EMBED).make(), found:
        all_lives()


def test_what_would_never_fit_is_refused_when_it_comes() -> None:
    life = Life(1, kvfast.implementation())
    most = life.most - 1
    request = life.implementation.make_request(life.batched.manager, RequestInput("r", [1]))
    with pytest.raises(InvalidArgumentError, match=f"max_new_tokens = {most + 1}: must be an int"):
        life.engine.add(request, most + 1)
    life.engine.add(request, most)
