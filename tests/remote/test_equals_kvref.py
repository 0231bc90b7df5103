"""The reference through the protocol answers as the reference does, whatever it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcheck.discovery import find_implementation
from kvcheck.play.player import Outcome, Player
from kvcheck.remote.client import RemoteImplementation
from kvref import implementation
from kvspec.blocks import KVCacheBlocks
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import Implementation
from kvspec.request import RequestStatus
from tests.remote.configs import FULL, MAMBA, WINDOW, config, request_input
from tests.remote.servers import serve

KVREF = implementation()

CONFIGS = (
    config(),
    config(use_eagle=True, int_event_hashes=True, watermark=0.2),
    config(FULL, WINDOW, retention_interval_tokens=8),
    config(FULL, MAMBA, num_blocks=20),
    config(enable_caching=False),
)
NAMES = ("a", "b", "c")
FEW = st.integers(-1, 9)


@pytest.fixture(scope="module", params=["", "+json"], ids=["cbor", "json"])
def remote(request: pytest.FixtureRequest) -> Iterator[RemoteImplementation]:
    found = find_implementation(serve("kvref", options=request.param))
    assert isinstance(found, RemoteImplementation)
    yield found
    found.close()


class Twins:
    """The same calls on both, and the same answers from both."""

    def __init__(self, remote: Implementation, config: ManagerConfig) -> None:
        self.players = [Player(impl, impl.create(config)) for impl in (KVREF, remote)]
        self.hits: dict[str, list[list[int]]] = {}

    def play(self, name: str, request_id: str | None, args: dict[str, Any]) -> Any:
        local, remote = (p.perform(name, request_id, args) for p in self.players)
        assert described(local) == described(remote)
        one, other = (p.manager for p in self.players)
        assert one.snapshot() == other.snapshot()
        assert (one.num_free_blocks, one.usage) == (other.num_free_blocks, other.usage)
        return local.result

    def clone(self) -> None:
        for player in self.players:
            player.manager = player.implementation.clone(player.manager)


def described(outcome: Outcome) -> tuple[Any, str, str]:
    error = outcome.error
    return outcome.result, type(error).__name__, str(error)


def draw_arguments(data: st.DataObject, twins: Twins, name: str, request_id: str) -> dict[str, Any]:
    """Arguments of a call, often legal ones."""
    held = twins.players[0].manager.get_blocks(twins.players[0].requests[request_id])
    slots = 4 * len(held.groups[0])
    if name == "append_tokens":
        return {"token_ids": data.draw(st.lists(st.integers(-1, 5), max_size=6))}
    if name == "allocate_slots":
        hit = twins.hits.pop(request_id, None) if not slots else None
        length = 4 * len(hit[0]) if hit else 0
        return {
            "num_computed_tokens": data.draw(st.sampled_from([slots, max(0, slots - 3), -1])),
            "status": data.draw(st.sampled_from(list(RequestStatus))).value,
            "num_new_tokens": data.draw(FEW),
            "num_new_computed_tokens": length,
            "new_computed_blocks": hit,
            "num_lookahead_tokens": data.draw(st.integers(0, 2)),
            "num_external_computed_tokens": data.draw(st.sampled_from([0, 0, 4])),
            "delay_cache_blocks": data.draw(st.booleans()),
            "full_sequence_must_fit": data.draw(st.booleans()),
        }
    if name in ("free_blocks", "evict_blocks"):
        return {"block_ids": data.draw(st.lists(st.integers(-1, 13), max_size=4))}
    if name == "find_longest_cache_hit_per_group":
        return {"max_cache_hit_length": data.draw(FEW)}
    if name == "get_num_blocks_to_allocate":
        return dict.fromkeys(
            ("num_tokens", "total_computed_tokens", "num_tokens_main_model"), data.draw(FEW)
        )
    if name == "cache_blocks":
        return {"num_computed_tokens": data.draw(FEW)}
    return {"total_computed_tokens": data.draw(FEW)} if name == "remove_skipped_blocks" else {}


OF_REQUESTS = (
    *("get_computed_blocks", "allocate_slots", "allocate_slots", "append_tokens", "free"),
    *("cache_blocks", "pop_blocks_for_free", "remove_skipped_blocks", "get_block_ids"),
    *("get_num_common_prefix_blocks", "get_num_blocks_to_allocate"),
    "find_longest_cache_hit_per_group",
)
OF_MANAGERS = (
    *("free_blocks", "evict_blocks", "reset_prefix_cache", "take_new_block_ids"),
    *("new_step_starts", "make_prefix_cache_stats", "take_events"),
)


@pytest.mark.parametrize("config", CONFIGS, ids=["full", "eagle", "window", "mamba", "uncached"])
@settings(max_examples=12)
@given(data=st.data())
def test_random_operations_have_the_same_answers_and_snapshots(
    remote: RemoteImplementation, config: ManagerConfig, data: st.DataObject
) -> None:
    twins = Twins(remote, config)
    for name in NAMES:
        size = data.draw(st.integers(1, 14))
        twins.play("new_request", name, {"prompt_token_ids": [1, 2, 3, 4] * 3 + [5] * size})
    for _ in range(data.draw(st.integers(1, 12))):
        op = data.draw(st.sampled_from((*OF_REQUESTS, *OF_MANAGERS, "clone")))
        if op == "clone":
            twins.clone()
            continue
        name = data.draw(st.sampled_from(NAMES))
        args = draw_arguments(data, twins, op, name)
        result = twins.play(op, name if op in OF_REQUESTS else None, args)
        if op == "get_computed_blocks" and result["num_computed_tokens"]:
            twins.hits[name] = result["blocks"]


def test_the_twins_would_notice(remote: RemoteImplementation) -> None:
    twins = Twins(remote, config())
    twins.play("new_request", "a", {"prompt_token_ids": [1, 2, 3, 4, 5]})
    twins.players[1].manager.allocate_slots(twins.players[1].requests["a"], 5)
    with pytest.raises(AssertionError):
        twins.play("get_block_ids", "a", {})


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
