"""Arguments that no caller may pass to a manager: each is a typed error and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import Parameter, isfunction, signature
from itertools import product
from typing import Any

import pytest

from kvcheck.rules.bench import Bench
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import chunked, cross, full, mamba, sliding
from kvspec.errors import InvalidArgumentError, InvariantViolation, KVSpecError
from kvspec.interface import KVCacheManager
from kvspec.request import Request, RequestInput
from tests.contract.hostile import BAD, NO_COUNT, NO_INT, Growing, Liar

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

ENDLESS = (range(2**70), range(-(2**70), 0))
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


@pytest.mark.rule("KV-ERR-2", "KV-ERR-3", "KV-ERR-6", "KV-MGR-8")
@pytest.mark.parametrize(("entry", "name"), BAD_ARGUMENTS)
def test_a_bad_argument_is_refused(bench: Bench, entry: EntryPoint, name: str) -> None:
    more = {"num_new_computed_tokens": 4} if name == "new_computed_blocks" else {}
    for config in CONFIGS:
        manager, *requests = busy_manager(bench, config)
        bare = type(requests[0]).__new__(type(requests[0]))
        call = getattr(manager, entry.name)
        with unchanged(manager):
            for request, value in product(requests, entry.bad[name]):
                its = {"request": request} if "request" in entry.bad else {}
                refused(call, **{**entry.legal, **its, **more, name: value})
            if name == "request":
                refused(call, **{**entry.legal, name: bare})


@pytest.mark.rule("KV-ERR-2", "KV-REQ-3")
@pytest.mark.parametrize(
    ("member", "values"),
    [
        ("num_computed_tokens", (*NO_COUNT, 2**40)),
        ("num_preemptions", NO_COUNT),
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


@pytest.mark.rule("KV-REQ-1", "KV-ERR-2")
def test_bad_tokens_append_nothing(bench: Bench) -> None:
    manager, request, _ = busy_manager(bench, "full")
    hashes = list(request.block_hashes)
    with unchanged(manager):
        for bad in (None, 7, "1", *([1, one] for one in (*NO_INT, -1)), *ENDLESS):
            refused(manager.append, request, bad)
    assert (list(request.token_ids), list(request.block_hashes)) == ([*range(10)], hashes)
    for bad in ENDLESS:
        with pytest.raises(InvalidArgumentError):
            manager.make_request(RequestInput("more", bad))


def test_what_a_liar_stores_is_used(bench: Bench) -> None:
    manager = bench.manager(20)
    running, waiting = (manager.request(name, range(10)) for name in ("running", "waiting"))
    manager.admit(running)
    assert manager.get_computed_blocks(waiting).hit_length_tokens == 8
    manager.evict_blocks([Liar(1)])
    assert manager.get_computed_blocks(waiting).hit_length_tokens == 0
    running.num_computed_tokens = Liar(10)
    assert manager.allocate_slots(running, Liar(1), reserved_blocks=Liar(0)) is not None
    request = manager.make_request(RequestInput("emptied", Growing(0, 0)))
    assert (request.num_tokens, list(request.block_hashes)) == (0, [])
    manager.append(request, Growing(5, 100))
    same = manager.request("same", [5] * 100)
    assert (request.num_tokens, list(request.block_hashes)) == (100, list(same.block_hashes))
