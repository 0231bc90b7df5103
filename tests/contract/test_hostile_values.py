"""Arguments and objects that no caller may pass: each is a typed error and changes nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from inspect import Parameter, isfunction, signature
from itertools import product
from typing import Any

import numpy as np
import pytest

from kvcheck.rules.bench import Bench
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import chunked, cross, full, mamba, sliding
from kvspec.audit import AuditedManager
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, InvariantViolation, KVSpecError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import LoRA, MultimodalItem, Request, RequestInput, RequestStatus
from tests.contract.builders import (
    MakeManager,
    MakeRequest,
    admit,
    make_config,
    new_request,
)
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


def refused_of_hostile_objects(
    manager: KVCacheManager, call: Callable[..., Any], *args: Any, **how: Any
) -> KVSpecError:
    before = manager.snapshot()
    with pytest.raises(KVSpecError) as caught:
        call(*args, **how)
    assert not isinstance(caught.value, InvariantViolation)
    assert manager.snapshot() == before
    return caught.value


class Text(str):
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


@pytest.mark.rule("KV-ERR-2", "KV-REQ-1")
def test_a_text_is_what_it_stores(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    manager = make_manager(30, 4)
    for kind in (Text, np.str_):
        item = MultimodalItem(kind("image"), 0, 2)
        content = {"cache_salt": kind("salt"), "lora": LoRA(kind("a"), 1), "multimodal": (item,)}
        request = make_request(manager, kind("name"), range(9), **content)
        assert type(request.request_id) is str
        plain = {
            "cache_salt": "salt",
            "lora": LoRA("a", 1),
            "multimodal": (MultimodalItem("image", 0, 2),),
        }
        same = make_request(manager, "name", range(9), **plain)
        assert request.block_hashes == same.block_hashes
        assert manager.allocate_slots(request, 9) is not None
        assert manager.get_blocks(same).to_lists() == manager.get_blocks(request).to_lists()
        manager.free(same)
    with pytest.raises(KVSpecError):
        make_config(20, hash_function=Text("md5"))
    assert implementation.create(make_config(20, hash_function=Text("sha256_cbor"))) is not None
    request.status = Text("unknown")  # type: ignore[assignment]  # the point of the test
    refused_of_hostile_objects(manager, manager.allocate_slots, request, 1)
    request.status = RequestStatus.RUNNING
    assert manager.allocate_slots(request, 9) is not None


def test_values_keep_what_was_checked(implementation: Implementation) -> None:
    for config in (
        make_config(Liar(20), Liar(4), max_model_len_tokens=Liar(64)),
        make_config(20, 4, max_model_len_tokens=64),
    ):
        manager = implementation.create(config)
        request = new_request(implementation, manager, "r", range(40))
        assert admit(manager, request, 33) == KVCacheBlocks(([*range(1, 10)],))
    for block_size in (0, -4, 2**53):
        with pytest.raises(InvalidArgumentError):
            make_config(20, Liar(block_size))
    assert type(MultimodalItem("image", Liar(3), Liar(2)).offset) is int


@pytest.mark.rule("KV-MGR-20", "KV-REQ-1")
def test_a_request_is_not_copied(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Refuse copies: two objects over one list of tokens would lose their hashes."""
    request = make_request(make_manager(20, 4), "r", range(9))
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(KVSpecError):
            make(request)


@pytest.mark.rule("KV-MGR-20")
def test_a_manager_is_copied_whole_or_not_at_all(
    implementation: Implementation, make_request: MakeRequest
) -> None:
    manager = implementation.create(make_config(20, 4), check_invariants=False)
    request = make_request(manager, "r", range(9))
    admit(manager, request)
    with pytest.raises(KVSpecError):
        copy.copy(manager)
    copied = copy.deepcopy(manager)
    assert copied.snapshot() == manager.snapshot()
    for check in (True, False):
        clone = implementation.clone(implementation.create(manager.config, check_invariants=check))
        assert isinstance(clone, AuditedManager) is check
    manager.free(request)
    assert copied.snapshot() != manager.snapshot()


@pytest.mark.rule("KV-REQ-1")
def test_no_token_is_read_beside_the_request(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    request: Any = make_request(make_manager(20, 4), "r", range(9))
    assert [*request.token_ids[-100:100_000]] == [*range(9)]
    for index in (-10, 9, 2**40):
        with pytest.raises(IndexError):
            request.token_ids[index]
    if hasattr(request, "tokens_between"):
        for start, stop in ((-100, 100_000), (-1, 3), (0, 10), (2**62, 2**62 + 1)):
            with pytest.raises((InvalidArgumentError, OverflowError)):
                request.tokens_between(start, stop)
        for number in (-1, 2, 2**40):
            with pytest.raises(InvalidArgumentError):
                request.hash_at(number)


def test_an_input_of_a_class_of_its_own_is_checked_too(
    implementation: Implementation, make_manager: MakeManager
) -> None:
    class Moving(MultimodalItem):
        @property
        def offset(self) -> Any:
            return Liar(2**40)

        @offset.setter
        def offset(self, value: int) -> None: ...

        def __init__(self) -> None:
            object.__setattr__(self, "identifier", "image")
            object.__setattr__(self, "length", 2)

    manager = make_manager(20, 4)
    request = RequestInput("r", [*range(40)], multimodal=(MultimodalItem("image", 0, 2),))
    object.__setattr__(request, "multimodal", (Moving(), Moving()))
    try:
        made: Request = implementation.make_request(manager, request)
    except (KVSpecError, OverflowError):
        return
    assert len(made.block_hashes) == 10


@pytest.mark.rule("KV-MGR-20")
def test_no_key_of_a_restored_state_covers_more_than_can_be_numbered(
    implementation: Implementation, make_request: MakeRequest
) -> None:
    manager = implementation.create(make_config(20, 4), check_invariants=False)
    request = make_request(manager, "r", range(9))
    admit(manager, request)
    manager.free(request)
    state = manager.snapshot()
    most, rest = (2**31 - 1) * 4, state.covered_tokens[2:]
    near = replace(state, covered_tokens=(0, most, *rest))
    assert implementation.restore(manager.config, near).snapshot() == near
    far = replace(state, covered_tokens=(0, most + 4, *rest))
    with pytest.raises(InvalidArgumentError, match="snapshot"):
        implementation.restore(manager.config, far)
