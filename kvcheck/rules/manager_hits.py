"""KV-MGR-8: hits are checked when they are used."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import full, sliding
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, StaleHitError, UnknownBlockError
from kvspec.request import Request


def offer(manager: Managed, request: Request, blocks: object, tokens: object) -> None:
    """Allocate one token with these hit blocks and hit tokens."""
    manager.allocate_slots(request, 1, num_new_computed_tokens=tokens, new_computed_blocks=blocks)


@example("KV-MGR-8", "KV-MGR-2", level=Level.SAFETY)
def a_stale_hit_is_found_out(bench: Bench) -> None:
    """Block 2 of the answer was given to another request: group 0, index 1, block 2."""
    manager = bench.manager(3)
    manager.free(manager.started("first", range(8)))
    request = manager.request("a", range(9))
    hit = manager.get_computed_blocks(request)
    manager.same(hit.blocks, [[1, 2]])
    taker = manager.started("taker", [50])
    with manager.refuses(StaleHitError, group=0) as caught:
        offer(manager, request, hit.blocks, 8)
    if manager.exact:
        equal((caught.value.index, caught.value.block_id), (1, 2))
        equal(manager.hit(request), [1])
    manager.free(taker)
    again = manager.get_computed_blocks(request)
    offer(manager, request, again.blocks, again.hit_length_tokens)


@cases(
    (((0, 1),), 4),
    (None, 4),
    (((),), 4),
    (((0,),), 5),
    (((0,),), 0),
    (((0, 1),), 7),
    ((), 0),
    (((0,), (0,)), 4),
)
@example("KV-MGR-8", level=Level.SAFETY)
def hits_cover_exactly_their_tokens(
    bench: Bench, lists: tuple[tuple[int, ...], ...] | None, tokens: int
) -> None:
    """A wrong number of lists or of blocks is an InvalidArgumentError, no StaleHitError."""
    manager, a, _ = bench.story()
    held = manager.blocks(a)
    blocks = None
    if lists is not None:
        blocks = KVCacheBlocks(tuple([held[i] for i in each] for each in lists))
    request = manager.request("c", range(1, 10))
    with manager.refuses(InvalidArgumentError) as caught:
        offer(manager, request, blocks, tokens)
    holds(not isinstance(caught.value, StaleHitError))


@cases(((2, 1),), ((1, 1),), ((1, 3),), ((1, 5),), ((1, 0),), ((0, 2),), ((4, 2),))
@example("KV-MGR-8", level=Level.SAFETY)
def hits_carry_the_key_of_their_place(bench: Bench, blocks: tuple[int, ...]) -> None:
    """Wrong order, uncached blocks, and null where it is needed are stale hits."""
    manager = bench.story()[0]
    request = manager.request("c", range(1, 10))
    with manager.refuses(StaleHitError):
        offer(manager, request, KVCacheBlocks((blocks,)), 8)


@example("KV-MGR-8", level=Level.SAFETY)
def hits_end_with_the_hashes_of_the_request(bench: Bench) -> None:
    """A request of 7 tokens has one hash: its second block cannot be a hit."""
    manager, a, _ = bench.story()
    request = manager.request("c", range(1, 8))
    with manager.refuses(StaleHitError, index=1):
        offer(manager, request, KVCacheBlocks((manager.blocks(a)[:2],)), 8)


@cases(-1, 6, True, 1.0, None, "1")
@example("KV-MGR-8", "KV-ERR-3", level=Level.SAFETY)
def hits_are_blocks_of_the_pool(bench: Bench, bad: int) -> None:
    """What is no block id is an UnknownBlockError."""
    manager, a, _ = bench.story()
    request = manager.request("c", range(1, 10))
    with manager.refuses(UnknownBlockError):
        offer(manager, request, KVCacheBlocks(((manager.blocks(a)[0], bad),)), 8)


@cases(None, 7, True)
@example("KV-MGR-8", "KV-ERR-2", level=Level.SAFETY)
def blocks_are_one_sequence_per_group(bench: Bench, bad: tuple[tuple[int, ...], ...]) -> None:
    """What cannot be a list of lists is refused when the value is made."""
    with raises(InvalidArgumentError):
        KVCacheBlocks(bad)


@example("KV-MGR-8")
def a_hit_carries_the_key_of_its_own_group(bench: Bench) -> None:
    """The lists of the two groups, exchanged."""
    manager = bench.manager(20, full(2), sliding(2, 9))
    manager.free(manager.started("first", range(4)))
    request = manager.request("r", range(5))
    hit = manager.get_computed_blocks(request)
    equal(hit.hit_length_tokens, 4)
    with manager.refuses(StaleHitError):
        offer(manager, request, KVCacheBlocks(hit.blocks.groups[::-1]), 4)
