"""Examples of the chapters on requests and errors."""

from __future__ import annotations

from array import array
from typing import Any

from kvcheck.play.features import FEATURE_OF_ARGUMENT
from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds, raises
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import BlockReleaseError, InvalidArgumentError, StaleHitError, UnknownBlockError
from kvspec.interface import Feature
from kvspec.request import MultimodalItem, RequestInput


@example("KV-REQ-1", level=Level.SAFETY)
def a_request_has_a_name_and_ints_of_63_bits_as_tokens(bench: Bench) -> None:
    manager = bench.manager(4)
    before = manager.visible()
    wrong: tuple[Any, ...] = (-1, 2**63, True, 1.0, "1", None)
    for token in wrong:
        with raises(InvalidArgumentError, field="prompt_token_ids[1]"):
            manager.request("r", (5, token))
    for name, tokens in (("", (1,)), ("r", ())):
        with raises(InvalidArgumentError):
            manager.request(name, tokens)
    request = manager.request("r", (5, 2**63 - 1))
    equal(list(request.token_ids), [5, 2**63 - 1], "the largest legal token")
    equal(manager.visible(), before, "the manager afterwards")
    other = bench.manager(4).make_request(RequestInput("r", (1,)))
    equal(other.request_id, "r", "a name in another manager")


@example("KV-REQ-2", level=Level.SAFETY)
def appending_changes_no_manager(bench: Bench) -> None:
    """Appended tokens extend the request, and what they complete is cached by the next call."""
    manager = bench.manager(6)
    request = manager.started("r", range(1, 7))
    before, first = manager.visible(), request.block_hashes[0]
    manager.append(request, (7, 8))
    manager.append(request, ())
    equal(manager.visible(), before, "the manager afterwards")
    equal(list(request.token_ids), list(range(1, 9)), "tokens")
    equal(request.num_prompt_tokens, 6, "prompt tokens")
    equal((len(request.block_hashes), request.block_hashes[0]), (2, first), "hashes")
    for token in (-1, True, 2**63):
        with raises(InvalidArgumentError):
            manager.append(request, (9, token))
    equal(request.num_tokens, 8, "tokens after an error")
    probe = manager.request("p", range(1, 10))
    equal(manager.get_computed_blocks(probe).hit_length_tokens, 4, "a hit before")
    manager.run(request, 2)
    equal(manager.get_computed_blocks(probe).hit_length_tokens, 8, "and after the next step")


@example("KV-REQ-3", level=Level.SAFETY)
def computed_tokens_are_at_most_the_slots_that_the_request_holds(bench: Bench) -> None:
    manager = bench.manager(8)
    stranger = manager.request("s", range(9))
    request = manager.started("r", range(1, 7))
    before = manager.visible()
    wrong: tuple[tuple[Any, Any], ...] = (
        (request, 9),
        (request, -1),
        (request, True),
        (stranger, 4),
    )
    for asked, computed in wrong:
        right, asked.num_computed_tokens = asked.num_computed_tokens, computed
        with manager.refuses(InvalidArgumentError):
            manager.allocate_slots(asked, 1)
        asked.num_computed_tokens = right
    equal(manager.visible(), before, "the manager afterwards")
    if bench.has(Feature.DRAFTING):
        request.num_computed_tokens = 8  # ahead of the sampler: more than the 6 tokens there are
        holds(manager.allocate_slots(request, 1) is not None, "an engine may run ahead")


@example("KV-REQ-4", level=Level.SAFETY)
def items_are_sorted_and_do_not_overlap_one_may_reach_beyond_the_prompt(bench: Bench) -> None:
    bench.need(Feature.MULTIMODAL)
    manager = bench.manager(4)
    for offsets in (((2, 4), (5, 1)), ((6, 1), (2, 4)), ((2, 4), (2, 4))):
        items = tuple(MultimodalItem("i", *each) for each in offsets)
        with raises(InvalidArgumentError):
            manager.request("r", range(9), multimodal=items)
    for offset, length in ((-1, 1), (0, 0)):
        with raises(InvalidArgumentError):
            MultimodalItem("i", offset, length)
    legal = (MultimodalItem("i", 2, 4), MultimodalItem("j", 6, 10))
    request = manager.request("r", range(9), multimodal=legal)
    equal(len(request.block_hashes), 2, "hashes beside an item that goes on")


@example("KV-REQ-5", level=Level.SAFETY)
def tokens_may_come_as_an_array_which_is_read_at_once(bench: Bench) -> None:
    manager = bench.manager(6)
    listed = manager.request("l", (1, 2, 3, 4))
    tokens = array("i", (1, 2, 3, 4))
    request = manager.make_request(RequestInput("r", tokens))
    manager.append(request, array("q", (5, 6)))
    tokens[0] = 9
    equal(list(request.token_ids), [1, 2, 3, 4, 5, 6], "tokens")
    equal(list(request.block_hashes), list(listed.block_hashes), "hashes")
    wrong: tuple[Any, ...] = ({1, 2}, array("d", (1.0, 2.0)), 7)
    for appended in wrong:
        with raises(InvalidArgumentError):
            manager.append(request, appended)
    equal(request.num_tokens, 6, "tokens after errors")


@example("KV-ERR-1", level=Level.SAFETY)
def no_room_is_none_a_reset_of_a_pool_in_use_is_false(bench: Bench) -> None:
    manager = bench.manager(4)
    request = manager.started("r", range(6))
    late = manager.request("late", range(50, 59))
    for _ in range(2):
        equal(manager.admit(late), None, "an allocation that does not fit")
    if bench.has(Feature.DRAFTING):  # more than the request has
        huge = manager.allocate_slots(late, 1000)
        equal(huge, None, "an allocation that can never fit")
    if bench.has(Feature.RESET):
        holds(manager.reset_prefix_cache() is False, "a reset of a pool in use is False")
    manager.free(request)
    holds(manager.admit(late) is not None, "it fits after a free")


@example("KV-ERR-2", "KV-MGR-3", "KV-MGR-8", level=Level.SAFETY)
def illegal_calls_change_nothing(bench: Bench) -> None:
    """An illegal call raises a typed error and changes nothing, queues and counts included."""
    manager = bench.manager(6)
    request = manager.started("r", range(6))
    late = manager.request("late", range(50, 59))
    before = manager.visible()
    wrong: tuple[dict[str, Any], ...] = (
        {"num_new_tokens": 0},
        {"num_new_tokens": -1},
        {"num_new_tokens": 1.0},
        {"num_new_tokens": True},
        {"num_new_tokens": 1, "num_lookahead_tokens": -1},
        {"num_new_tokens": 1, "num_external_computed_tokens": -1},
        {"num_new_tokens": 1, "num_encoder_tokens": -1},
        {"num_new_tokens": 1, "reserved_blocks": -1},
        {"num_new_tokens": 1, "num_new_computed_tokens": -4},
        {"num_new_tokens": 1, "num_new_computed_tokens": 4},
    )
    features = bench.subject.capabilities.features
    for arguments in wrong:
        needed = {FEATURE_OF_ARGUMENT[name] for name in arguments if name in FEATURE_OF_ARGUMENT}
        if not needed <= features:
            continue
        for asked in (late, request):
            with manager.refuses(InvalidArgumentError):
                manager.allocate_slots(asked, **arguments)
            equal(manager.visible(), before, "the state after it")
    if bench.has(Feature.DELAYED_CACHING):
        for count in (-1, 7, True, 1.5):
            with manager.refuses(InvalidArgumentError):
                manager.cache_blocks(request, count)
    if bench.has(Feature.SKIPPED_REMOVAL):
        with manager.refuses(InvalidArgumentError):
            manager.remove_skipped_blocks(request, -1)
    equal(manager.visible(), before, "the state after all")


@example("KV-ERR-6", level=Level.SAFETY)
def a_count_is_at_most_2_53_1(bench: Bench) -> None:
    manager = bench.manager(6)
    request = manager.started("r", range(6))
    late = manager.request("late", range(50, 59))
    before = manager.visible()
    for count in (2**53, 2**63, 2**64):
        allocate = manager.allocate_slots
        with raises(InvalidArgumentError, field="num_new_tokens"):
            allocate(late, count)
        if bench.has(Feature.DRAFTING):
            with raises(InvalidArgumentError):
                allocate(late, 1, num_lookahead_tokens=count)
        request.num_computed_tokens = count
        with raises(InvalidArgumentError):
            allocate(request, 1)
        request.num_computed_tokens = 6
    equal(manager.visible(), before, "the state afterwards")


@example("KV-MGR-4", "KV-ERR-6", level=Level.BEHAVIOUR)
def new_tokens_beyond_the_longest_sequence_are_illegal_however_many(bench: Bench) -> None:
    bench.need(Feature.DRAFTING)  # more than the request has
    manager = bench.manager(20, max_model_len_tokens=16)
    request = manager.request("r", range(9))
    before = manager.visible()
    for count in (17, 2**40, 2**53 - 1):
        with manager.refuses(InvalidArgumentError, field="num_new_tokens"):
            manager.allocate_slots(request, count)
    equal(manager.visible(), before, "the state afterwards")


@example("KV-ERR-3", "KV-POOL-9", "KV-POOL-10", level=Level.SAFETY)
def ids_are_checked(bench: Bench) -> None:
    """A block id outside the pool is an UnknownBlockError, before anything happens."""
    bench.need(Feature.EVICTION_BY_ID, Feature.DEFERRED_FREE)
    manager = bench.manager(6)
    request = manager.started("r", range(6))
    blocks = manager.pop_blocks_for_free(request)
    before = manager.visible()
    wrong: tuple[Any, ...] = (-1, 6, 10**12, True, 1.0, "1", None)
    for block in wrong:
        for name in ("evict_blocks", "free_blocks"):
            call = getattr(manager, name)
            with raises(UnknownBlockError) as caught:
                call([*blocks, block])
            error = caught.value
            shown = (getattr(error, "block_id", None), getattr(error, "num_blocks", None))
            equal(shown, (block, 6), "what the error carries")
    equal(manager.visible(), before, "the state after it")
    twice = [*blocks, blocks[0]]
    with manager.refuses(BlockReleaseError):
        manager.free_blocks(twice)
    equal(manager.visible(), before, "the state after that")
    manager.evict_blocks([0])
    manager.free_blocks([0, *reversed(blocks), 0])
    equal(manager.num_free_blocks, 5, "free blocks in the end")
    with manager.refuses(BlockReleaseError):
        manager.free_blocks(blocks)


@example("KV-ERR-4", level=Level.SAFETY)
def calls_about_a_request_that_the_manager_does_not_know_are_no_errors(bench: Bench) -> None:
    manager = bench.manager(6)
    manager.started("known", range(6))
    stranger = manager.request("stranger", range(9))
    before = manager.visible()
    for _ in range(2):
        manager.free(stranger)
        if bench.has(Feature.DELAYED_CACHING):
            manager.cache_blocks(stranger, 8)
        if bench.has(Feature.SKIPPED_REMOVAL):
            manager.remove_skipped_blocks(stranger, 8)
        if bench.has(Feature.DEFERRED_FREE):
            equal(tuple(manager.pop_blocks_for_free(stranger)), (), "popped")
        if bench.has(Feature.UNHASHED_BLOCKS):
            unhashed = [list(ids) for ids in manager.get_unhashed_block_ids(stranger)]
            equal(unhashed, [[]], "unhashed")
        if bench.has(Feature.COMMON_PREFIX):
            common = tuple(manager.get_num_common_prefix_blocks(stranger))
            equal(common, (0,), "common prefix")
        equal(manager.get_blocks(stranger).to_lists(), [[]], "blocks")
    equal(manager.visible(), before, "the state afterwards")


@example("KV-MGR-8", level=Level.SAFETY)
def a_hit_is_checked_block_by_block_and_for_its_length(bench: Bench) -> None:
    manager = bench.manager(5)
    first = manager.started("first", range(8))
    manager.free(first)
    late = manager.request("late", range(9))
    hit = manager.get_computed_blocks(late)
    equal(hit.hit_length_tokens, 8, "the hit")
    taker = manager.started("taker", range(50, 62))  # takes both free ones and one cached
    before = manager.visible()

    def allocate(length: int, blocks: Any) -> object:
        return manager.allocate_slots(
            late, 1, num_new_computed_tokens=length, new_computed_blocks=blocks
        )

    with raises(StaleHitError) as caught:
        allocate(8, hit.blocks)
    error = caught.value
    equal(getattr(error, "group", None), 0, "the group in the error")
    outside = KVCacheBlocks(((5,),))
    with raises(UnknownBlockError):
        allocate(4, outside)
    wrong_length = ((4, hit.blocks), (8, None), (0, hit.blocks), (7, hit.blocks))
    for length, given in wrong_length:
        with raises(InvalidArgumentError):
            allocate(length, given)
    equal(manager.visible(), before, "the state afterwards")
    manager.free(taker)
    again = manager.get_computed_blocks(late)
    holds(allocate(again.hit_length_tokens, again.blocks) is not None, "a new look-up is taken")


@example("KV-GRP-9", level=Level.SAFETY)
def no_hits_under_way(bench: Bench) -> None:
    """A request under way takes no hits, and one without an entry no external tokens either."""
    bench.need(Feature.EXTERNAL_TOKENS, Feature.DRAFTING)
    manager = bench.manager(8)
    manager.started("first", range(8))
    running = manager.started("running", (*range(4), 50, 51))
    begun = manager.started("begun", (60, 61, 62))
    probe = manager.request("probe", range(9))
    hit = manager.get_computed_blocks(probe).blocks
    before = manager.visible()
    for request in (running, begun):
        arguments: dict[str, Any] = {"num_new_computed_tokens": 8, "new_computed_blocks": hit}
        with manager.refuses(InvalidArgumentError):
            manager.allocate_slots(request, 1, **arguments)
    with manager.refuses(InvalidArgumentError):
        manager.allocate_slots(begun, 1, num_external_computed_tokens=4)
    equal(manager.visible(), before, "the state afterwards")
    granted = manager.allocate_slots(running, 1, num_external_computed_tokens=4)
    equal(granted is not None and [len(b) for b in granted.to_lists()], [1])
