"""What holds for every size, window, chunk and way to cut a request into steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcheck.rules.bench import Bench
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import chunked, full, mamba, sliding
from kvspec.request import Request

SIZES = st.integers(1, 5)
STEPS = st.lists(st.integers(1, 12), min_size=1, max_size=12)
CHUNKS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12)
"""Tokens of a step, and how many of them are drafts that are rejected, if so many are drafted."""


@pytest.mark.rule("KV-FULL-2", "KV-MGR-1")
@given(cached=st.lists(st.booleans(), min_size=1, max_size=6), num_tokens=st.integers(1, 30))
@settings(max_examples=60)
def test_the_hit_is_the_longest_run_within_the_limit(
    bench: Bench, cached: list[bool], num_tokens: int
) -> None:
    manager = bench.manager(20)
    first = manager.started("first", range(4 * len(cached)))
    blocks = manager.keep_cached(first, {i for i, kept in enumerate(cached) if kept})
    length = min([*cached, False].index(False), (num_tokens - 1) // 4)
    assert manager.hit(manager.request("r", range(num_tokens))) == blocks[:length]


@pytest.mark.rule("KV-FULL-4", "KV-COORD-2")
@given(num_tokens=st.integers(1, 25), eagle=st.booleans(), ranks=st.sampled_from([1, 2, 3]))
@settings(max_examples=40)
def test_with_one_group_every_run_is_aligned(
    bench: Bench, num_tokens: int, eagle: bool, ranks: int
) -> None:
    manager = bench.manager(20, 2, use_eagle=eagle, dcp_world_size=ranks)
    span = 2 * ranks
    assert manager.config.scheduler_block_size_tokens == span
    manager.started("first", range(24))
    hit = manager.get_computed_blocks(manager.request("r", range(num_tokens)))
    run = (num_tokens - 1) // span
    assert hit.hit_length_tokens == (max(run - 1, 0) if eagle else run) * span


def unseen(num_blocks: int, block_size: int, computed: int, sees: Callable[..., bool]) -> list[int]:
    """The blocks of which no token is seen by token `computed` or a later one."""
    later = range(computed, num_blocks * block_size + 1)
    return [
        index
        for index in range(num_blocks)
        if not any(
            sees(at, token)
            for token in range(index * block_size, (index + 1) * block_size)
            for at in later
        )
    ]


@pytest.mark.rule("KV-SW-1", "KV-CHUNK-1")
@given(size=SIZES, reach=st.integers(1, 14), num_tokens=st.integers(1, 24), data=st.data())
def test_exactly_the_blocks_that_no_later_token_sees_turn_null(
    bench: Bench, size: int, reach: int, num_tokens: int, data: st.DataObject
) -> None:
    computed = data.draw(st.integers(0, num_tokens))
    chunk = size * (1 + reach % 4)
    for spec, sees in (
        (sliding(size, reach), lambda at, token: at - reach < token <= at),
        (chunked(size, chunk), lambda at, token: token // chunk == at // chunk),
    ):
        manager = bench.manager(30, spec, enable_caching=False)
        request = manager.started("r", range(num_tokens))
        manager.remove_skipped_blocks(request, computed)
        num_blocks = len(manager.blocks(request))
        assert manager.null_positions(request) == unseen(num_blocks, size, computed, sees)


@pytest.mark.rule("KV-SW-7", "KV-CHUNK-5")
@given(size=SIZES, reach=st.integers(1, 12), max_batched=st.integers(1, 12), steps=STEPS)
def test_a_request_never_holds_more_than_admission_counts(
    bench: Bench, size: int, reach: int, max_batched: int, steps: list[int]
) -> None:
    for spec in (sliding(size, reach), chunked(size, size * (1 + reach % 4))):
        manager = bench.manager(200, spec, max_num_batched_tokens=max_batched)
        request = manager.request("r", range(200))
        cap = manager.need(request, 200, capped=True)
        for step in steps:
            manager.run(request, min(step, max_batched))
            assert sum(1 for block in manager.blocks(request) if block) <= cap


@pytest.mark.rule("KV-MAMBA-1", "KV-MAMBA-5")
@given(size=SIZES, drafted=st.integers(0, 3), steps=CHUNKS, mode=st.sampled_from(["none", "all"]))
def test_the_state_that_a_step_reads_is_never_null(
    bench: Bench, size: int, drafted: int, steps: list[tuple[int, int]], mode: str
) -> None:
    manager = bench.manager(200, mamba(size, mode, speculative=drafted), enable_caching=False)
    request = manager.request("r", range(200))
    for chunk, rejected in steps:
        computed = request.num_computed_tokens
        manager.run(request, chunk, min(rejected, drafted, chunk - 1))
        assert computed == 0 or manager.blocks(request)[(computed - 1) // size] != 0


@pytest.mark.rule("KV-MAMBA-11")
@given(size=SIZES, drafted=st.integers(0, 3), steps=CHUNKS)
def test_a_running_request_holds_a_bounded_number_of_states(
    bench: Bench, size: int, drafted: int, steps: list[tuple[int, int]]
) -> None:
    manager = bench.manager(300, mamba(size, "align", speculative=drafted), enable_caching=False)
    request = manager.request("r", range(200))
    for chunk, rejected in steps:
        states = set(manager.blocks(request)[-1 - drafted :])
        skipped = max(0, max(0, request.num_computed_tokens - drafted) - 1) // size
        manager.run(request, chunk, min(rejected, drafted, chunk - 1))
        blocks = manager.blocks(request)
        assert not any(blocks[:skipped])
        assert states <= set(blocks)
        assert all(blocks[-1 - drafted :])


@pytest.mark.rule("KV-MAMBA-8", "KV-MGR-7")
@given(
    size=st.integers(1, 4),
    drafted=st.integers(0, 3),
    hit_blocks=st.integers(0, 3),
    external=st.integers(0, 12),
    new=st.integers(0, 8),
    free_hit=st.booleans(),
)
def test_the_need_is_exact_whatever_comes_from_outside(
    bench: Bench, size: int, drafted: int, hit_blocks: int, external: int, new: int, free_hit: bool
) -> None:
    new = max(new, 1 - external)
    hit_tokens = hit_blocks * size

    def begin() -> tuple[Managed, Request]:
        """A state is cached, free or in use, and the request comes in the next step."""
        manager = bench.manager(60, mamba(size, "align", speculative=drafted))
        if hit_blocks:
            first = manager.started("first", range(hit_tokens))
            if free_hit:
                manager.free(first)
        manager.new_step_starts()
        return manager, manager.request("second", range(hit_tokens + external + new + 1))

    manager, request = begin()
    before = manager.num_free_blocks
    load = {"num_external_computed_tokens": external}
    assert manager.admit(request, new, **load) is not None
    assert request.num_computed_tokens == hit_tokens + new
    used = before - manager.num_free_blocks
    for short_of in range(2 if used else 1):
        manager, request = begin()
        state = manager.visible()
        reserved = before - used + short_of
        granted = manager.admit(request, new, reserved_blocks=reserved, **load)
        assert (granted is None) == (manager.visible() == state) == bool(short_of)


@pytest.mark.rule("KV-RET-1")
@given(
    block_size=st.sampled_from([1, 2, 4]),
    full_size=st.sampled_from([4, 8, 12]),
    window=st.integers(1, 40),
    num_tokens=st.integers(1, 50),
    eagle=st.booleans(),
)
@settings(max_examples=200)
def test_what_some_aligned_hit_could_use_is_cached_and_nothing_else(
    bench: Bench, block_size: int, full_size: int, window: int, num_tokens: int, eagle: bool
) -> None:
    specs = (full(full_size), sliding(block_size, window))
    manager = bench.manager(80, *specs, eagle_groups=[1] if eagle else [])
    cached = manager.cached_positions(manager.started("r", range(num_tokens)), 1)
    last = num_tokens // full_size * full_size
    useful: set[int] = set()
    for boundary in range(full_size, last + 1, full_size):
        # Token `boundary` is computed next and sees the tokens since boundary - window + 1.
        read = range(max(0, boundary - window + 1), boundary)
        useful |= {token // block_size for token in read}
        if eagle:
            useful.add(boundary // block_size)
    limit = min(num_tokens, last + block_size) if eagle and last else last
    useful = {index for index in useful if (index + 1) * block_size <= limit}
    need = -(-(window - 1) // block_size) + eagle
    if need >= full_size // block_size:
        assert set(cached) == set(range(limit // block_size))
        assert useful <= set(cached)
    else:
        assert set(cached) == useful
