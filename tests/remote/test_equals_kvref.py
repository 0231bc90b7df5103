"""The reference through the protocol returns what the reference does, for every call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.play.fit import random_program
from kvcheck.play.random_programs import random_programs
from kvcheck.play.steps import Program
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.remote.client import RemoteImplementation
from kvref import implementation
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import KVSpecError
from kvspec.interface import Capabilities
from kvspec.policy import Policy
from tests.remote.configs import config, request_input
from tests.remote.servers import serve

KVREF = implementation()


@pytest.fixture(scope="module", params=["", "+json"], ids=["cbor", "json"])
def remote(request: pytest.FixtureRequest) -> Iterator[RemoteImplementation]:
    found = find_implementation(serve("kvref", options=request.param))
    assert isinstance(found, RemoteImplementation)
    yield found
    found.close()


def drawn(can: Capabilities) -> Iterator[Program]:
    for program in random_programs(0, 0, 12):
        fitting = random_program(program, can, Policy(), hashes_matter=True, oracle=KVREF)
        if fitting is not None:
            yield fitting


def test_random_programs_have_the_same_answers_and_states(remote: RemoteImplementation) -> None:
    programs = list(drawn(remote.capabilities))
    assert len(programs) > 20
    for program in programs:
        assert first_violation(program, remote, Level.IDENTITY, KVREF) is None


def test_a_server_that_answers_otherwise_would_be_noticed() -> None:
    wrong = find_implementation(serve("mistake:HitsOneBlockLess"))
    programs = drawn(wrong.capabilities)
    assert any(first_violation(each, wrong, Level.IDENTITY, KVREF) for each in programs)


NO_IDS: Any = ({},)

WRONG_ALLOCATIONS: tuple[dict[str, Any], ...] = (
    {"num_new_tokens": "four"},
    {"num_new_tokens": True},
    {"num_new_tokens": 1.0},
    {"num_new_tokens": 2**70},
    {"num_new_tokens": None},
    {"num_new_tokens": 4, "num_lookahead_tokens": -1},
    {"num_new_tokens": 4, "delay_cache_blocks": 1},
    {"num_new_tokens": 4, "new_computed_blocks": [[1]]},
    {"num_new_tokens": 4, "new_computed_blocks": KVCacheBlocks(((1,), (2,)))},
    {"num_new_tokens": 4, "new_computed_blocks": KVCacheBlocks(((99,),))},
    {"num_new_tokens": 4, "new_computed_blocks": KVCacheBlocks(((2**70,),))},
    {"num_new_tokens": 4, "new_computed_blocks": KVCacheBlocks((NO_IDS,))},
    {
        "num_new_tokens": 4,
        "new_computed_blocks": KVCacheBlocks(((1,),)),
        "num_new_computed_tokens": 4,
    },
)


@pytest.mark.parametrize("wrong", WRONG_ALLOCATIONS, ids=repr)
def test_wrong_arguments_are_the_same_errors(
    remote: RemoteImplementation, wrong: dict[str, Any]
) -> None:
    raised = []
    for impl in (KVREF, remote):
        manager = impl.create(config())
        request = impl.make_request(manager, request_input())
        with pytest.raises(KVSpecError) as caught:
            manager.allocate_slots(request, **wrong)
        raised.append(type(caught.value))
        assert manager.num_free_blocks == 11
    assert raised[0] is raised[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_computed_tokens", -1),
        ("num_computed_tokens", True),
        ("status", "IDLE"),
        ("num_preemptions", "x"),
    ],
)
def test_wrong_attributes_are_the_same_errors_and_can_be_put_right(
    remote: RemoteImplementation, name: str, value: object
) -> None:
    messages = []
    for impl in (KVREF, remote):
        manager = impl.create(config())
        request = impl.make_request(manager, request_input())
        before = getattr(request, name)
        setattr(request, name, value)
        with pytest.raises(ValueError, match=name) as caught:
            manager.allocate_slots(request, 5)
        messages.append(str(caught.value))
        setattr(request, name, before)
        assert manager.allocate_slots(request, 5) == KVCacheBlocks(((1, 2),))
    assert messages[0] == messages[1]
