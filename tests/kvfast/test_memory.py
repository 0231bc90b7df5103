"""The core: memory per block, sizes of objects, corners, and what was not made."""

from __future__ import annotations

import ast
import gc
import mmap
import tracemalloc
from collections.abc import Callable
from enum import IntEnum
from random import Random
from typing import Any

import pytest

from kvfast._core.arrays import LARGE_BYTES, grown, zeroed
from kvfast._core.hashing import Hasher
from kvfast._core.key_map import KeyMap
from kvfast._core.pool import BlockPool
from kvfast._core.request import make_request
from kvfast._implementation import FastImplementation
from kvspec.batched import StepPlan
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError
from kvspec.following import FollowedInput
from kvspec.interface import Implementation
from kvspec.request import RequestInput
from kvspec.sequential import batched_of
from tests.contract.builders import make_config
from tests.lockstep.builds import fast
from tests.source import ROOT

__all__ = ["fast"]  # the fixture

PROMPT_TOKENS = 16_000
BLOCK_TOKENS = 16


def growth(implementation: Implementation, num_requests: int) -> tuple[int, int]:
    """Return the objects and traced bytes added by prompts that are allocated, cached, freed."""
    config = make_config(20_001, BLOCK_TOKENS, max_model_len_tokens=PROMPT_TOKENS)
    manager = implementation.create(config, check_invariants=False)
    inputs = [RequestInput(f"r{i}", range(i, i + PROMPT_TOKENS)) for i in range(num_requests)]
    requests = [implementation.make_request(manager, given) for given in inputs]
    gc.collect()
    tracemalloc.start()
    try:
        objects = len(gc.get_objects())
        for request in requests:
            assert manager.allocate_slots(request, PROMPT_TOKENS) is not None
        manager.take_new_block_ids()
        for request in requests:
            manager.free(request)
        gc.collect()
        return len(gc.get_objects()) - objects, tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_blocks_in_use_add_no_python_objects(fast: Implementation) -> None:
    few, few_bytes = growth(fast, 1)
    many, many_bytes = growth(fast, 10)
    blocks = 9 * PROMPT_TOKENS // BLOCK_TOKENS
    assert many - few < 10 * 9  # what a request may leave
    # Flat arrays of 4 and 8 bytes a block may have doubled; an object and its pointer take more.
    assert many_bytes - few_bytes < 24 * blocks


class KeepsAnObject(FastImplementation):
    def create(self, config: ManagerConfig, **options: Any) -> Any:
        manager: Any = super().create(config, **options)
        allocate, kept = manager.allocate_slots, list[list[int]]()

        class Manager:
            def __getattr__(self, name: str) -> Any:
                return getattr(manager, name)

            def allocate_slots(self, *arguments: Any) -> Any:
                blocks = allocate(*arguments)
                kept.extend([block] for block in blocks.groups[0])
                return blocks

        return Manager()

    def make_request(self, manager: Any, request: RequestInput) -> Any:
        inner = super().create(manager.config, check_invariants=False)
        return super().make_request(inner, request)


def test_an_object_per_block_is_found() -> None:
    twin = KeepsAnObject("uncompiled")
    with pytest.raises(AssertionError):
        test_blocks_in_use_add_no_python_objects(twin)


@pytest.mark.parametrize("num_blocks", [1024, 2**20, 2**20 + 1, 3 * 2**20, 4_000_000])
def test_a_block_costs_at_most_120_bytes(num_blocks: int) -> None:
    """Record and slots; a list needs up to 8 more, as places are powers of 2."""
    pool = BlockPool(
        num_blocks, 4, events=None, residency=None, unhashed_to_front=True, removed_per_copy=False
    )
    total = pool.keys.facts.nbytes + pool.keys.slots.nbytes
    assert total / num_blocks <= 120 - 8


def test_large_uncompiled_arrays_are_zeros_where_no_map_is_private(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(mmap, "MAP_PRIVATE", raising=False)
    length = LARGE_BYTES // 4 + 1
    zeros = zeroed("i", length)
    assert (len(zeros), zeros.format, any(zeros)) == (length, "i", False)
    zeros[0], zeros[length - 1] = 7, 9
    more = grown("i", zeros, length + 2)
    assert (more[0], more[length - 1], more[length], more[length + 1]) == (7, 9, 0, 0)


def test_eight_blocks_in_a_row_share_a_cache_line() -> None:
    keys = KeyMap(1 << 12, 4)
    request = make_request(RequestInput("r", range(16)), Hasher("sha256_cbor", "0"), 1)
    homes = [keys.home_of(request, number, 0) & keys.slot_mask for number in range(16)]
    assert len({home // 8 for home in homes[:8]}) == 1
    assert len(set(homes[:8])) == 8
    assert homes[8] // 8 != homes[0] // 8


def test_keys_with_one_home_are_found_until_they_go(fast: FastImplementation) -> None:
    """The last of 400 keys lies more steps from its home than a slot can count."""
    config = make_config(801, hash_function="given_32")
    manager = fast.create(config, check_invariants=False)
    hashes = [bytes(8) + number.to_bytes(24) for number in range(400)]
    named = enumerate(hashes)
    asking = [
        fast.make_followed(manager, FollowedInput(f"{n}", 5, 5, (each,))) for n, each in named
    ]
    for request in asking:
        manager.allocate_slots(request, 5)
    held = [manager.get_blocks(request).groups[0][0] for request in asking]
    for request in asking:
        manager.free(request)
    gone = set[int]()
    for number in Random(1).sample(range(400), 300):
        manager.evict_blocks([held[number]])
        gone.add(number)
        if len(gone) % 50 == 0:
            hits = [manager.get_computed_blocks(each).hit_length_tokens for each in asking]
            assert hits == [4 * (place not in gone) for place in range(400)]


MAX_LINES = 400


def classes() -> dict[str, ast.ClassDef]:
    return {
        node.name: node
        for path in sorted((ROOT / "kvfast" / "_core").glob("*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef)
    }


def lines_of(name: str, known: dict[str, ast.ClassDef]) -> int:
    if name not in known:
        return 0
    node = known[name]
    bases = (ast.unparse(base).partition("[")[0] for base in node.bases)
    return (node.end_lineno or 0) - node.lineno + 1 + sum(lines_of(base, known) for base in bases)


def test_an_object_is_at_most_400_lines() -> None:
    known = classes()
    assert len(known) > 20
    assert [name for name in known if lines_of(name, known) > MAX_LINES] == []


def test_bases_count() -> None:
    module = ast.parse("class A:\n    a = 1\n\nclass B(A):\n    b = 1\n    c = 1\n")
    known = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    assert lines_of("B", known) == 5


class Number(IntEnum):
    ZERO = 0
    ONE = 1


@pytest.mark.rule("KV-BATCH-3")
def test_numbers_of_a_subclass_of_int_are_handles_and_counts(fast: Implementation) -> None:
    manager = fast.create(make_config(40))
    batched = batched_of(fast, manager)
    for name in ("a", "b"):
        batched.register(fast.make_request(manager, RequestInput(name, range(6))))
    batched.step(StepPlan(new=[Number.ZERO, Number.ONE], max_new_tokens=[5, Number.ONE]))
    granted = batched.decode([Number.ONE, Number.ZERO], [2, Number.ONE])
    assert list(granted.num_scheduled_tokens) == [2, 1]


def made(implementation: Implementation) -> tuple[Any, Any, Any]:
    manager = implementation.create(make_config(40), check_invariants=False)
    request = implementation.make_request(manager, RequestInput("r", range(9)))
    return manager, implementation.batched(manager), request  # type: ignore[attr-defined]  # kvfast


def bare_of(thing: Any) -> Any:
    kind: Any = type(thing)
    return kind.__new__(kind)


@pytest.mark.rule("KV-ERR-2")
def test_what_was_not_made_is_refused(fast: Implementation) -> None:
    manager, batch, request = made(fast)
    bare, bare_batch = bare_of(manager), bare_of(batch)
    calls: tuple[Callable[[], object], ...] = (
        lambda: bare.num_free_blocks,
        lambda: bare.usage,
        lambda: bare.none_hash,
        lambda: bare.get_computed_blocks(request),
        lambda: bare.allocate_slots(request, 9),
        lambda: bare.evict_blocks([1]),
        lambda: bare.clone(),
        lambda: bare.snapshot(),
        lambda: bare.columns(),
        lambda: fast.append_tokens(bare, request, [1]),
        lambda: bare_batch.register(request),
        lambda: bare_batch.decode([0]),
        lambda: bare_batch.num_pending_deltas(),
        lambda: type(batch)(bare, fast.capabilities, bare).register(request),
    )
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call()


@pytest.mark.rule("KV-ERR-2")
def test_nothing_is_made_twice(fast: Implementation) -> None:
    manager, batch, request = made(fast)
    manager.allocate_slots(request, 9)
    before = manager.snapshot()
    calls: tuple[Callable[[], object], ...] = (
        lambda: manager.__init__(manager.plan, None),
        lambda: batch.__init__(manager, fast.capabilities, manager),
        lambda: request.__init__(request.input, manager.hasher, 4),
        lambda: manager.hasher.__init__("sha256", None),
        lambda: manager.__init__(manager.plan, None, manager.columns()),
    )
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call()
    assert manager.snapshot() == before
