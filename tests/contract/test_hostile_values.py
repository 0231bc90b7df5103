"""Values that no caller may pass: each is a typed error and changes nothing (KV-ERR-2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcheck.rules.bench import Bench
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import chunked, cross, full, mamba, sliding
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.request import Request

WATCHED: dict[str, Any] = {
    "enable_events": True,
    "log_stats": True,
    "residency_sample_rate": 1.0,
    "clock": lambda: 0,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {},
    "without_caching": {"enable_caching": False},
    "full_and_sliding": {"specs": [full(4), sliding(8, 6)]},
    "chunked": {"specs": [chunked(4, 8)]},
    "mamba": {"specs": [full(4), mamba(4)]},
    "aligned_mamba": {"specs": [full(4), mamba(4, "align", speculative=1)]},
    "cross": {"specs": [full(4), cross(4)], "enable_caching": False},
}

BAD_COUNTS: tuple[Any, ...] = (True, False, 1.0, float("nan"), -1, 2**63, None, "1", b"1", [], (1,))
BAD_FLAGS: tuple[Any, ...] = (None, 0, 1, 1.0, "yes", [])


class Stranger:
    """Something else, with a name that is the same in every process (tests are called by it)."""

    def __repr__(self) -> str:
        return "stranger"


BAD_REQUESTS: tuple[Any, ...] = (None, "r", 7, [], Stranger())
BAD_IDS: tuple[Any, ...] = (
    None,
    7,
    True,
    1.5,
    [None],
    [True],
    [1.0],
    ["1"],
    [-1],
    [2**63],
    "1",
    [[1]],
    {1: 2},
    {1, 2},
)
BAD_HITS: tuple[Any, ...] = (
    0,
    False,
    "",
    [],
    (),
    [[1]],
    "hits",
    KVCacheBlocks(()),
    KVCacheBlocks(((),) * 5),
    KVCacheBlocks((None,)),  # type: ignore[arg-type]  # the point
    KVCacheBlocks((7, 8)),  # type: ignore[arg-type]  # the point
    KVCacheBlocks((("1",), ("1",))),  # type: ignore[arg-type]  # the point
)


@dataclass(frozen=True)
class EntryPoint:
    """A call with legal arguments, and the bad values that each argument may get."""

    name: str
    legal: dict[str, Any]
    bad: dict[str, tuple[Any, ...]]


ENTRY_POINTS = (
    EntryPoint("get_computed_blocks", {}, {"request": BAD_REQUESTS}),
    EntryPoint(
        "allocate_slots",
        {"num_new_tokens": 1},
        {
            "request": BAD_REQUESTS,
            "num_new_tokens": BAD_COUNTS,
            "num_new_computed_tokens": BAD_COUNTS,
            "new_computed_blocks": BAD_HITS,
            "num_lookahead_tokens": BAD_COUNTS,
            "num_external_computed_tokens": BAD_COUNTS,
            "delay_cache_blocks": BAD_FLAGS,
            "num_encoder_tokens": BAD_COUNTS,
            "full_sequence_must_fit": BAD_FLAGS,
            "reserved_blocks": BAD_COUNTS,
            "has_scheduled_reqs": BAD_FLAGS,
        },
    ),
    EntryPoint(
        "cache_blocks",
        {"num_computed_tokens": 1},
        {"request": BAD_REQUESTS, "num_computed_tokens": BAD_COUNTS},
    ),
    EntryPoint(
        "withdraw",
        {"num_computed_tokens": 1},
        {"request": BAD_REQUESTS, "num_computed_tokens": BAD_COUNTS},
    ),
    EntryPoint(
        "cache_partial_block",
        {"group": 0, "num_tokens": 4},
        {"request": BAD_REQUESTS, "group": (*BAD_COUNTS, 9), "num_tokens": BAD_COUNTS},
    ),
    EntryPoint(
        "find_longest_cache_hit_per_group",
        {"max_hit_length_tokens": 4},
        {"request": BAD_REQUESTS, "max_hit_length_tokens": BAD_COUNTS},
    ),
    EntryPoint("free", {}, {"request": BAD_REQUESTS}),
    EntryPoint("pop_blocks_for_free", {}, {"request": BAD_REQUESTS}),
    EntryPoint("free_blocks", {}, {"block_ids": BAD_IDS}),
    EntryPoint("hold_blocks", {}, {"block_ids": BAD_IDS}),
    EntryPoint("get_block", {"block_id": 1}, {"block_id": (*BAD_COUNTS, 20, b"1", [1])}),
    EntryPoint("evict_blocks", {}, {"block_ids": BAD_IDS}),
    EntryPoint(
        "remove_skipped_blocks",
        {"total_computed_tokens": 1},
        {"request": BAD_REQUESTS, "total_computed_tokens": BAD_COUNTS},
    ),
    EntryPoint("get_num_common_prefix_blocks", {}, {"request": BAD_REQUESTS}),
    EntryPoint("get_blocks", {}, {"request": BAD_REQUESTS}),
    EntryPoint("get_unhashed_block_ids", {}, {"request": BAD_REQUESTS}),
    EntryPoint(
        "get_num_blocks_to_allocate",
        {"num_tokens": 1, "total_computed_tokens": 0, "num_tokens_main_model": 1},
        {
            "request": BAD_REQUESTS,
            "num_tokens": BAD_COUNTS,
            "total_computed_tokens": BAD_COUNTS,
            "num_tokens_main_model": BAD_COUNTS,
            "num_encoder_tokens": BAD_COUNTS,
            "apply_admission_cap": BAD_FLAGS,
        },
    ),
)

BAD_ARGUMENTS = [
    pytest.param(entry, name, id=f"{entry.name}-{name}")
    for entry in ENTRY_POINTS
    for name in entry.bad
]


def busy_manager(bench: Bench, config: str) -> tuple[Managed, Request, Request]:
    """A manager in use, a request that holds blocks, and one that does not; queues are full."""
    manager = bench.manager(20, **CONFIGS[config], **WATCHED)
    running = manager.request("running", range(10))
    manager.admit(running)
    manager.evict_blocks([1])
    return manager, running, manager.request("waiting", range(10))


@contextmanager
def unchanged(manager: Managed) -> Iterator[None]:
    clone = manager.clone()  # taking the queues would empty them
    yield
    assert manager.everything() == clone.everything()


def refused(call: Callable[..., object], *args: Any, **arguments: Any) -> None:
    try:
        answer = call(*args, **arguments)
    except InvariantViolation:
        raise
    except KVSpecError:
        return
    pytest.fail(f"answered {answer!r} to {args} {arguments}")


@pytest.mark.rule("KV-ERR-2", "KV-ERR-3")
@pytest.mark.parametrize(("entry", "name"), BAD_ARGUMENTS)
def test_a_bad_argument_is_refused(bench: Bench, entry: EntryPoint, name: str) -> None:
    for config in CONFIGS:
        manager, *requests = busy_manager(bench, config)
        call = getattr(manager, entry.name)
        with unchanged(manager):
            for request, value in product(requests, entry.bad[name]):
                its = {"request": request} if "request" in entry.bad else {}
                refused(call, **{**entry.legal, **its, name: value})


@pytest.mark.rule("KV-ERR-2", "KV-REQ-3")
@pytest.mark.parametrize(
    ("member", "values"),
    [
        ("num_computed_tokens", (*BAD_COUNTS, 2**40)),
        ("num_preemptions", BAD_COUNTS),
        ("status", (None, 1, "waiting", "", [])),
    ],
)
def test_what_the_scheduler_says_is_checked(
    bench: Bench, member: str, values: tuple[Any, ...]
) -> None:
    for config in CONFIGS:
        manager, *requests = busy_manager(bench, config)
        with unchanged(manager):
            for request, value in product(requests, values):
                setattr(request, member, value)
                refused(manager.allocate_slots, request, 1)


@pytest.mark.parametrize("bad", [None, 7, [1, None], [True], [-1], [2**63], ["1"], "1", [1.0]])
def test_bad_tokens_append_nothing(bench: Bench, bad: Any) -> None:
    manager, request, _ = busy_manager(bench, "full")
    hashes = list(request.block_hashes)
    with unchanged(manager):
        refused(manager.append, request, bad)
    assert (list(request.token_ids), list(request.block_hashes)) == ([*range(10)], hashes)


ANY_VALUE = st.one_of(
    st.integers(-2, 25),
    st.sampled_from([2**31, 2**63 - 1, 2**63]),
    st.none() | st.booleans() | st.floats() | st.text(max_size=2),
    st.lists(st.integers(-1, 21), max_size=3),
    st.lists(st.lists(st.integers(0, 20), max_size=3), max_size=3).map(
        lambda lists: KVCacheBlocks(tuple(lists))
    ),
)


@st.composite
def any_calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    entry = draw(st.sampled_from(ENTRY_POINTS))
    names = sorted(set(entry.bad) - {"request"})
    chosen = draw(st.lists(st.sampled_from(names), max_size=3, unique=True)) if names else []
    arguments = {name: draw(ANY_VALUE) for name in chosen}
    if "block_ids" in entry.bad:
        arguments.setdefault("block_ids", [])
    return entry.name, {**entry.legal, **arguments}


@pytest.mark.rule("KV-ERR-2")
@pytest.mark.parametrize("config", CONFIGS)
@given(calls=st.lists(any_calls(), min_size=5, max_size=15), held=st.booleans())
@settings(max_examples=25)
def test_no_call_ends_in_another_error(
    bench: Bench, config: str, calls: list[tuple[str, dict[str, Any]]], held: bool
) -> None:
    manager, running, waiting = busy_manager(bench, config)
    with_request = {entry.name for entry in ENTRY_POINTS if "request" in entry.bad}
    for name, arguments in calls:
        if name in with_request:
            arguments["request"] = running if held else waiting
        before = manager.everything()
        try:
            getattr(manager, name)(**arguments)
        except InvariantViolation:
            raise
        except KVSpecError:
            after = manager.everything()
            assert (after.snapshot, after.events, after.samples) == (before.snapshot, (), ())
