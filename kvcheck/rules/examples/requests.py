"""Examples of the chapters on requests and errors."""

from __future__ import annotations

from array import array
from typing import Any

from kvcheck.play.features import FEATURE_OF_ARGUMENT
from kvcheck.play.verdicts import Level
from kvcheck.rules.examples.bench import Bench
from kvcheck.rules.examples.example import example
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import BlockReleaseError, InvalidArgumentError, StaleHitError, UnknownBlockError
from kvspec.interface import Feature
from kvspec.request import MultimodalItem, RequestInput


@example("KV-REQ-1", level=Level.SAFETY)
def tokens_are_ints(bench: Bench) -> None:
    """A request has a name, and ints of 63 bits as tokens."""
    manager = bench.manager(4)
    before = bench.visible(manager)
    wrong: tuple[Any, ...] = (-1, 2**63, True, 1.0, "1", None)
    for token in wrong:
        bench.raises(
            f"a token {token!r}",
            InvalidArgumentError,
            bench.request,
            manager,
            "r",
            (5, token),
            field="prompt_token_ids[1]",
        )
    for name, tokens in (("", (1,)), ("r", ())):
        bench.raises(
            f"a request {name!r} of {tokens}",
            InvalidArgumentError,
            bench.request,
            manager,
            name,
            tokens,
        )
    request = bench.request(manager, "r", (5, 2**63 - 1))
    bench.equal("the largest legal token", [5, 2**63 - 1], list(request.token_ids))
    bench.equal("the manager afterwards", before, bench.visible(manager))
    other = bench.subject.make_request(bench.manager(4), RequestInput("r", (1,)))
    bench.equal("a name in another manager", "r", other.request_id)


@example("KV-REQ-2", level=Level.SAFETY)
def appending_changes_no_manager(bench: Bench) -> None:
    """Appended tokens extend the request, and what they complete is cached by the next call."""
    manager = bench.manager(6)
    request = bench.started(manager, "r", range(1, 7))
    before, first = bench.visible(manager), request.block_hashes[0]
    bench.subject.append_tokens(manager, request, (7, 8))
    bench.subject.append_tokens(manager, request, ())
    bench.equal("the manager afterwards", before, bench.visible(manager))
    bench.equal("tokens", list(range(1, 9)), list(request.token_ids))
    bench.equal("prompt tokens", 6, request.num_prompt_tokens)
    bench.equal("hashes", (2, first), (len(request.block_hashes), request.block_hashes[0]))
    for token in (-1, True, 2**63):
        bench.raises(
            f"appending {token!r}",
            InvalidArgumentError,
            bench.subject.append_tokens,
            manager,
            request,
            (9, token),
        )
    bench.equal("tokens after an error", 8, request.num_tokens)
    probe = bench.request(manager, "p", range(1, 10))
    bench.equal("a hit before", 4, manager.get_computed_blocks(probe).hit_length_tokens)
    bench.run(manager, request, 2)
    bench.equal("and after the next step", 8, manager.get_computed_blocks(probe).hit_length_tokens)


@example("KV-REQ-3", level=Level.SAFETY)
def computed_tokens_have_slots(bench: Bench) -> None:
    """Computed tokens are at most the slots that the request holds."""
    manager = bench.manager(8)
    stranger = bench.request(manager, "s", range(9))
    request = bench.started(manager, "r", range(1, 7))
    before = bench.visible(manager)
    wrong: tuple[tuple[Any, Any], ...] = (
        (request, 9),
        (request, -1),
        (request, True),
        (stranger, 4),
    )
    for asked, computed in wrong:
        right, asked.num_computed_tokens = asked.num_computed_tokens, computed
        bench.raises(
            f"{computed!r} computed tokens", InvalidArgumentError, manager.allocate_slots, asked, 1
        )
        asked.num_computed_tokens = right
    bench.equal("the manager afterwards", before, bench.visible(manager))
    if bench.has(Feature.DRAFTING):
        request.num_computed_tokens = 8  # ahead of the sampler: more than the 6 tokens there are
        bench.holds("an engine may run ahead", manager.allocate_slots(request, 1) is not None)


@example("KV-REQ-4", level=Level.SAFETY)
def items_are_sorted(bench: Bench) -> None:
    """Items are sorted and do not overlap; one may reach beyond the prompt."""
    bench.need(Feature.MULTIMODAL)
    manager = bench.manager(4)
    for offsets in (((2, 4), (5, 1)), ((6, 1), (2, 4)), ((2, 4), (2, 4))):
        items = tuple(MultimodalItem("i", *each) for each in offsets)
        bench.raises(
            f"items at {offsets}",
            InvalidArgumentError,
            bench.request,
            manager,
            "r",
            range(9),
            multimodal=items,
        )
    for offset, length in ((-1, 1), (0, 0)):
        bench.raises(
            f"an item of {length} at {offset}",
            InvalidArgumentError,
            MultimodalItem,
            "i",
            offset,
            length,
        )
    legal = (MultimodalItem("i", 2, 4), MultimodalItem("j", 6, 10))
    request = bench.request(manager, "r", range(9), multimodal=legal)
    bench.equal("hashes beside an item that goes on", 2, len(request.block_hashes))


@example("KV-REQ-5", level=Level.SAFETY)
def arrays(bench: Bench) -> None:
    """Tokens may come as an array, which is read at once."""
    manager = bench.manager(6)
    listed = bench.request(manager, "l", (1, 2, 3, 4))
    tokens = array("i", (1, 2, 3, 4))
    request = bench.subject.make_request(manager, RequestInput("r", tokens))
    bench.subject.append_tokens(manager, request, array("q", (5, 6)))
    tokens[0] = 9
    bench.equal("tokens", [1, 2, 3, 4, 5, 6], list(request.token_ids))
    bench.equal("hashes", list(listed.block_hashes), list(request.block_hashes))
    append = bench.subject.append_tokens
    wrong: tuple[Any, ...] = ({1, 2}, array("d", (1.0, 2.0)), 7)
    for appended in wrong:
        what = f"appending {appended!r}"
        bench.raises(what, InvalidArgumentError, append, manager, request, appended)
    bench.equal("tokens after errors", 6, request.num_tokens)


@example("KV-ERR-1", level=Level.SAFETY)
def lack_of_space_is_a_value(bench: Bench) -> None:
    """No room is None, a reset of a pool in use is False."""
    manager = bench.manager(4)
    request = bench.started(manager, "r", range(6))
    late = bench.request(manager, "late", range(50, 59))
    for _ in range(2):
        bench.equal("an allocation that does not fit", None, bench.admit(manager, late))
    if bench.has(Feature.DRAFTING):  # more than the request has
        huge = manager.allocate_slots(late, 1000)
        bench.equal("an allocation that can never fit", None, huge)
    if bench.has(Feature.RESET):
        bench.holds("a reset of a pool in use is False", manager.reset_prefix_cache() is False)
    manager.free(request)
    bench.holds("it fits after a free", bench.admit(manager, late) is not None)


@example("KV-ERR-2", "KV-MGR-3", "KV-MGR-8", level=Level.SAFETY)
def illegal_calls_change_nothing(bench: Bench) -> None:
    """An illegal call raises a typed error and changes nothing, queues and counts included."""
    manager = bench.manager(6)
    request = bench.started(manager, "r", range(6))
    late = bench.request(manager, "late", range(50, 59))
    before = bench.visible(manager)
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
            bench.raises(
                f"allocate_slots with {arguments}",
                InvalidArgumentError,
                manager.allocate_slots,
                asked,
                **arguments,
            )
            bench.equal("the state after it", before, bench.visible(manager))
    if bench.has(Feature.DELAYED_CACHING):
        for count in (-1, 7, True, 1.5):
            bench.raises(
                f"cache_blocks of {count!r}",
                InvalidArgumentError,
                manager.cache_blocks,
                request,
                count,
            )
    if bench.has(Feature.SKIPPED_REMOVAL):
        bench.raises(
            "remove_skipped_blocks of -1",
            InvalidArgumentError,
            manager.remove_skipped_blocks,
            request,
            -1,
        )
    bench.equal("the state after all", before, bench.visible(manager))


@example("KV-ERR-6", level=Level.SAFETY)
def counts_are_limited(bench: Bench) -> None:
    """A count is at most 2^53 - 1."""
    manager = bench.manager(6)
    request = bench.started(manager, "r", range(6))
    late = bench.request(manager, "late", range(50, 59))
    before = bench.visible(manager)
    for count in (2**53, 2**63, 2**64):
        allocate = manager.allocate_slots
        what = f"{count} new tokens"
        bench.raises(what, InvalidArgumentError, allocate, late, count, field="num_new_tokens")
        what = f"{count} tokens of lookahead"
        if bench.has(Feature.DRAFTING):
            bench.raises(what, InvalidArgumentError, allocate, late, 1, num_lookahead_tokens=count)
        request.num_computed_tokens = count
        bench.raises(f"{count} computed tokens", InvalidArgumentError, allocate, request, 1)
        request.num_computed_tokens = 6
    bench.equal("the state afterwards", before, bench.visible(manager))


@example("KV-MGR-4", "KV-ERR-6", level=Level.BEHAVIOUR)
def new_tokens_have_slots(bench: Bench) -> None:
    """New tokens beyond the longest sequence are illegal, however many."""
    bench.need(Feature.DRAFTING)  # more than the request has
    manager = bench.manager(20, max_model_len_tokens=16)
    request = bench.request(manager, "r", range(9))
    before = bench.visible(manager)
    for count in (17, 2**40, 2**53 - 1):
        bench.raises(
            f"{count} new tokens where 16 have slots",
            InvalidArgumentError,
            manager.allocate_slots,
            request,
            count,
            field="num_new_tokens",
        )
    bench.equal("the state afterwards", before, bench.visible(manager))


@example("KV-ERR-3", "KV-POOL-9", "KV-POOL-10", level=Level.SAFETY)
def ids_are_checked(bench: Bench) -> None:
    """A block id outside the pool is an UnknownBlockError, before anything happens."""
    bench.need(Feature.EVICTION_BY_ID, Feature.DEFERRED_FREE)
    manager = bench.manager(6)
    request = bench.started(manager, "r", range(6))
    blocks = manager.pop_blocks_for_free(request)
    before = bench.visible(manager)
    wrong: tuple[Any, ...] = (-1, 6, 10**12, True, 1.0, "1", None)
    for block in wrong:
        for name in ("evict_blocks", "free_blocks"):
            call = getattr(manager, name)
            error = bench.raises(f"{name} of {block!r}", UnknownBlockError, call, [*blocks, block])
            shown = (getattr(error, "block_id", None), getattr(error, "num_blocks", None))
            bench.equal("what the error carries", (block, 6), shown)
    bench.equal("the state after it", before, bench.visible(manager))
    twice = [*blocks, blocks[0]]
    bench.raises("a block twice", BlockReleaseError, manager.free_blocks, twice)
    bench.equal("the state after that", before, bench.visible(manager))
    manager.evict_blocks([0])
    manager.free_blocks([0, *reversed(blocks), 0])
    bench.equal("free blocks in the end", 5, manager.num_free_blocks)
    bench.raises("returned again", BlockReleaseError, manager.free_blocks, blocks)


@example("KV-ERR-4", level=Level.SAFETY)
def strangers_hold_nothing(bench: Bench) -> None:
    """Calls about a request that the manager does not know are no errors."""
    manager = bench.manager(6)
    bench.started(manager, "known", range(6))
    stranger = bench.request(manager, "stranger", range(9))
    before = bench.visible(manager)
    for _ in range(2):
        manager.free(stranger)
        if bench.has(Feature.DELAYED_CACHING):
            manager.cache_blocks(stranger, 8)
        if bench.has(Feature.SKIPPED_REMOVAL):
            manager.remove_skipped_blocks(stranger, 8)
        if bench.has(Feature.DEFERRED_FREE):
            bench.equal("popped", (), tuple(manager.pop_blocks_for_free(stranger)))
        if bench.has(Feature.UNHASHED_BLOCKS):
            unhashed = [list(ids) for ids in manager.get_unhashed_block_ids(stranger)]
            bench.equal("unhashed", [[]], unhashed)
        if bench.has(Feature.COMMON_PREFIX):
            common = tuple(manager.get_num_common_prefix_blocks(stranger))
            bench.equal("common prefix", (0,), common)
        bench.equal("blocks", [[]], manager.get_blocks(stranger).to_lists())
    bench.equal("the state afterwards", before, bench.visible(manager))


@example("KV-MGR-8", level=Level.SAFETY)
def stale_hits_are_refused(bench: Bench) -> None:
    """A hit is checked block by block, and for its length."""
    manager = bench.manager(5)
    first = bench.started(manager, "first", range(8))
    manager.free(first)
    late = bench.request(manager, "late", range(9))
    hit = manager.get_computed_blocks(late)
    bench.equal("the hit", 8, hit.hit_length_tokens)
    taker = bench.started(manager, "taker", range(50, 62))  # takes both free ones and one cached
    before = bench.visible(manager)

    def allocate(length: int, blocks: Any) -> object:
        return manager.allocate_slots(
            late, 1, num_new_computed_tokens=length, new_computed_blocks=blocks
        )

    error = bench.raises("a hit that was taken", StaleHitError, allocate, 8, hit.blocks)
    bench.equal("the group in the error", 0, getattr(error, "group", None))
    outside = KVCacheBlocks(((5,),))
    bench.raises("a hit outside the pool", UnknownBlockError, allocate, 4, outside)
    wrong_length = ((4, hit.blocks), (8, None), (0, hit.blocks), (7, hit.blocks))
    for length, given in wrong_length:
        bench.raises(f"a hit of {length} tokens", InvalidArgumentError, allocate, length, given)
    bench.equal("the state afterwards", before, bench.visible(manager))
    manager.free(taker)
    again = manager.get_computed_blocks(late)
    bench.holds(
        "a new look-up is taken", allocate(again.hit_length_tokens, again.blocks) is not None
    )


@example("KV-GRP-9", level=Level.SAFETY)
def no_hits_under_way(bench: Bench) -> None:
    """A request under way takes no hits, and one without an entry no external tokens either."""
    bench.need(Feature.EXTERNAL_TOKENS, Feature.DRAFTING)
    manager = bench.manager(8)
    bench.started(manager, "first", range(8))
    running = bench.started(manager, "running", (*range(4), 50, 51))
    begun = bench.started(manager, "begun", (60, 61, 62))
    probe = bench.request(manager, "probe", range(9))
    hit = manager.get_computed_blocks(probe).blocks
    before = bench.visible(manager)
    for request in (running, begun):
        arguments: dict[str, Any] = {"num_new_computed_tokens": 8, "new_computed_blocks": hit}
        what = f"hits for {request.request_id}"
        bench.raises(what, InvalidArgumentError, manager.allocate_slots, request, 1, **arguments)
    bench.raises(
        "external tokens without an entry",
        InvalidArgumentError,
        manager.allocate_slots,
        begun,
        1,
        num_external_computed_tokens=4,
    )
    bench.equal("the state afterwards", before, bench.visible(manager))
    granted = manager.allocate_slots(running, 1, num_external_computed_tokens=4)
    bench.equal("new blocks of a running request cover its external tokens",
                [1], None if granted is None else [len(b) for b in granted.to_lists()])  # fmt: skip


REQUESTS = (
    tokens_are_ints, arrays, appending_changes_no_manager, computed_tokens_have_slots,
    items_are_sorted,
    lack_of_space_is_a_value, illegal_calls_change_nothing, counts_are_limited, ids_are_checked,
    strangers_hold_nothing, stale_hits_are_refused, no_hits_under_way,
)  # fmt: skip
