"""KV-MGR at the edges: the last token, one external token, the longest sequence, an empty list."""

from __future__ import annotations

from dataclasses import replace

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import mamba, sliding
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, StaleHitError
from kvspec.interface import Feature
from kvspec.request import Request
from kvspec.snapshot import RequestState


def one_of_a_cached_text(bench: Bench, window: int, num_tokens: int) -> tuple[Managed, Request]:
    """Blocks 1, 2 and 3 hold tokens 0 … 11 in a window; a second request begins like them."""
    manager = bench.manager(10, sliding(4, window))
    manager.admit(manager.request("first", range(12)))
    return manager, manager.request("second", range(num_tokens))


def take(manager: Managed, request: Request, blocks: tuple[int, int], external: int) -> None:
    """Allocate one token behind two hit blocks and so many external tokens; it must fit."""
    answer = manager.allocate_slots(
        request,
        1,
        num_new_computed_tokens=8,
        new_computed_blocks=KVCacheBlocks((blocks,)),
        num_external_computed_tokens=external,
    )
    holds(answer is not None)


@cases((8, 0, (0, 2)), (8, 0, (1, 2)), (9, 1, (0, 2)), (9, 1, (1, 2)))
@example("KV-MGR-8", "KV-MGR-4", "KV-GRP-5", level=Level.IDENTITY)
def a_hit_block_that_is_skipped_may_be_null_and_becomes_it(
    bench: Bench, num_tokens: int, external: int, offered: tuple[int, int]
) -> None:
    """W = 5: s(8) = 4, so the first block is skipped."""
    bench.need(Feature.DRAFTING)
    manager, request = one_of_a_cached_text(bench, 5, num_tokens)
    take(manager, request, offered, external)
    equal(manager.blocks(request)[:2], [0, 2])
    equal(manager.references()[1], 1)


@cases((8, 0), (9, 1))
@example("KV-MGR-8", "KV-MGR-4", "KV-GRP-5", level=Level.IDENTITY)
def a_hit_block_of_which_one_token_is_read_is_no_null(
    bench: Bench, num_tokens: int, external: int
) -> None:
    """W = 6: s(8) = 3, and token 3 lies in the first block."""
    bench.need(Feature.DRAFTING)
    manager, request = one_of_a_cached_text(bench, 6, num_tokens)
    before = manager.everything()
    with raises(StaleHitError) as caught:
        take(manager, request, (0, 2), external)
    equal((caught.value.group, caught.value.index, caught.value.block_id), (0, 0, 0))
    equal(manager.everything(), before)
    take(manager, request, (1, 2), external)
    equal(manager.blocks(request)[:2], [1, 2])


@example("KV-MGR-8")
def what_follows_a_null_is_looked_at(bench: Bench) -> None:
    """W = 5: the first may be null, the second must be block 2."""
    manager, request = one_of_a_cached_text(bench, 5, 9)
    with raises(StaleHitError) as caught:
        take(manager, request, (0, 1), 0)
    equal((caught.value.group, caught.value.index, caught.value.block_id), (0, 1, 1))


@example("KV-GRP-9", "KV-MGR-20", level=Level.IDENTITY)
def an_entry_alone_makes_a_request_running(bench: Bench) -> None:
    """Restored with a count of 0 and an empty list: no hits for it, and no external blocks."""
    manager = bench.story()[0]
    state = manager.snapshot()
    only_an_entry = RequestState(((),), (0,), (None,))
    known = replace(state, requests={**state.requests, "c": only_an_entry})
    restored = bench.restore(manager.config, known)
    equal(restored.snapshot(), known)
    request = restored.request("c", range(1, 10))
    hit = restored.get_computed_blocks(request)
    equal(hit.blocks.to_lists(), [[1, 2]])
    with raises(InvalidArgumentError, field="new_computed_blocks"):
        restored.allocate_slots(
            request, 1, num_new_computed_tokens=8, new_computed_blocks=hit.blocks
        )
    answer = restored.allocate_slots(request, 0, num_external_computed_tokens=4)
    equal(answer, KVCacheBlocks(((5,),)))


@example("KV-GRP-5", "KV-GRP-6", "KV-MGR-3", level=Level.IDENTITY)
def one_external_token_is_a_load(bench: Bench) -> None:
    """B = 1: a count of 0, block 1 for the load, and block 2 alone in the answer."""
    manager = bench.manager(6, 1)
    request = manager.request("r", range(5))
    answer = manager.allocate_slots(
        request, 1, num_external_computed_tokens=1, delay_cache_blocks=True
    )
    equal(answer, KVCacheBlocks(((2,),)))
    equal(manager.blocks(request), [1, 2])
    equal(manager.snapshot().requests["r"].num_cached_blocks, (0,))


@example("KV-MGR-5", "KV-GRP-3", level=Level.IDENTITY)
def the_gate_counts_what_the_request_holds(bench: Bench) -> None:
    """16 tokens, of which 8 are computed: two blocks more, and two are free."""
    manager = bench.manager(5)
    request = manager.request("r", range(16))
    manager.admit(request, 8)
    equal(manager.num_free_blocks, 2)
    answer = manager.allocate_slots(request, 4, full_sequence_must_fit=True)
    equal(answer, KVCacheBlocks(((3,),)))


@example("KV-MGR-5", "KV-MAMBA-6", level=Level.IDENTITY)
def the_gate_counts_main_tokens_up_to_the_end(bench: Bench) -> None:
    """Align, S = 0: 6 of 20 tokens end in entry 1, which is held, but 20 end in entry 4."""
    manager = bench.manager(2, mamba(4, "align"))
    request = manager.request("r", range(20))
    manager.run(request, 5)[0]
    equal(manager.lists(request), [[0, 1]])
    before = manager.visible()
    equal(manager.allocate_slots(request, 1, full_sequence_must_fit=True), None)
    equal(manager.visible(), before)
    equal(manager.run(request), [[]])


@example("KV-MGR-5")
def a_sequence_that_does_not_fit_releases_nothing(bench: Bench) -> None:
    """What no longer is read stays until it is known that the whole sequence fits."""
    manager = bench.manager(7, sliding(2, 3))
    request = manager.request("r", range(20))
    manager.admit(request, 6)
    manager.started("other", (90, 91, 92))
    before = manager.visible()
    equal(manager.allocate_slots(request, 4, full_sequence_must_fit=True), None)
    equal(manager.visible(), before)


@cases((3, False), (4, True))
@example("KV-MGR-5", "KV-MGR-4")
def the_gate_skips_no_further_than_the_longest_sequence(
    bench: Bench, num_blocks: int, fits: bool
) -> None:
    """Longest 17, W = 7, 40 external tokens: the gate asks for cdiv(17, 4) - s(17) // 4 = 3.

    The allocation itself needs 2: cdiv(40, 4) - s(40) // 4, with s(40) = 34.
    """
    manager = bench.manager(num_blocks, sliding(4, 7), max_model_len_tokens=17)
    request = manager.request("r", range(60))
    answer = manager.allocate_slots(
        request, 0, num_external_computed_tokens=40, full_sequence_must_fit=True
    )
    holds((answer is not None) is fits)
    equal(manager.num_free_blocks, num_blocks - 1 - 2 * fits)
