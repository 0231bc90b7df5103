"""Additions to the shadow of vLLM 0.33 since 0.24, without vLLM: steps, names, preconditions."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvcheck.adapters.vllm.events import Names
from kvcheck.adapters.vllm.preconditions import Asked, broken, misaligned
from kvcheck.adapters.vllm.shadowed import first_apart
from kvcheck.adapters.vllm.steps import Steps
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored

MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text("utf-8"))


class Scheduler:
    """As much of vLLM's as `Steps` looks at; each step is 4 tokens of one request."""

    def __init__(self, *, waits: bool = False) -> None:
        self.said: list[str] = []
        self.steps = Steps(lambda call, said: self.said.append(f"{call}: {said}"), waits)
        self.request = SimpleNamespace(
            request_id="a",
            num_tokens=9,
            num_computed_tokens=0,
            num_in_flight_tokens=0,
            num_preemptions=0,
            resumable=False,
            is_finished=lambda: False,
        )
        self.retained: tuple[int, ...] = ()

    def begin(self, *pairs: tuple[int, int]) -> Any:
        """Run a step up to its plan, and return that."""
        self.steps.starts()
        self.steps.allocates("allocate_slots of a", self.request)
        self.retained = tuple(block for pair in pairs for block in pair)
        self.steps.copied(pairs, self.retained)
        copies = [SimpleNamespace(src_block_id=one, dst_block_id=other) for one, other in pairs]
        return SimpleNamespace(num_scheduled_tokens={"a": 4}, kv_cache_block_copies=copies)

    def end(self, plan: Any, *, counted: int = 4, copies_wait: bool = False) -> None:
        self.request.num_in_flight_tokens += counted
        self.request.num_computed_tokens += counted
        self.steps.planned(plan, {"a": self.request}, copies_wait=copies_wait)

    def update(self, plan: Any, *, counted: int = 4, computed: int = 0) -> None:
        stale = self.steps.outputs(plan)
        self.request.num_in_flight_tokens -= counted
        self.request.num_computed_tokens += computed
        self.steps.processed(plan, stale)


def test_a_scheduler_that_keeps_its_promises_is_not_reported() -> None:
    for waits in (False, True):
        made = Scheduler(waits=waits)
        first = made.begin((1, 2))
        if not waits:
            made.steps.returns(made.retained)
        made.end(first)
        second = made.begin()
        made.end(second)
        if waits:
            made.steps.num_outputs += 1  # the output is there before the references go back
            made.steps.returns((1, 2))
            made.steps.num_outputs -= 1
        made.update(first)
        made.request.num_preemptions += 1
        made.request.num_computed_tokens = 0
        made.update(second)
        assert made.said == []


@pytest.mark.parametrize(("mistake", "said"), MISTAKES["steps"])
def test_a_scheduler_that_does_not_is_found(mistake: str, said: str) -> None:
    made = Scheduler()
    exec(mistake, {"made": made})  # a line of the table
    assert len(made.said) == 1
    assert said in made.said[0]


PREFILL = Asked(num_tokens=20, num_prompt_tokens=20, num_computed_tokens=0, num_new_tokens=10)
CHUNK = replace(PREFILL, num_computed_tokens=4, num_new_tokens=6)
LOAD = Asked(20, 20, 0, 0, 0, 8, num_lookahead_tokens=2, delays_caching=True)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (broken(replace(PREFILL, num_external_computed_tokens=4), 8), None),
        (broken(Asked(20, 20, 0, 4, 8, 4), 8), None),
        (broken(Asked(20, 20, 0, 4, 4, 4), 8), "a load behind a hit of 4 tokens, no multiple of 8"),
        (broken(LOAD, 8), "2 look-ahead slots for a load that is waited for"),
        (broken(replace(LOAD, delays_caching=False), 8), None),
        (broken(CHUNK, 8, num_read=10), None),
        (
            broken(CHUNK, 8, num_read=11),
            "a chunk that leaves 10 tokens, of which a drafter reads 11",
        ),
        (broken(replace(PREFILL, num_new_tokens=20), 8, num_read=3), None),
        (misaligned(PREFILL, 5, (), later=True), None),
        (
            misaligned(PREFILL, 8, (), later=True),
            "a chunk to token 10, inside a block of 8, 16 are",
        ),
        (misaligned(PREFILL, 8, (11,), later=True), "a chunk to token 10, inside a block of 8"),
        (misaligned(replace(PREFILL, num_new_tokens=20), 8, (), later=True), None),
        (misaligned(CHUNK, 8, (10,), later=False), None),
        (misaligned(CHUNK, 8, (10,), later=True), "a chunk from token 4 to 10, past the end of a"),
        (misaligned(CHUNK, 4, (10,), later=True), None),
        (misaligned(Asked(20, 4, 19, num_new_tokens=6), 8, (), later=True), None),
    ],
)
def test_preconditions_are_found_broken(found: Iterator[str], said: str | None) -> None:
    texts = list(found)
    assert len(texts) == (said is not None)
    assert all(text.startswith(str(said)) for text in texts)


def stored(block_hash: bytes | int, parent: bytes | int | None) -> BlockStored:
    at = ("GPU", None, 0, "full_attention", None)
    return BlockStored((block_hash,), parent, (1, 2), 2, None, None, *at)


def test_events_have_the_names_of_the_follower() -> None:
    names = Names()
    theirs, ours = [b"\x01" * 32, b"\x02" * 32], [b"a", b"b"]
    names.add(theirs[:1], ours, "r", is_new=True)
    names.add(theirs, ours, "r", is_new=False)
    low = int.from_bytes(theirs[0][-8:], "big")
    assert names.theirs(stored(theirs[1], theirs[0])) == stored(b"b", b"a")
    assert names.theirs(stored(theirs[1], low)) == stored(b"b", b"a")
    assert names.theirs(stored(b"of nobody", None)) == stored(b"of nobody", None)
    assert names.theirs(BlockRemoved((low,), "GPU", 1)) == BlockRemoved((b"a",), "GPU", 1)
    assert names.theirs(AllBlocksCleared()) == AllBlocksCleared()
    # A session continues: vLLM keeps the hash of a block whose look-ahead has changed.
    names.add(theirs, [b"a", b"c"], "r", is_new=True)
    assert names.own(stored(b"d", b"c")) == stored(b"d", b"b")
    names.add([theirs[0], b"\x03" * 32], [b"a", b"c"], "r", is_new=True)  # hashed again
    assert names.theirs(stored(b"d", b"\x03" * 32)) == stored(b"d", b"b")


def test_the_first_event_that_differs_is_said() -> None:
    assert first_apart((1, 2), (1, 3)) == "vLLM 2, shadow 3, number 1 of 2 and 2"
    assert first_apart((1, 2), (1,)) == "vLLM 2, shadow None, number 1 of 2 and 1"
