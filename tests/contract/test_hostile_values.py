"""Values that no caller may pass: each is a typed error and changes nothing (KV-ERR-2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, isfunction, signature
from itertools import product
from typing import Any

import pytest

from kvcheck.rules.bench import Bench
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import chunked, cross, full, mamba, sliding
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.interface import KVCacheManager
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


BAD: Mapping[str, tuple[Any, ...]] = {
    "int": BAD_COUNTS,
    "bool": BAD_FLAGS,
    "Request": BAD_REQUESTS,
    "Sequence[int]": BAD_IDS,
    "KVCacheBlocks | None": BAD_HITS,
}
"""By the type that an argument has in the interface."""
BEYOND = {"group": (9,), "block_id": (20,)}
LEGAL = {"group": 0, "block_id": 1, "num_tokens": 4, "total_computed_tokens": 0}
"""Of arguments that have no default; others may be 1."""


@dataclass(frozen=True)
class EntryPoint:
    """A call with legal arguments, and the bad values that each argument may get."""

    name: str
    legal: dict[str, Any]
    bad: dict[str, tuple[Any, ...]]


def entry_point(name: str) -> EntryPoint:
    """Return a call as the interface declares it."""
    legal, bad = {}, {}
    for parameter in list(signature(getattr(KVCacheManager, name)).parameters.values())[1:]:
        bad[parameter.name] = (*BAD[parameter.annotation], *BEYOND.get(parameter.name, ()))
        if parameter.annotation == "int" and parameter.default is Parameter.empty:
            legal[parameter.name] = LEGAL.get(parameter.name, 1)
    return EntryPoint(name, legal, bad)


ENTRY_POINTS = tuple(
    entry
    for name, call in vars(KVCacheManager).items()
    if isfunction(call) and not name.startswith("_")
    if (entry := entry_point(name)).bad
)
BAD_ARGUMENTS = [
    pytest.param(entry, name, id=f"{entry.name}-{name}")
    for entry in ENTRY_POINTS
    for name in entry.bad
]


def busy_manager(bench: Bench, config: str) -> tuple[Managed, Request, Request]:
    """Return a manager in use, a request with blocks and one without; queues are full."""
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
