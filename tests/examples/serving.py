"""The engine of examples/embed at work: what it serves, over which managers, what is checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kvcheck
import kvfast
import kvref
from examples.embed.engine import Engine
from examples.embed.workers import Batch, Workers, sampled
from kvspec.batched import BatchedManager
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Implementation
from kvspec.request import RequestInput
from kvspec.sequential import batched_of
from kvspec.specs import FullAttentionSpec

SIZE = 4
NUM_BLOCKS = 15
MAX_RUNNING = 4
SPEC = FullAttentionSpec(block_size=SIZE, num_kv_heads=1, head_size=8, dtype="bfloat16")
CONFIG = ManagerConfig(
    KVCacheConfig(num_blocks=NUM_BLOCKS, groups=(KVCacheGroup(("layer.0",), SPEC),)),
    max_model_len_tokens=64,
    log_stats=True,
    enable_events=True,
    hash_seed="0",
)

# A short text, a long one, beginnings that are shared, two of the same content.
TEXT = list(range(100, 130))
PROMPTS = (TEXT[:9], TEXT[:22], [7, 8, 9], TEXT[:22], [*TEXT[:13], 5], TEXT[:30], [7, 8, 9, 1, 2])
LENGTHS = (14, 9, 20, 12, 8, 16, 1)


class WatchedWorkers(Workers):
    def __init__(self) -> None:
        super().__init__(NUM_BLOCKS, SIZE, 2 * MAX_RUNNING)
        self.batches: list[Batch] = []

    def run(self, batch: Batch) -> None:
        self.batches.append(batch)
        super().run(batch)


@dataclass
class Served:
    """The outcome of the prompts: tokens by name, and what was sent to the workers."""

    tokens: dict[str, list[int]] = field(default_factory=dict)
    batches: list[tuple[list[Any], ...]] = field(default_factory=list)


def serve(
    implementation: Implementation,
    batched: BatchedManager,
    workers: WatchedWorkers | None = None,
    engine_class: type[Engine] = Engine,
) -> Served:
    """Serve all prompts, checking after each step; AssertionError where the engine is wrong."""
    workers = workers or WatchedWorkers()
    engine = engine_class(
        batched, workers, max_running=MAX_RUNNING, max_tokens=12, num_drafts=2, max_deltas=3
    )
    for number, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        given = RequestInput(f"r{number}", prompt)
        engine.add(implementation.make_request(batched.manager, given), length)
    served = Served()
    while engine.running or engine.loading or engine.waiting:
        for request in engine.step():
            generated = request.token_ids[request.num_prompt_tokens :]
            served.tokens[request.request_id] = list(generated)
        expect_tables(engine, workers)
        expect_own_slots(engine, workers.batches[-1])
        assert len(workers.batches) < 500, "the engine makes no progress"
    assert served.tokens == expected_tokens(), "other tokens than without a cache"
    assert batched.manager.num_free_blocks == NUM_BLOCKS - 1, "not every block came back"
    assert batched.num_pending_deltas() == 0, "rows are left"
    served.batches = [
        (one.deltas.tolist(), list(one.zeroed), one.tokens.tolist(), one.slots.tolist())
        for one in workers.batches
    ]
    return served


def expected_tokens() -> dict[str, list[int]]:
    """Return the tokens that the model samples without any cache."""
    expected = {}
    for number, (prompt, length) in enumerate(zip(PROMPTS, LENGTHS, strict=True)):
        tokens = list(prompt)
        for _ in range(length):
            tokens.append(sampled(np.array(tokens, np.int64)))
        expected[f"r{number}"] = tokens[len(prompt) :]
    return expected


def expect_tables(engine: Engine, workers: Workers) -> None:
    """Check that tables assembled from deltas equal the manager's lists."""
    for one in engine.running:
        blocks = list(engine.manager.get_blocks(one.request).groups[0])
        assert workers.table[one.handle, : len(blocks)].tolist() == blocks, "table"


def expect_own_slots(engine: Engine, batch: Batch) -> None:
    """Check that written blocks have one owner, and sharers the same tokens up to its end."""
    content: dict[int, list[int]] = {}
    holders: dict[int, int] = {}
    for one in engine.running:
        for index, block in enumerate(engine.manager.get_blocks(one.request).groups[0]):
            tokens = list(one.request.token_ids[: (index + 1) * SIZE])
            assert content.setdefault(block, tokens) == tokens, "shared, with other content"
            holders[block] = holders.get(block, 0) + 1
    assert len(set(batch.slots.tolist())) == len(batch.slots), "a slot is written twice"
    written = {slot // SIZE for slot in batch.slots.tolist()}
    assert written <= holders.keys(), "a block is written that nobody holds"


def of_kvfast() -> tuple[Implementation, BatchedManager]:
    """Return the present build of kvfast, audited."""
    implementation = kvfast.implementation()
    return implementation, implementation.batched(implementation.create(CONFIG))


def of_kvfast_uncompiled() -> tuple[Implementation, BatchedManager]:
    """Return kvfast in plain Python, audited."""
    implementation = kvfast.uncompiled()
    return implementation, implementation.batched(implementation.create(CONFIG))


def of_kvref() -> tuple[Implementation, BatchedManager]:
    """Return the reference, audited."""
    implementation = kvref.implementation()
    return implementation, batched_of(implementation, implementation.create(CONFIG))


def watched() -> tuple[Implementation, BatchedManager]:
    """Return kvfast under a monitor, as the page does."""
    implementation = kvfast.implementation()
    return implementation, implementation.batched(kvcheck.monitor(implementation.create(CONFIG)))
