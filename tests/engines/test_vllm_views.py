"""vLLM's view of kvfast, with stubs for the few names of vLLM that this needs."""

from __future__ import annotations

import importlib
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import kvfast
from kvfast.engines import vllm as on_vllm
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.following import FollowedInput
from kvspec.specs import FullAttentionSpec

CONFIG = ManagerConfig(
    KVCacheConfig(6, (KVCacheGroup(("0",), FullAttentionSpec(2, 1, 8, "float16")),)),
    max_model_len_tokens=16,
    scheduler_block_size_tokens=2,
    hash_function="given_32",
)


class Status(Enum):
    """vLLM's `RequestStatus`, as far as a manager asks."""

    WAITING = 1
    RUNNING = 2
    PREEMPTED = 3


class Block:
    """vLLM's `KVCacheBlock` by its slots."""

    __slots__ = ("block_id", "is_null")


def imported(monkeypatch: pytest.MonkeyPatch, name: str) -> Any:
    """Import a module of `kvfast.engines.vllm` over the stubs, for this test only."""
    members: dict[str, dict[str, Any]] = {
        "vllm.v1.core.kv_cache_manager": {"KVCacheBlocks": object},
        "vllm.v1.core.kv_cache_utils": {"KVCacheBlock": Block},
        "vllm.v1.request": {"RequestStatus": Status},
        "vllm.version": {"__version__": "0.24.0"},
    }
    for path in ("vllm", "vllm.v1", "vllm.v1.core", *members):
        module = ModuleType(path)
        module.__dict__.update(members.get(path, {}))
        monkeypatch.setitem(sys.modules, path, module)
    for each in ("requests", "views"):
        monkeypatch.setattr(on_vllm, each, None, raising=False)
        monkeypatch.setitem(sys.modules, f"kvfast.engines.vllm.{each}", ModuleType(each))
        del sys.modules[f"kvfast.engines.vllm.{each}"]
    return importlib.import_module(f"kvfast.engines.vllm.{name}")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch, num_cached_blocks: int) -> Any:
    """A view of a pool of five blocks and the null block."""
    views = imported(monkeypatch, "views")
    implementation = kvfast.implementation()
    manager = implementation.create(CONFIG)
    if num_cached_blocks:
        hashes = [bytes([i]) * 32 for i in range(num_cached_blocks)]
        tokens = 2 * num_cached_blocks
        request = implementation.make_followed(manager, FollowedInput("a", tokens, tokens, hashes))
        manager.allocate_slots(request, tokens)
    stock = SimpleNamespace(
        num_gpu_blocks=6, enable_caching=True, hash_block_size=2, enable_kv_cache_events=False
    )
    return views.Pool(manager, implementation.batched(manager), stock, tuple)


@pytest.mark.parametrize("num_cached_blocks", [2])
def test_the_free_queue_is_walked_in_both_directions(pool: Any) -> None:
    queue = pool.free_block_queue
    head, tail = queue.fake_free_list_head, queue.fake_free_list_tail
    behind = [each.block_id for each in queue.iter_blocks_after(None)]
    assert behind == [each.block_id for each in queue.get_all_free_blocks()]
    second = queue.get_all_free_blocks()[1]
    assert [each.block_id for each in queue.iter_blocks_after(second)] == behind[2:]
    assert (head.prev_free_block, tail.next_free_block) == (None, None)
    forwards, backwards = [], []
    at = head.next_free_block
    while at is not tail:
        forwards.append(at.block_id)
        at = at.next_free_block
    at = tail.prev_free_block
    while at is not head:
        backwards.append(at.block_id)
        at = at.prev_free_block
    assert (forwards, backwards) == ([3, 4, 5], [5, 4, 3])
    for outside in (pool.null_block, pool.blocks[1]):
        assert (outside.prev_free_block, outside.next_free_block) == (None, None)


@pytest.mark.parametrize("num_cached_blocks", [5])
def test_an_empty_free_queue_has_its_ends_beside_each_other(pool: Any) -> None:
    queue = pool.free_block_queue
    assert queue.fake_free_list_head.next_free_block is queue.fake_free_list_tail
    assert queue.fake_free_list_tail.prev_free_block is queue.fake_free_list_head


@pytest.mark.parametrize("num_cached_blocks", [1])
def test_a_request_whose_load_failed_holds_nothing_and_is_still_counted(pool: Any) -> None:
    """Free its blocks; vLLM still adds its need to that of prefills in flight."""
    views = sys.modules["kvfast.engines.vllm.views"]
    requests = views.Requests(kvfast.implementation(), pool.fast, 2)
    coordinator = views.Coordinator(pool, requests)
    numbers = {"num_tokens": 5, "num_tokens_main_model": 5, "total_computed_tokens": 0}
    need = coordinator.get_num_blocks_to_allocate("gone", new_computed_blocks=((),), **numbers)
    assert need == 3


@pytest.mark.parametrize("num_cached_blocks", [1])
def test_what_writes_into_a_view_is_refused(pool: Any) -> None:
    cached: Any = pool.cached_block_hash_to_block
    (key,) = cached._cache
    assert cached.get_one_block(key) is pool.blocks[1]
    with pytest.raises(AttributeError, match="pop"):
        cached._cache.pop(key)
    with pytest.raises(TypeError, match="item assignment"):
        cached._cache[key] = pool.blocks[2]
    with pytest.raises(AttributeError, match="pop"):
        cached.pop(key, 1)
    with pytest.raises(AttributeError, match="append"):
        pool.kv_event_queue.append("made up")
    with pytest.raises(AttributeError):
        pool.blocks[1].ref_cnt = 0
    assert len(cached) == 1


@pytest.mark.parametrize("num_cached_blocks", [2])
def test_further_keys_of_blocks_are_shown(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Show them because a connector of vLLM 0.33 reads them."""
    assert pool.cached_block_hashes_by_block == {}
    state = SimpleNamespace(block_keys=((), (b"a",), (b"b", b"c", b"d")))
    monkeypatch.setattr(pool, "state", lambda: state)
    assert pool.cached_block_hashes_by_block == {2: {b"c", b"d"}}


def test_a_session_of_as_many_tokens_as_before_has_a_longer_prompt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    implementation = kvfast.implementation()
    manager = implementation.create(CONFIG)
    requests = imported(monkeypatch, "requests").Requests(implementation, manager, 2)
    request = SimpleNamespace(
        request_id="a",
        _all_token_ids=[1, 2, 3],
        num_prompt_tokens=3,
        block_hashes=[b"a" * 32],
        skip_reading_prefix_cache=False,
        num_computed_tokens=0,
        num_preemptions=0,
        status=Status.WAITING,
    )
    assert requests.current(request).num_prompt_tokens == 3
    request._all_token_ids, request.block_hashes = [1, 2, 3, 4, 5], [b"a" * 32, b"b" * 32]
    mine = requests.current(request)
    assert (mine.num_tokens, mine.num_prompt_tokens, mine.num_hashes) == (5, 3, 2)
    request._all_token_ids, request.num_prompt_tokens = [1, 2, 3, 4, 9], 5  # 5 became 9
    assert requests.current(request) is mine
    assert (mine.num_tokens, mine.num_prompt_tokens, mine.num_hashes) == (5, 5, 2)
