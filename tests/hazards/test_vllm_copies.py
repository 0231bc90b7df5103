"""The record of vLLM's scheduler from made-up plans and outputs, so that no vLLM is needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from kvcheck.adapters.vllm.copies import CopyRecorder
from kvcheck.hazards.checker import Hazard
from kvspec.specs import FullAttentionSpec, SlidingWindowSpec

FULL = FullAttentionSpec(4, 1, 8, "float16")
WINDOW = SlidingWindowSpec(2, 1, 8, "float16", sliding_window=3)


class Engine:
    """As much of a scheduler as is recorded: its pool gives blocks in ascending order."""

    def __init__(self, *specs: Any, is_whole: bool = False) -> None:
        self.found: list[Hazard] = []
        self.next = 1
        self.lists: dict[str, tuple[list[int], ...]] = {}
        self.computed: dict[str, int] = {}
        self.blocks = [SimpleNamespace(block_id=i, block_hash=None) for i in range(20)]
        self.block_pool = SimpleNamespace(blocks=self.blocks, get_new_blocks=self._take)
        self.recorder = CopyRecorder(self, specs or (FULL,), self.found.append, is_whole=is_whole)

    def _take(self, num: int) -> list[Any]:
        self.next += num
        return self.blocks[self.next - num : self.next]

    def get_block_ids(self, name: str) -> Any:
        return self.lists.get(name, ())

    def allocate_slots(self, request: Any, new: int, hit: int, hits: Any, **given: Any) -> Any:
        lists = tuple([block.block_id for block in group] for group in hits.blocks)
        total = request.num_computed_tokens + hit + given["num_external_computed_tokens"] + new
        for ids, spec in zip(lists, self.recorder.specs, strict=True):
            num = -(-total // (spec.block_size if spec else 4)) - len(ids)
            ids += [block.block_id for block in self.block_pool.get_new_blocks(num)]
        self.lists[request.request_id] = lists
        return lists

    def free(self, request: Any) -> None:
        del self.lists[request.request_id]

    pop_blocks_for_free = free

    def admit(self, name: str, new: int, hits: tuple[list[int], ...] = (), **given: Any) -> Any:
        """Give a request slots behind its hits, and keys to its full blocks."""
        groups = [
            [self.blocks[i] for i in ids] for ids in hits or [[] for _ in self.recorder.specs]
        ]
        request = SimpleNamespace(request_id=name, num_computed_tokens=0)
        hit = 4 * len(hits[0]) if hits else 0
        loaded = given.setdefault("num_external_computed_tokens", 0)
        self.allocate_slots(request, new, hit, SimpleNamespace(blocks=groups), **given)
        self.computed[name] = hit + loaded
        for block in self.lists[name][0][: (hit + loaded + new) // 4]:
            self.blocks[block].block_hash = b"key"
        return request

    def plan(self, meta: Any = None, **tokens: int) -> Any:
        """Plan a step of these requests."""
        new = [SimpleNamespace(req_id=n, num_computed_tokens=self.computed[n]) for n in tokens]
        none = SimpleNamespace(req_ids=[], num_computed_tokens=[])
        made = SimpleNamespace(
            num_scheduled_tokens=tokens,
            scheduled_new_reqs=new,
            scheduled_cached_reqs=none,
            kv_connector_metadata=meta,
        )
        self.recorder.planned(made)
        return made

    def output(self, plan: Any, ran: str, told: Any = None, nans: Any = None) -> None:
        """Return what the worker says of a step: which requests ran, one letter each."""
        self.recorder.processed(
            plan,
            SimpleNamespace(
                req_id_to_index=dict.fromkeys(ran, 0),
                kv_connector_output=told,
                num_nans_in_logits=nans,
            ),
        )

    @property
    def rules(self) -> list[str]:
        return [f"{each.rule} {each.place.block}" for each in self.found]


def connector(loaded: set[str], lost: set[int] = frozenset(), worker: Any = None) -> Any:  # type: ignore[assignment]
    """The output of a worker about its connector."""
    return SimpleNamespace(
        finished_recving=loaded, invalid_block_ids=lost, kv_connector_worker_meta=worker
    )


@pytest.mark.parametrize("specs", [(FULL,), (FULL, WINDOW), (FULL, None)])
def test_what_is_computed_and_hit_is_right(specs: tuple[Any, ...]) -> None:
    engine = Engine(*specs)
    engine.admit("a", 9)
    engine.output(engine.plan(a=9), "a")
    shared = tuple(
        ids[:2] if spec is not WINDOW else [0, 0, *ids[2:4]]
        for ids, spec in zip(engine.lists["a"], specs, strict=True)
    )
    b = engine.admit("b", 3, shared)
    engine.output(engine.plan(b=3), "b")
    engine.free(b)
    engine.plan()
    assert engine.rules == []


def test_a_request_taken_out_of_its_step_leaves_keys_and_they_are_hit() -> None:
    engine = Engine()
    a = engine.admit("a", 9)
    engine.free(a)
    engine.plan()
    engine.admit("b", 3, ([1, 2],))
    engine.plan(b=3)
    assert engine.rules == ["KV-MGR-24 1", "KV-HAZ-1 1", "KV-HAZ-1 2"]


def test_whoever_hits_in_the_same_step_answers_for_nothing() -> None:
    engine = Engine()
    engine.admit("a", 9)
    b = engine.admit("b", 3, ([1, 2],))
    engine.free(b)
    engine.plan(a=9)
    assert engine.rules == []


@pytest.mark.parametrize(("ran", "nans"), [("", None), ("a", {"a": 3}), ("a", {"a": 0})])
def test_a_hit_of_what_failed_is_found(ran: str, nans: Any) -> None:
    """The output lacks the request, or counts NaN in its logits; vLLM counts 0 for all others."""
    engine = Engine()
    engine.admit("a", 9)
    engine.output(engine.plan(a=9), ran, nans=nans)
    engine.admit("b", 3, ([1, 2],))
    engine.plan(b=3)
    has_failed = nans != {"a": 0}
    assert engine.rules == ["KV-HAZ-5 1", "KV-HAZ-5 2"] * 2 * has_failed


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("lost", [set(), {2}])
def test_a_load_that_fails_is_nobodys_hit(*, is_whole: bool, waits: bool, lost: set[int]) -> None:
    """Of a connector whose orders can't be read, loads are those that the scheduler announces."""
    engine = Engine(is_whole=is_whole)
    engine.admit("a", 0 if waits else 1, num_external_computed_tokens=8, delay_cache_blocks=waits)
    tokens = {} if waits else {"a": 1}
    engine.output(engine.plan(**tokens), "a", connector({"a"} if waits else set(), lost))
    engine.admit("b", 3, ([1, 2],))
    engine.plan(b=3)
    assert engine.rules == ["KV-HAZ-5 2"] * 2 * len(lost)


class SimpleCPUOffloadMetadata(SimpleNamespace):
    """vLLM's class of that name."""


@pytest.mark.parametrize("flushes", [True, False])
def test_a_block_is_not_written_while_it_is_stored(*, flushes: bool) -> None:
    nothing = {"load_gpu_blocks": [], "store_gpu_blocks": [], "need_flush": False}
    store = {"store_gpu_blocks": [1, 2], "store_cpu_blocks": [7, 8], "store_event": 0}
    engine = Engine(is_whole=True)
    a = engine.admit("a", 9)
    plan = engine.plan(SimpleCPUOffloadMetadata(**nothing | store), a=9)
    engine.output(plan, "a", connector(set()))
    engine.free(a)
    engine.next = 1
    engine.admit("b", 4)
    engine.plan(SimpleCPUOffloadMetadata(**nothing | {"need_flush": flushes}), b=4)
    assert engine.rules == ([] if flushes else ["KV-HAZ-3 1"])
