"""The chapter on partial entries (KV-PART): keys at finer boundaries inside a larger block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import full, mamba, sliding
from kvspec.errors import InvalidArgumentError, KVSpecError
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvspec.interface import Feature
from kvspec.request import LoRA, Request

FINE = (full(4), sliding(16, 32))
"""H = 4, and a group whose blocks cover four hashes."""


@dataclass(frozen=True)
class Story:
    """14 of 30 tokens are computed; the second group holds one block, not cached."""

    bench: Bench
    manager: Managed
    request: Request
    block: int

    def register(self, *lengths: int) -> None:
        """Partial entries in group 1, one after another, each of which must be made."""
        for n in lengths:
            made = self.manager.cache_partial_block(self.request, 1, n)
            equal(made, True, f"an entry of {n} tokens")

    def key(self, n: int) -> bytes:
        """The key of the first n tokens in group 1."""
        return bytes(self.request.block_hashes[n // 4 - 1]) + b"\0\0\0\1"

    def has_keys(self, *lengths: int, covered: int | None = None) -> None:
        """The block's keys are those of these prefixes, the primary one first."""
        if not self.bench.has(Feature.SNAPSHOT):
            return
        shown = self.manager.snapshot()
        keys = [self.key(n) for n in lengths]
        equal(list(shown.block_keys[self.block]), keys)
        if covered is not None:
            equal(shown.covered_tokens[self.block], covered)

    def events(self) -> list[Event]:
        """The events of group 1."""
        return [e for e in self.manager.take_events() if getattr(e, "group", 1) == 1]

    def removes(self, events: Sequence[Event], *lengths: int) -> None:
        """These are Removed events of these prefixes."""
        hashes = [self.request.block_hashes[n // 4 - 1] for n in lengths]
        expected = [BlockRemoved((block_hash,), "GPU", 1) for block_hash in hashes]
        equal(list(events), expected)


def tell(bench: Bench, num_tokens: int = 14, **content: Any) -> Story:
    """The story, its events taken."""
    manager = bench.manager(13, *FINE, enable_events=True)
    request = manager.request("a", range(1, 31), **content)
    manager.admit(request, num_tokens)
    manager.take_events()
    return Story(bench, manager, request, manager.lists(request)[1][-1])


@example("KV-PART-1", "KV-HASH-5", "KV-HASH-6")
def a_partial_entry_has_the_key_of_the_hash_that_ends_there(bench: Bench) -> None:
    """A partial entry has the key of the hash that ends there, and of the group."""
    for n in (4, 8, 12):
        story = tell(bench)
        story.register(n)
        story.has_keys(n, covered=n)
        order = story.manager.snapshot().lookup_order
        equal(order.get(story.key(n)), (story.block,))


@example("KV-PART-1")
def a_partial_entry_belongs_to_the_block_in_which_it_ends(bench: Bench) -> None:
    """A partial entry belongs to the block in which it ends, and covers all tokens before."""
    story = tell(bench, 30)
    story.register(20)
    story.has_keys(20, covered=20)


@example("KV-PART-1", "KV-POOL-1")
def the_null_block_gets_no_key(bench: Bench) -> None:
    """The null block gets no key: False, and nothing happens."""
    manager = bench.manager(20, full(4), sliding(16, 4), enable_events=True)
    request = manager.started("a", range(30))
    manager.remove_skipped_blocks(request, 24)
    equal(manager.null_positions(request, 1), [0])
    manager.take_events()
    before = manager.visible()
    equal(manager.cache_partial_block(request, 1, 8), False)
    equal(manager.visible(), before)
    equal(tuple(manager.take_events()), ())


@example("KV-PART-1", "KV-ERR-2", level=Level.SAFETY)
def other_boundaries_are_refused(bench: Bench) -> None:
    """Boundaries of whole blocks, between hashes or beyond what is held are refused."""
    story = tell(bench)
    call, request = story.manager.cache_partial_block, story.request
    for n in (16, 6, 20, 32, 0, -4, True):
        with story.manager.refuses(InvalidArgumentError, field="num_tokens"):
            call(request, 1, n)
    for group in (0, 2, -1, True):
        with story.manager.refuses(InvalidArgumentError, field="group"):
            call(request, group, 12)


@example("KV-PART-1", level=Level.SAFETY)
def a_partial_entry_needs_hashes_and_blocks(bench: Bench) -> None:
    """A partial entry needs hashes and blocks: 10 tokens have two."""
    manager = bench.manager(20, *FINE)
    request = manager.request("a", range(10))
    with manager.refuses(KVSpecError):
        manager.cache_partial_block(request, 1, 8)
    manager.admit(request)
    with manager.refuses(InvalidArgumentError):
        manager.cache_partial_block(request, 1, 12)
    equal(manager.cache_partial_block(request, 1, 8), True)


@example("KV-PART-1", level=Level.SAFETY)
def without_finer_hashes_there_are_no_partial_entries(bench: Bench) -> None:
    """Without caching nothing has a hash, and with one group none is finer than its blocks."""
    for specs, options in ((FINE, {"enable_caching": False}),
                           ((full(16),), {"hash_block_size_tokens": 4})):  # fmt: skip
        manager = bench.manager(20, *specs, **options)
        request = manager.started("a", range(14))
        call = manager.cache_partial_block
        with manager.refuses(InvalidArgumentError, field="group"):
            call(request, 0, 12)


@example("KV-PART-2")
def a_shorter_boundary_becomes_an_additional_key(bench: Bench) -> None:
    """A shorter boundary becomes an additional key; the same again changes nothing."""
    story = tell(bench)
    story.register(12, 8, 4)
    story.has_keys(12, 8, 4, covered=12)
    before = story.manager.visible()
    story.register(12, 8, 4)
    equal(story.manager.visible(), before)


@example("KV-PART-2", "KV-POOL-13", "KV-POOL-14")
def a_copy_comes_behind_the_first_in_the_look_up_order(bench: Bench) -> None:
    story = tell(bench)
    other = story.manager.request("b", range(1, 31))
    story.manager.allocate_slots(other, 14)
    story.register(8)
    equal(story.manager.cache_partial_block(other, 1, 8), True)
    order = story.manager.snapshot().lookup_order.get(story.key(8))
    copy = story.manager.lists(other)[1][0]
    equal(order, (story.block, copy), "the look-up order")


@example("KV-PART-2", "KV-POOL-18")
def a_full_block_takes_additional_keys_behind_its_own(bench: Bench) -> None:
    story = tell(bench, 16)
    story.register(8)
    story.has_keys(16, 8, covered=16)
    equal(len(story.events()), 1)


@example("KV-PART-3", "KV-EVT-4")
def a_longer_boundary_replaces_all_keys(bench: Bench) -> None:
    """A longer boundary replaces all keys, which are removed, the primary first."""
    story = tell(bench)
    story.register(8, 4)
    story.manager.take_events()
    story.register(12)
    story.has_keys(12)
    *gone, stored = story.events()
    story.removes(gone, 8, 4)
    equal(type(stored), BlockStored)


@example("KV-PART-3")
def the_primary_key_decides_and_not_the_longest(bench: Bench) -> None:
    """The primary key decides and not the longest: behind 12 all stay."""
    story = tell(bench)
    story.register(12, 4, 8)
    story.has_keys(12, 4, 8)


@example("KV-PART-4", "KV-EVT-8")
def the_event_is_one_link_of_the_chain(bench: Bench) -> None:
    """The event is one link of the chain: one hash, its tokens and its parent."""
    for n in (12, 8, 4):
        story = tell(bench, cache_salt="salt", lora=LoRA("adapter", 3))
        hashes = story.request.block_hashes
        story.register(n)
        found = story.events()
        for each in found:
            equal(type(each), BlockStored)
        extra = ("adapter", "salt") if n == 4 else ("adapter",)
        stored = BlockStored(
            block_hashes=(hashes[n // 4 - 1],),
            parent_block_hash=None if n == 4 else hashes[n // 4 - 2],
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
        equal(found, [stored], f"the event of {n} tokens")


@example("KV-PART-4")
def a_key_that_is_there_is_not_told_again(bench: Bench) -> None:
    story = tell(bench)
    story.register(12, 8)
    story.manager.take_events()
    story.register(12, 8)
    equal(story.events(), [])


@example("KV-PART-5", "KV-POOL-10")
def eviction_by_id_drops_every_key(bench: Bench) -> None:
    """Eviction by id drops every key, the primary first."""
    story = tell(bench)
    story.register(12, 8, 4)
    story.manager.take_events()
    story.manager.evict_blocks([story.block])
    story.has_keys()
    story.removes(story.events(), 12, 8, 4)


@example("KV-PART-5", "KV-POOL-4", "KV-POOL-6")
def taking_the_block_drops_every_key(bench: Bench) -> None:
    """Freed, a block with partial keys goes to the back; taken, it loses all of them."""
    story = tell(bench)
    story.register(12, 8)
    story.manager.free(story.request)
    story.manager.queues([4, 3, 2, 1, *range(6, 13), 5])
    story.manager.take_events()
    other = story.manager.request("b", range(50, 83))  # 33 tokens take 9 + 3 blocks
    story.manager.allocate_slots(other, 33, delay_cache_blocks=True)
    story.has_keys()
    story.removes(story.events(), 12, 8)


@example("KV-PART-5", "KV-POOL-11", "KV-EVT-5")
def a_reset_drops_every_key(bench: Bench) -> None:
    """A reset drops every key, with one event for everything."""
    story = tell(bench)
    story.register(12, 8)
    story.manager.free(story.request)
    story.manager.take_events()
    equal(story.manager.reset_prefix_cache(), True)
    story.has_keys()
    equal(story.events(), [AllBlocksCleared()])


@example("KV-PART-5", "KV-POOL-18", "KV-GRP-11", "KV-EVT-4")
def promotion_drops_every_partial_key(bench: Bench) -> None:
    """Promotion drops every partial key, and then tells the whole block."""
    story = tell(bench)
    story.register(12, 8, 4)
    story.manager.take_events()
    story.manager.run(story.request, 4)  # 18 tokens are computed
    story.has_keys(16, covered=16)
    *gone, stored = story.events()
    story.removes(gone, 12, 8, 4)
    equal(type(stored), BlockStored)
    shown = [getattr(stored, name) for name in ("block_hashes", "token_ids", "block_size_tokens")]
    whole = [(story.request.block_hashes[3],), tuple(range(1, 17)), 16]
    equal(shown, whole, "the whole block")


@example("KV-PART-5", "KV-RET-6")
def a_block_that_is_passed_over_keeps_its_partial_keys(bench: Bench) -> None:
    """A block that is passed over keeps its partial keys: 40 tokens are replayed from 32."""
    manager = bench.manager(20, full(4), mamba(16), retention_interval_tokens=0)
    request = manager.request("a", range(40))
    manager.admit(request, 14)
    story = Story(bench, manager, request, manager.lists(request)[1][0])
    story.register(12)
    manager.run(request, 4)
    story.has_keys(12)
