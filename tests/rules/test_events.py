"""KV-EVT: the stream of what became findable and what stopped being so."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings

from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import LoRA, MultimodalItem
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    admit,
    blocks_of,
    new_manager,
    queue_of,
    run_on,
)
from tests.rules.hashes import HASH_0, HASH_1
from tests.rules.scenarios import CONFIGS, Player, Step, steps

C9D5 = bytes.fromhex(HASH_0)
HASH_2412 = bytes.fromhex(HASH_1)


def stored(*hashes: bytes | int, tokens: range, **members: Any) -> BlockStored:
    """The event of a plain request in group 0; `members` are what differs from that."""
    expected: dict[str, Any] = {
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": tuple(tokens),
        "block_size_tokens": 4,
        "lora_id": None,
        "lora_name": None,
        "medium": "GPU",
        "extra_keys": (None,) * len(hashes),
        "group": 0,
        "spec_kind": "full_attention",
        "sliding_window_tokens": None,
    }
    return BlockStored(**{**expected, **members})


def removed(block_hash: bytes | int) -> BlockRemoved:
    """The removal of one key of group 0."""
    return BlockRemoved((block_hash,), "GPU", 0)


def take_all(
    make_manager: MakeManager, make_request: MakeRequest, tokens: range, **content: Any
) -> tuple[Event, ...]:
    """The events of a request whose tokens are computed in one step."""
    manager = make_manager(6, 4, enable_events=True)
    admit(manager, make_request(manager, "r", tokens, **content))
    return manager.take_events()


@pytest.mark.rule("KV-EVT-1", "KV-POOL-4")
def test_removals_come_before_what_is_stored(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A request takes 4 and 2, of which 2 was cached, and fills both: Removed, then Stored."""
    manager = make_manager(5, 4, enable_events=True)
    first = make_request(manager, "first", range(1, 9))
    admit(manager, first)
    admit(manager, make_request(manager, "filler", [90]))
    manager.free(first)
    assert queue_of(manager) == [4, 2, 1]
    manager.take_events()
    request = make_request(manager, "r", range(50, 58))
    admit(manager, request)
    assert blocks_of(manager, request) == [4, 2]
    events = manager.take_events()
    assert events == (removed(HASH_2412), stored(*request.block_hashes, tokens=range(50, 58)))
    assert manager.take_events() == ()


@pytest.mark.rule("KV-EVT-1")
def test_with_events_off_nothing_is_queued(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Neither storing, nor evicting, nor a reset queues anything."""
    manager = make_manager(6, 4, enable_events=False)
    request = make_request(manager, "r", range(1, 9))
    admit(manager, request)
    manager.evict_blocks([1])
    manager.free(request)
    assert manager.reset_prefix_cache() is True
    assert manager.take_events() == ()


@pytest.mark.rule("KV-EVT-2")
def test_one_step_stores_once(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """10 tokens in one step: both hashes, tokens 1 … 8, no parent."""
    assert take_all(make_manager, make_request, range(1, 11)) == (
        stored(C9D5, HASH_2412, tokens=range(1, 9)),
    )


@pytest.mark.rule("KV-EVT-2", "KV-EVT-3")
@pytest.mark.parametrize("evicted", [False, True])
def test_each_chunk_stores_what_it_completed(
    make_manager: MakeManager, make_request: MakeRequest, evicted: bool
) -> None:
    """In chunks of 5: block 0, then block 1 with its parent, whether or not that is cached."""
    manager = make_manager(6, 4, enable_events=True)
    request = make_request(manager, "r", range(1, 11))
    admit(manager, request, 5)
    assert manager.take_events() == (stored(C9D5, tokens=range(1, 5)),)
    if evicted:
        manager.evict_blocks([1])
        assert manager.take_events() == (removed(C9D5),)
    run_on(manager, request, 5)
    second = stored(HASH_2412, tokens=range(5, 9), parent_block_hash=C9D5)
    assert manager.take_events() == (second,)


@pytest.mark.rule("KV-EVT-2")
def test_a_chunk_that_completes_no_block_stores_nothing(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Three tokens, then none of the next: no event."""
    manager = make_manager(6, 4, enable_events=True)
    request = make_request(manager, "r", range(1, 8))
    admit(manager, request, 3)
    assert manager.take_events() == ()
    run_on(manager, request, 2)
    assert len(manager.take_events()) == 1
    run_on(manager, request, 2)
    assert manager.take_events() == ()


@pytest.mark.rule("KV-EVT-2", "KV-EVT-8", "KV-HASH-10")
def test_an_adapter_is_named_with_its_id(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The event has the id and the name, and each block the name as its extra key."""
    (event,) = take_all(make_manager, make_request, range(1, 9), lora=LoRA("sql", 5))
    assert isinstance(event, BlockStored)
    assert (event.lora_id, event.lora_name) == (5, "sql")
    assert event.extra_keys == (("sql",), ("sql",))


@pytest.mark.rule("KV-EVT-3")
def test_the_parent_after_a_hit_is_the_last_hit_block(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A request that hits blocks 0 and 1 stores its third under the hash of the second."""
    manager = make_manager(6, 4, enable_events=True)
    admit(manager, make_request(manager, "first", range(1, 9)))
    manager.take_events()
    request = make_request(manager, "r", range(1, 13))
    admit(manager, request)
    expected = stored(request.block_hashes[2], tokens=range(9, 13), parent_block_hash=HASH_2412)
    assert manager.take_events() == (expected,)


def two_copies(manager: KVCacheManager, make_request: MakeRequest) -> None:
    """Two requests with the same block, computed in one step, in blocks 1 and 2."""
    requests = [make_request(manager, name, [1, 2, 3, 4]) for name in "ab"]
    for request in requests:
        manager.allocate_slots(request, 4, delay_cache_blocks=True)
    for request in requests:
        manager.cache_blocks(request, 4)


@pytest.mark.rule("KV-EVT-4", "KV-POOL-14")
def test_every_copy_is_removed_on_its_own(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Two Stored events named the key; evicting each copy queues a Removed."""
    manager = make_manager(6, 4, enable_events=True)
    two_copies(manager, make_request)
    assert manager.take_events() == (stored(C9D5, tokens=range(1, 5)),) * 2
    asker = make_request(manager, "c", range(1, 6))
    manager.evict_blocks([2])
    assert manager.take_events() == (removed(C9D5),)
    assert manager.get_computed_blocks(asker).blocks.to_lists() == [[1]]
    manager.evict_blocks([1])
    assert manager.take_events() == (removed(C9D5),)


@pytest.mark.rule("KV-EVT-4", "KV-POOL-10")
def test_releasing_queues_nothing(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """A freed block is still cached, so nothing is told; nor of an unhashed block evicted by id."""
    manager = make_manager(6, 4, enable_events=True)
    request = make_request(manager, "r", range(1, 7))
    admit(manager, request)
    manager.take_events()
    manager.evict_blocks([0, 2])
    manager.free(request)
    assert manager.take_events() == ()


@pytest.mark.rule("KV-EVT-5", "KV-EVT-4", "KV-POOL-11")
def test_a_reset_queues_one_event(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """AllCleared once for each successful reset, no Removed, and nothing for a refused one."""
    manager = make_manager(6, 4, enable_events=True)
    request = make_request(manager, "r", range(1, 9))
    admit(manager, request)
    manager.take_events()
    assert manager.reset_prefix_cache() is False
    manager.free(request)
    assert manager.take_events() == ()
    for _ in range(2):
        assert manager.reset_prefix_cache() is True
        assert manager.take_events() == (AllBlocksCleared(),)


@pytest.mark.rule("KV-EVT-5", "KV-COORD-1")
def test_a_reset_is_told_with_caching_off(make_manager: MakeManager) -> None:
    """AllCleared goes out although nothing was ever cached."""
    manager = make_manager(6, 4, enable_events=True, enable_caching=False)
    assert manager.reset_prefix_cache() is True
    assert manager.take_events() == (AllBlocksCleared(),)


@pytest.mark.rule("KV-EVT-6")
@pytest.mark.parametrize(
    ("function", "size"), [("sha256_cbor", 32), ("sha256_cbor_64bit", 8), ("xxhash_cbor", 16)]
)
def test_hashes_go_out_as_bytes_or_as_their_low_64_bits(
    make_manager: MakeManager, make_request: MakeRequest, function: str, size: int
) -> None:
    """In both forms for the parent too, without the group."""
    shown: dict[bool, list[Any]] = {}
    for as_ints in (False, True):
        manager = make_manager(
            6,
            4,
            enable_events=True,
            int_event_hashes=as_ints,
            hash_function=function,
            trusted_tenants=True,
        )
        request = make_request(manager, "r", range(1, 9))
        admit(manager, request, 4)
        run_on(manager, request, 4)
        manager.evict_blocks([1])
        first, second, gone = manager.take_events()
        assert isinstance(first, BlockStored)
        assert isinstance(second, BlockStored)
        assert isinstance(gone, BlockRemoved)
        shown[as_ints] = [
            *first.block_hashes,
            second.parent_block_hash,
            *second.block_hashes,
            *gone.block_hashes,
        ]
        assert shown[False] == [request.block_hashes[i] for i in (0, 0, 1, 0)]
    assert {len(block_hash) for block_hash in shown[False]} == {size}
    assert shown[True] == [int.from_bytes(block_hash[-8:], "big") for block_hash in shown[False]]
    if function == "sha256_cbor":
        assert shown[True][0] == 2164874634404590027


@pytest.mark.rule("KV-EVT-7")
def test_the_fold_counts_copies(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Stored twice and once; after one Removed, once each: what the blocks carry."""
    manager = make_manager(6, 4, enable_events=True)
    two_copies(manager, make_request)
    longer = make_request(manager, "longer", range(1, 9))
    admit(manager, longer)
    told: list[bytes | int] = []
    for event in manager.take_events():
        assert isinstance(event, BlockStored)
        told += event.block_hashes
    assert sorted(map(str, told)) == sorted(map(str, [C9D5, C9D5, HASH_2412]))
    manager.evict_blocks([1])
    assert manager.take_events() == (removed(C9D5),)
    carried = [key[:-4] for keys in manager.snapshot().block_keys for key in keys]
    assert sorted(carried) == sorted([C9D5, HASH_2412])


@pytest.mark.rule("KV-EVT-7", "KV-EVT-4", "KV-EVT-5")
@pytest.mark.parametrize("config", CONFIGS)
@given(program=steps)
@settings(max_examples=25)
def test_the_fold_always_equals_the_cached_keys(
    implementation: Implementation, config: dict[str, Any], program: list[Step]
) -> None:
    """Whatever was called, the events so far say exactly what is cached, and how often."""
    manager = new_manager(implementation, 12, **config, enable_events=True)
    told: Counter[tuple[bytes | int, int]] = Counter()
    player = Player(implementation, manager)
    for step in program:
        ((_, seen),) = player.play([step])
        for event in seen.events:
            if isinstance(event, BlockStored):
                told.update((block_hash, event.group) for block_hash in event.block_hashes)
            elif isinstance(event, BlockRemoved):
                told.subtract((block_hash, event.group) for block_hash in event.block_hashes)
            else:
                told.clear()
        carried = Counter(
            (key[:-4], int.from_bytes(key[-4:], "big"))
            for keys in seen.snapshot.block_keys
            for key in keys
        )
        assert {key: count for key, count in told.items() if count} == carried


@pytest.mark.rule("KV-EVT-8", "KV-HASH-8")
def test_extra_keys_are_told_per_block(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """An item on tokens 1 … 5: ("img", 1) in block 0 and ("img", -3) in block 1."""
    items = (MultimodalItem("img", 1, 5),)
    (event,) = take_all(make_manager, make_request, range(1, 9), multimodal=items)
    assert isinstance(event, BlockStored)
    assert event.extra_keys == ((("img", 1),), (("img", -3),))


@pytest.mark.rule("KV-EVT-8", "KV-HASH-10")
def test_a_salt_is_told_of_block_0_only(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The first block has the salt, the second none; without any extra keys both have none."""
    (event,) = take_all(make_manager, make_request, range(1, 9), cache_salt="s")
    assert isinstance(event, BlockStored)
    assert event.extra_keys == (("s",), None)
    (plain,) = take_all(make_manager, make_request, range(1, 9))
    assert isinstance(plain, BlockStored)
    assert plain.extra_keys == (None, None)
