"""KV-EVT: the stream of what became findable and what stopped being so."""

from __future__ import annotations

from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.digests import HASH_0, HASH_1
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.managed import Managed
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvspec.request import LoRA, MultimodalItem

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


def take_all(bench: Bench, tokens: range, **content: Any) -> tuple[Any, ...]:
    """The events of a request whose tokens are computed in one step."""
    manager = bench.manager(6, enable_events=True)
    manager.admit(manager.request("r", tokens, **content))
    return manager.take_events()


@example("KV-EVT-1", "KV-POOL-4", level=Level.IDENTITY)
def removals_are_told_before_what_is_stored(bench: Bench) -> None:
    """A request takes 4 and 2, of which 2 was cached, and fills both: Removed, then Stored."""
    manager = bench.manager(5, enable_events=True)
    first = manager.started("first", range(1, 9))
    manager.admit(manager.request("filler", [90]))
    manager.free(first)
    equal(manager.queue(), [4, 2, 1])
    manager.take_events()
    request = manager.started("r", range(50, 58))
    equal(manager.blocks(request), [4, 2])
    events = manager.take_events()
    equal(events, (removed(HASH_2412), stored(*request.block_hashes, tokens=range(50, 58))))
    equal(manager.take_events(), ())


@example("KV-EVT-1", level=Level.IDENTITY)
def with_events_off_nothing_is_queued(bench: Bench) -> None:
    """Neither storing, nor evicting, nor a reset queues anything."""
    manager = bench.manager(6, enable_events=False)
    request = manager.started("r", range(1, 9))
    manager.evict_blocks([1])
    manager.free(request)
    holds(manager.reset_prefix_cache() is True)
    equal(manager.take_events(), ())


@example("KV-EVT-2")
def one_step_stores_once(bench: Bench) -> None:
    """10 tokens in one step: both hashes, tokens 1 … 8, no parent."""
    equal(take_all(bench, range(1, 11)), (stored(C9D5, HASH_2412, tokens=range(1, 9)),))


@cases(False, True)
@example("KV-EVT-2", "KV-EVT-3", level=Level.IDENTITY)
def each_chunk_stores_what_it_completed(bench: Bench, evicted: bool) -> None:
    """In chunks of 5: block 0, then block 1 with its parent, whether or not that is cached."""
    manager = bench.manager(6, enable_events=True)
    request = manager.request("r", range(1, 11))
    manager.admit(request, 5)
    equal(manager.take_events(), (stored(C9D5, tokens=range(1, 5)),))
    if evicted:
        manager.evict_blocks([1])
        equal(manager.take_events(), (removed(C9D5),))
    manager.run(request, 5)
    second = stored(HASH_2412, tokens=range(5, 9), parent_block_hash=C9D5)
    equal(manager.take_events(), (second,))


@example("KV-EVT-2")
def a_chunk_that_completes_no_block_stores_nothing(bench: Bench) -> None:
    """Three tokens, then none of the next: no event."""
    manager = bench.manager(6, enable_events=True)
    request = manager.request("r", range(1, 8))
    manager.admit(request, 3)
    equal(manager.take_events(), ())
    manager.run(request, 2)
    equal(len(manager.take_events()), 1)
    manager.run(request, 2)
    equal(manager.take_events(), ())


@example("KV-EVT-2", "KV-EVT-8", "KV-HASH-10")
def an_adapter_is_named_with_its_id(bench: Bench) -> None:
    """The event has the id and the name, and each block the name as its extra key."""
    (event,) = take_all(bench, range(1, 9), lora=LoRA("sql", 5))
    holds(isinstance(event, BlockStored))
    equal((event.lora_id, event.lora_name), (5, "sql"))
    equal(event.extra_keys, (("sql",), ("sql",)))


@example("KV-EVT-3")
def the_parent_after_a_hit_is_the_last_hit_block(bench: Bench) -> None:
    """A request that hits blocks 0 and 1 stores its third under the hash of the second."""
    manager = bench.manager(6, enable_events=True)
    manager.admit(manager.request("first", range(1, 9)))
    manager.take_events()
    request = manager.started("r", range(1, 13))
    expected = stored(request.block_hashes[2], tokens=range(9, 13), parent_block_hash=HASH_2412)
    equal(manager.take_events(), (expected,))


def two_copies(manager: Managed, bench: Bench) -> None:
    """Two requests with the same block, computed in one step, in blocks 1 and 2."""
    requests = [manager.request(name, [1, 2, 3, 4]) for name in "ab"]
    for request in requests:
        manager.allocate_slots(request, 4, delay_cache_blocks=True)
    for request in requests:
        manager.cache_blocks(request, 4)


@example(
    "KV-EVT-4",
    "KV-POOL-14",
    level=Level.IDENTITY,
    choices=("unhashed_freed_to", "removed_event_per"),
)
def every_copy_is_removed_on_its_own(bench: Bench) -> None:
    """Two Stored events named the key; evicting each copy queues a Removed."""
    manager = bench.manager(6, enable_events=True)
    two_copies(manager, bench)
    equal(manager.take_events(), (stored(C9D5, tokens=range(1, 5)),) * 2)
    asker = manager.request("c", range(1, 6))
    manager.evict_blocks([2])
    equal(manager.take_events(), (removed(C9D5),))
    equal(manager.get_computed_blocks(asker).blocks.to_lists(), [[1]])
    manager.evict_blocks([1])
    equal(manager.take_events(), (removed(C9D5),))


@example("KV-EVT-4", "KV-POOL-10", level=Level.IDENTITY)
def releasing_queues_nothing(bench: Bench) -> None:
    """A freed block is still cached, so nothing is told; nor of an unhashed block evicted by id."""
    manager = bench.manager(6, enable_events=True)
    request = manager.started("r", range(1, 7))
    manager.take_events()
    manager.evict_blocks([0, 2])
    manager.free(request)
    equal(manager.take_events(), ())


@example("KV-EVT-5", "KV-EVT-4", "KV-POOL-11")
def a_reset_queues_one_event(bench: Bench) -> None:
    """AllCleared once for each successful reset, no Removed, and nothing for a refused one."""
    manager = bench.manager(6, enable_events=True)
    request = manager.started("r", range(1, 9))
    manager.take_events()
    holds(manager.reset_prefix_cache() is False)
    manager.free(request)
    equal(manager.take_events(), ())
    for _ in range(2):
        holds(manager.reset_prefix_cache() is True)
        equal(manager.take_events(), (AllBlocksCleared(),))


@example("KV-EVT-1", "KV-EVT-5")
def a_reset_is_told_after_what_was_told_before(bench: Bench) -> None:
    manager = bench.manager(8, enable_events=True)
    manager.free(manager.started("r", range(4)))
    holds(manager.reset_prefix_cache() is True)
    equal([type(event) for event in manager.take_events()], [BlockStored, AllBlocksCleared])


@cases(("sha256_cbor", 32), ("sha256_cbor_64bit", 8), ("xxhash_cbor", 16))
@example("KV-EVT-6", level=Level.IDENTITY)
def hashes_go_out_as_bytes_or_as_their_low_64_bits(bench: Bench, function: str, size: int) -> None:
    """In both forms for the parent too, without the group."""
    shown: dict[bool, list[Any]] = {}
    for as_ints in (False, True):
        manager = bench.manager(
            6,
            enable_events=True,
            int_event_hashes=as_ints,
            hash_function=function,
            trusted_tenants=True,
        )
        request = manager.request("r", range(1, 9))
        manager.admit(request, 4)
        manager.run(request, 4)
        manager.evict_blocks([1])
        first, second, gone = manager.take_events()
        holds(isinstance(first, BlockStored))
        holds(isinstance(second, BlockStored))
        holds(isinstance(gone, BlockRemoved))
        shown[as_ints] = [
            *first.block_hashes,
            second.parent_block_hash,
            *second.block_hashes,
            *gone.block_hashes,
        ]
        equal(shown[False], [request.block_hashes[i] for i in (0, 0, 1, 0)])
    equal({len(block_hash) for block_hash in shown[False]}, {size})
    equal(shown[True], [int.from_bytes(block_hash[-8:], "big") for block_hash in shown[False]])
    if function == "sha256_cbor":
        equal(shown[True][0], 2164874634404590027)


@example("KV-EVT-7", level=Level.IDENTITY, choices=("unhashed_freed_to", "removed_event_per"))
def the_fold_counts_copies(bench: Bench) -> None:
    """Stored twice and once; after one Removed, once each: what the blocks carry."""
    manager = bench.manager(6, enable_events=True)
    two_copies(manager, bench)
    manager.started("longer", range(1, 9))
    told: list[bytes | int] = []
    for event in manager.take_events():
        holds(isinstance(event, BlockStored))
        told += event.block_hashes
    equal(sorted(map(str, told)), sorted(map(str, [C9D5, C9D5, HASH_2412])))
    manager.evict_blocks([1])
    equal(manager.take_events(), (removed(C9D5),))
    carried = [key[:-4] for keys in manager.snapshot().block_keys for key in keys]
    equal(sorted(carried), sorted([C9D5, HASH_2412]))


@cases((1, 5, ((("img", 1),), (("img", -3),))), (5, 2, (None, (("img", 1),))))
@example("KV-EVT-8", "KV-HASH-8")
def extra_keys_are_told_per_block(bench: Bench, offset: int, length: int, told: object) -> None:
    """An item on tokens 1 … 5 is told of blocks 0 and 1, one on 5 and 6 of block 1 alone."""
    items = (MultimodalItem("img", offset, length),)
    (event,) = take_all(bench, range(1, 9), multimodal=items)
    holds(isinstance(event, BlockStored))
    equal(event.extra_keys, told)


@example("KV-EVT-8", "KV-HASH-10")
def a_salt_is_told_of_block_0_only(bench: Bench) -> None:
    """The first block has the salt, the second none; without any extra keys both have none."""
    (event,) = take_all(bench, range(1, 9), cache_salt="s")
    holds(isinstance(event, BlockStored))
    equal(event.extra_keys, (("s",), None))
    (plain,) = take_all(bench, range(1, 9))
    holds(isinstance(plain, BlockStored))
    equal(plain.extra_keys, (None, None))
