"""KV-PART: keys at finer boundaries inside a larger block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kvspec.errors import InvalidArgumentError, KVSpecError
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvspec.interface import KVCacheManager
from kvspec.request import LoRA, Request
from tests.rules.builders import MakeManager, MakeRequest, admit, full, queue_of
from tests.rules.specs import lists_of, mamba, sliding


@dataclass(frozen=True)
class Example:
    """The example of the chapter.

    Group 0 is full attention with B = 4, group 1 a window with B = 16; H = 4. 14 of the 30 tokens
    are computed; group 1 holds block 5, not cached.
    """

    manager: KVCacheManager
    request: Request
    block: int

    def register(self, *lengths: int) -> list[bool]:
        """Partial entries in group 1, one after another."""
        return [self.manager.cache_partial_block(self.request, 1, n) for n in lengths]

    def keys(self) -> list[bytes]:
        """The keys of the block, primary first."""
        return list(self.manager.snapshot().block_keys[self.block])

    def key(self, n: int) -> bytes:
        """The key of the first n tokens in group 1."""
        return bytes(self.request.block_hashes[n // 4 - 1]) + bytes([0, 0, 0, 1])


def tell(make_manager: MakeManager, make_request: MakeRequest, **content: Any) -> Example:
    """The example, its events taken."""
    manager = make_manager(13, specs=[full(4), sliding(16, 32)], enable_events=True)
    request = make_request(manager, "a", range(1, 31), **content)
    admit(manager, request, 14)
    assert lists_of(manager, request) == [[1, 2, 3, 4], [5]]
    manager.take_events()
    return Example(manager, request, 5)


@pytest.fixture
def example(make_manager: MakeManager, make_request: MakeRequest) -> Example:
    """The example of the chapter."""
    return tell(make_manager, make_request)


def removed(example: Example, *lengths: int) -> list[Event]:
    """Removed events of these prefixes in group 1."""
    hashes = [example.request.block_hashes[n // 4 - 1] for n in lengths]
    return [BlockRemoved((block_hash,), "GPU", 1) for block_hash in hashes]


@pytest.mark.rule("KV-PART-1", "KV-HASH-5", "KV-HASH-6")
@pytest.mark.parametrize(("n", "number"), [(4, 0), (8, 1), (12, 2)])
def test_a_partial_entry_has_the_key_of_the_hash_that_ends_there(
    example: Example, n: int, number: int
) -> None:
    """n = 12 with H = 4: hash number 2, and the group."""
    assert example.register(n) == [True]
    key = bytes(example.request.block_hashes[number]) + b"\0\0\0\1"
    assert example.keys() == [key]
    assert example.manager.snapshot().lookup_order[key] == (5,)
    assert example.manager.snapshot().covered_tokens[5] == n


@pytest.mark.rule("KV-PART-1")
def test_a_partial_entry_belongs_to_the_block_in_which_it_ends(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """n = 20 of 30 computed tokens: entry 1 of the list; hash number 4 covers all 20 tokens."""
    manager = make_manager(20, specs=[full(4), sliding(16, 32)])
    request = make_request(manager, "a", range(30))
    admit(manager, request)
    blocks = lists_of(manager, request)[1]
    assert manager.cache_partial_block(request, 1, 20) is True
    keys = manager.snapshot().block_keys[blocks[1]]
    assert keys == (bytes(request.block_hashes[4]) + b"\0\0\0\1",)


@pytest.mark.rule("KV-PART-1", "KV-POOL-1")
def test_the_null_block_gets_no_key(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """The entry fell out of the window: False, and nothing happens."""
    manager = make_manager(20, specs=[full(4), sliding(16, 4)], enable_events=True)
    request = make_request(manager, "a", range(30))
    admit(manager, request)
    manager.remove_skipped_blocks(request, 24)
    assert lists_of(manager, request)[1][0] == 0
    manager.take_events()
    before = manager.snapshot()
    assert manager.cache_partial_block(request, 1, 8) is False
    assert manager.snapshot() == before
    assert manager.take_events() == ()


@pytest.mark.rule("KV-PART-1", "KV-ERR-2")
@pytest.mark.parametrize(
    ("group", "n", "field"),
    [
        (1, 16, "num_tokens"),  # a multiple of B
        (1, 6, "num_tokens"),  # no multiple of H
        (1, 20, "num_tokens"),  # beyond the 16 slots held
        (1, 32, "num_tokens"),
        (1, 0, "num_tokens"),
        (1, -4, "num_tokens"),
        (1, True, "num_tokens"),
        (0, 12, "group"),  # B = H
        (2, 12, "group"),
        (-1, 12, "group"),
        (True, 12, "group"),
    ],
)
def test_other_boundaries_are_refused(example: Example, group: int, n: int, field: str) -> None:
    """The error names the argument; nothing changes."""
    before = example.manager.snapshot()
    with pytest.raises(InvalidArgumentError) as caught:
        example.manager.cache_partial_block(example.request, group, n)
    assert caught.value.field == field
    assert example.manager.snapshot() == before


@pytest.mark.rule("KV-PART-1")
def test_a_partial_entry_needs_hashes_and_blocks(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A request of 10 tokens has 2 hashes, so 12 is refused; so is one without blocks."""
    manager = make_manager(20, specs=[full(4), sliding(16, 32)])
    request = make_request(manager, "a", range(10))
    with pytest.raises(KVSpecError):
        manager.cache_partial_block(request, 1, 8)
    admit(manager, request)
    with pytest.raises(InvalidArgumentError):
        manager.cache_partial_block(request, 1, 12)
    assert manager.cache_partial_block(request, 1, 8) is True


@pytest.mark.rule("KV-PART-1")
@pytest.mark.parametrize(
    "config",
    [
        {"specs": [full(4), sliding(16, 32)], "enable_caching": False},
        {"specs": [full(16)], "hash_block_size_tokens": 4},
    ],
    ids=["caching_off", "one_group"],
)
def test_without_finer_hashes_there_are_no_partial_entries(
    make_manager: MakeManager, make_request: MakeRequest, config: dict[str, Any]
) -> None:
    """With caching off nothing has a hash; with one group H = B, whatever is given."""
    manager = make_manager(20, **config)
    request = make_request(manager, "a", range(14))
    admit(manager, request)
    with pytest.raises(InvalidArgumentError) as caught:
        manager.cache_partial_block(request, 0, 12)
    assert caught.value.field == "group"


@pytest.mark.rule("KV-PART-2")
def test_a_shorter_boundary_becomes_an_additional_key(example: Example) -> None:
    """12, then 8: 12 stays the primary key, 8 comes behind it; 12 again changes nothing."""
    assert example.register(12, 8) == [True, True]
    assert example.keys() == [example.key(12), example.key(8)]
    assert example.manager.snapshot().covered_tokens[5] == 12
    before = example.manager.snapshot()
    assert example.register(12, 8) == [True, True]
    assert example.manager.snapshot() == before


@pytest.mark.rule("KV-PART-2", "KV-POOL-13", "KV-POOL-14")
def test_a_copy_comes_behind_the_first_in_the_look_up_order(
    example: Example, make_request: MakeRequest
) -> None:
    """A second request with the same 14 tokens, in a block of its own."""
    other = make_request(example.manager, "b", range(1, 31))
    assert example.manager.allocate_slots(other, 14) is not None
    block = lists_of(example.manager, other)[1][0]
    example.register(8)
    assert example.manager.cache_partial_block(other, 1, 8) is True
    assert example.manager.snapshot().lookup_order[example.key(8)] == (5, block)


@pytest.mark.rule("KV-PART-2", "KV-POOL-18")
def test_a_full_block_takes_additional_keys(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The key of 16 tokens stays the primary one; 8 is added, its event among the others."""
    manager = make_manager(20, specs=[full(4), sliding(16, 32)], enable_events=True)
    request = make_request(manager, "a", range(30))
    admit(manager, request)
    manager.take_events()
    block = lists_of(manager, request)[1][0]
    (primary,) = manager.snapshot().block_keys[block]
    assert manager.cache_partial_block(request, 1, 8) is True
    additional = bytes(request.block_hashes[1]) + b"\0\0\0\1"
    assert manager.snapshot().block_keys[block] == (primary, additional)
    assert manager.snapshot().covered_tokens[block] == 16
    assert len(manager.take_events()) == 1


@pytest.mark.rule("KV-PART-3", "KV-EVT-4")
def test_a_longer_boundary_replaces_all_keys(example: Example) -> None:
    """8 and 4, then 12: both are removed, primary first, and 12 is the only key."""
    example.register(8, 4)
    example.manager.take_events()
    assert example.register(12) == [True]
    assert example.keys() == [example.key(12)]
    *gone, stored = example.manager.take_events()
    assert gone == removed(example, 8, 4)
    assert isinstance(stored, BlockStored)


@pytest.mark.rule("KV-PART-3")
def test_the_primary_key_decides_and_not_the_longest(example: Example) -> None:
    """12, 4, 8: nothing is longer than the primary key, so all three stay."""
    example.register(12, 4, 8)
    assert example.keys() == [example.key(12), example.key(4), example.key(8)]


@pytest.mark.rule("KV-PART-4", "KV-EVT-8")
@pytest.mark.parametrize(("n", "parent"), [(12, 1), (8, 0), (4, None)])
def test_the_event_is_one_link_of_the_chain(
    make_manager: MakeManager, make_request: MakeRequest, n: int, parent: int | None
) -> None:
    """n = 12: one hash, tokens 9 … 12, hash number 1 as the parent, block size 4, group 1."""
    example = tell(make_manager, make_request, cache_salt="salt", lora=LoRA("adapter", 3))
    hashes = example.request.block_hashes
    example.register(n)
    (stored,) = example.manager.take_events()
    extra = ("adapter", "salt") if n == 4 else ("adapter",)
    assert stored == BlockStored(
        block_hashes=(hashes[n // 4 - 1],),
        parent_block_hash=None if parent is None else hashes[parent],
        token_ids=tuple(range(n - 3, n + 1)),
        block_size_tokens=4,
        lora_id=3,
        lora_name="adapter",
        medium="GPU",
        extra_keys=(extra,),
        group=1,
        spec_kind="sliding_window",
        sliding_window_tokens=32,
    )


@pytest.mark.rule("KV-PART-4")
def test_a_key_that_is_there_is_not_told_again(example: Example) -> None:
    """The second time the answer is True and the queue stays empty."""
    example.register(12, 8)
    example.manager.take_events()
    example.register(12, 8)
    assert example.manager.take_events() == ()


@pytest.mark.rule("KV-PART-5", "KV-POOL-10")
def test_eviction_by_id_drops_every_key(example: Example) -> None:
    """12, 8 and 4: three Removed, primary first."""
    example.register(12, 8, 4)
    example.manager.take_events()
    example.manager.evict_blocks([5])
    assert example.keys() == []
    assert list(example.manager.take_events()) == removed(example, 12, 8, 4)


@pytest.mark.rule("KV-PART-5", "KV-POOL-4", "KV-POOL-6")
def test_taking_the_block_drops_every_key(example: Example, make_request: MakeRequest) -> None:
    """Freed, a block with partial keys goes to the back; taken, it loses all of them."""
    example.register(12, 8)
    example.manager.free(example.request)
    assert queue_of(example.manager) == [4, 3, 2, 1, *range(6, 13), 5]
    example.manager.take_events()
    other = make_request(example.manager, "b", range(50, 83))  # 33 tokens take 9 + 3 blocks
    assert example.manager.allocate_slots(other, 33, delay_cache_blocks=True) is not None
    assert example.keys() == []
    assert list(example.manager.take_events()) == removed(example, 12, 8)


@pytest.mark.rule("KV-PART-5", "KV-POOL-11", "KV-EVT-5")
def test_a_reset_drops_every_key(example: Example) -> None:
    """With one event for everything."""
    example.register(12, 8)
    example.manager.free(example.request)
    example.manager.take_events()
    assert example.manager.reset_prefix_cache() is True
    assert example.keys() == []
    assert example.manager.take_events() == (AllBlocksCleared(),)


@pytest.mark.rule("KV-PART-5", "KV-POOL-18", "KV-GRP-11", "KV-EVT-4")
def test_promotion_drops_every_partial_key(example: Example) -> None:
    """18 computed tokens cache the full block: three Removed, then Stored with tokens 1 … 16."""
    example.register(12, 8, 4)
    example.manager.take_events()
    assert example.manager.allocate_slots(example.request, 4) is not None
    assert example.keys() == [example.key(16)]
    assert example.manager.snapshot().covered_tokens[5] == 16
    events = [e for e in example.manager.take_events() if getattr(e, "group", None) == 1]
    assert events[:3] == removed(example, 12, 8, 4)
    (stored,) = events[3:]
    assert isinstance(stored, BlockStored)
    assert stored.block_hashes == (example.request.block_hashes[3],)
    assert stored.token_ids == tuple(range(1, 17))
    assert stored.block_size_tokens == 16


@pytest.mark.rule("KV-PART-5", "KV-RET-6")
def test_a_block_that_is_passed_over_keeps_its_partial_keys(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Interval 0, a prompt of 40, replayed from 32: the first state is not worth caching."""
    manager = make_manager(20, specs=[full(4), mamba(16)], retention_interval_tokens=0)
    request = make_request(manager, "a", range(40))
    admit(manager, request, 14)
    block = lists_of(manager, request)[1][0]
    assert manager.cache_partial_block(request, 1, 12) is True
    keys = manager.snapshot().block_keys[block]
    assert manager.allocate_slots(request, 4) is not None
    assert len(keys) == 1
    assert manager.snapshot().block_keys[block] == keys
