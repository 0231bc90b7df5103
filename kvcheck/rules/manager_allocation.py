"""KV-MGR-3 … KV-MGR-10: what `allocate_slots` demands, refuses, takes and caches.

The hits it is given are in manager_hits.py.
"""

from __future__ import annotations

from itertools import product
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature
from kvspec.request import RequestStatus

BAD_COUNTS = (-1, True, 1.0, "1", 2**53, 2**63)


@example("KV-MGR-3", level=Level.IDENTITY)
def an_allocation_brings_tokens(bench: Bench) -> None:
    """No new and no external tokens is an error; external ones alone get room for 4 tokens."""
    manager = bench.manager()
    request = manager.request("r", range(9))
    with manager.refuses(InvalidArgumentError, field="num_new_tokens"):
        manager.allocate_slots(request, 0)
    answer = manager.allocate_slots(request, 0, num_external_computed_tokens=4)
    equal(answer, KVCacheBlocks(((),)))
    equal(manager.blocks(request), [1])


@example("KV-MGR-4", "KV-MGR-7", level=Level.IDENTITY)
def computed_tokens_end_at_the_longest_sequence(bench: Bench) -> None:
    """max_model_len 32, 8 hit and 30 external tokens: caching ends at 32, and a run's slots do."""
    manager = bench.manager(20, max_model_len_tokens=32)
    manager.admit(manager.request("first", range(8)))
    request = manager.request("r", range(40))
    hit = manager.get_computed_blocks(request)
    arguments: dict[str, Any] = {
        "num_new_computed_tokens": 8,
        "new_computed_blocks": hit.blocks,
        "num_external_computed_tokens": 30,
    }
    # 38 computed tokens are 10 blocks; 2 of them are hits that sit in use.
    free = manager.num_free_blocks
    equal(manager.allocate_slots(request, 0, **arguments, reserved_blocks=free - 7), None)
    holds(manager.allocate_slots(request, 0, **arguments, reserved_blocks=free - 8) is not None)
    equal(len(manager.blocks(request)), 10)
    equal(manager.cached_count(request), 8)
    other = manager.request("s", range(40, 80))
    manager.run(other, 28)
    manager.allocate_slots(other, 0, num_external_computed_tokens=8)
    equal(len(manager.blocks(other)), 8)


@example("KV-MGR-4", "KV-MGR-10", level=Level.IDENTITY)
def the_whole_prompt_can_be_external(bench: Bench) -> None:
    """12 tokens, 8 hit and 4 external: three blocks, all of them kept and cached."""
    manager = bench.manager(20)
    manager.admit(manager.request("first", range(8)))
    request = manager.request("r", range(12))
    hit = KVCacheBlocks(((1, 2),))
    manager.allocate_slots(
        request,
        0,
        num_new_computed_tokens=8,
        new_computed_blocks=hit,
        num_external_computed_tokens=4,
    )
    equal(manager.blocks(request), [1, 2, 3])
    equal(manager.cached_count(request), 3)


@cases(7, 10, 11)
@example("KV-MGR-5", "KV-ERR-1", level=Level.IDENTITY)
def the_whole_sequence_must_fit_if_asked(bench: Bench, num_blocks: int) -> None:
    """40 tokens in chunks of 8: with 6 free blocks the first chunk gets 2, but not at the gate."""
    manager = bench.manager(num_blocks)
    request = manager.request("r", range(40))
    before = manager.visible()
    answer = manager.allocate_slots(request, 8, full_sequence_must_fit=True)
    if num_blocks > 10:
        equal(answer, KVCacheBlocks(((1, 2),)))
        return
    equal(answer, None)
    equal(manager.visible(), before)
    equal(manager.allocate_slots(request, 8), KVCacheBlocks(((1, 2),)))


@example("KV-MGR-5", "KV-MGR-9", level=Level.IDENTITY)
def the_gate_knows_the_watermark_but_no_reserve_and_no_lookahead(bench: Bench) -> None:
    """10 free blocks and a prompt of 10: a watermark of 1 refuses, lookahead and reserve do not."""
    manager = bench.manager(11, watermark=0.1)
    request = manager.request("r", range(40))
    gate: dict[str, Any] = {"full_sequence_must_fit": True}
    equal(manager.allocate_slots(request, 8, **gate, has_scheduled_reqs=True), None)
    answer = manager.allocate_slots(
        request, 8, **gate, has_scheduled_reqs=False, num_lookahead_tokens=4, reserved_blocks=7
    )
    equal(answer, KVCacheBlocks(((1, 2, 3),)))


@example("KV-MGR-6", "KV-ERR-1", level=Level.IDENTITY)
def a_refusal_leaves_state_events_and_samples(bench: Bench) -> None:
    """State, events and samples are the same, and the answer is None again."""
    manager = bench.story()[0]
    request = manager.request("c", [*range(1, 9), *range(30, 38)])
    hit = manager.get_computed_blocks(request)
    equal(hit.blocks.to_lists(), [[1, 2]])
    before = manager.everything()
    for _ in range(2):
        answer = manager.allocate_slots(
            request, 8, num_new_computed_tokens=8, new_computed_blocks=hit.blocks
        )
        equal(answer, None)
    equal(manager.everything(), before)


@example("KV-MGR-7", "KV-GRP-7", level=Level.IDENTITY)
def slots_cover_new_tokens_and_lookahead(bench: Bench) -> None:
    """List 1, 2, 8 computed, 1 new and 3 lookahead: one block; refused with 3 of 3 reserved."""
    manager = bench.manager(6)
    request = manager.request("r", range(12))
    manager.admit(request, 8)
    equal(manager.num_free_blocks, 3)
    equal(manager.allocate_slots(request, 1, num_lookahead_tokens=3, reserved_blocks=3), None)
    equal(manager.allocate_slots(request, 1, num_lookahead_tokens=3), KVCacheBlocks(((3,),)))


@example("KV-MGR-7", level=Level.IDENTITY)
def more_can_be_reserved_than_is_free(bench: Bench) -> None:
    """Free minus reserved may be negative, and then even a need of 0 is refused."""
    bench.need(Feature.DRAFTING)
    manager, a, _ = bench.story()
    equal(manager.allocate_slots(a, 1, reserved_blocks=1), KVCacheBlocks(((),)))
    equal(manager.allocate_slots(a, 1, reserved_blocks=2), None)


@example("KV-MGR-7", level=Level.IDENTITY)
def slots_end_at_the_longest_sequence(bench: Bench) -> None:
    """max_model_len 8: five new tokens and lookahead get two blocks, and the rest no more."""
    manager = bench.manager(6, max_model_len_tokens=8)
    request = manager.request("r", range(20))
    answer = manager.allocate_slots(request, 5, num_lookahead_tokens=10)
    equal(answer, KVCacheBlocks(((1, 2),)))
    equal(manager.cached(), {1})
    request.num_computed_tokens = 5
    equal(manager.run(request, 3), [[]])


@cases(*product([0, 8], [0, 4, 8, 40]))
@example("KV-MGR-4", "KV-ERR-6", since="0.2")
def there_are_no_more_new_tokens_than_slots(bench: Bench, computed: int, external: int) -> None:
    """max_model_len 16: of 8 computed and 4 external tokens 4 are left to be computed, not 5."""
    manager = bench.manager(20, max_model_len_tokens=16)
    request = manager.request("r", range(20))
    if computed:
        manager.run(request, computed)
    most = max(16 - computed - external, 0)
    for new in (most + 1, 2**53 - 1):
        with manager.refuses(InvalidArgumentError) as caught:
            manager.allocate_slots(request, new, num_external_computed_tokens=external)
        equal(caught.value.field, "num_new_tokens")
        holds(bench.is_remote or caught.value.value == new)
        holds(bench.is_remote or str(most) in caught.value.allowed)
    if most or external:
        answer = manager.allocate_slots(request, most, num_external_computed_tokens=external)
        holds(answer is not None)


@cases(
    *product(
        BAD_COUNTS,
        [
            "num_new_tokens",
            "num_new_computed_tokens",
            "num_lookahead_tokens",
            "num_external_computed_tokens",
            "num_encoder_tokens",
            "reserved_blocks",
        ],
    )
)
@example("KV-ERR-2", "KV-ERR-6", "KV-MGR-3", "KV-MGR-8", level=Level.SAFETY, since="0.2")
def every_count_is_an_int_from_0_to_2_53_minus_1(bench: Bench, bad: object, name: str) -> None:
    """Anything else is refused, the error names it, and nothing changes."""
    manager, running, _ = bench.story()
    arguments: dict[str, Any] = {"num_new_tokens": 1, name: bad}
    for request in (manager.request("c", range(9)), running):
        with manager.refuses(InvalidArgumentError, field=name):
            manager.allocate_slots(request, **arguments)


# Watermark.


@cases(
    (RequestStatus.WAITING, True, False),
    (RequestStatus.PREEMPTED, True, False),
    (RequestStatus.WAITING, False, True),
    (RequestStatus.PREEMPTED, False, True),
    (RequestStatus.RUNNING, True, True),
    (RequestStatus.RUNNING, False, True),
)
@example("KV-MGR-9")
def the_watermark_holds_back_newcomers(
    bench: Bench, status: RequestStatus, beside_others: bool, admitted: bool
) -> None:
    """10 blocks, 0.25: int(2.5) = 2. A need of 3 with 4 free: 3 + 2 > 4."""
    manager = bench.manager(10, watermark=0.25)
    running = manager.request("running", range(50, 70))
    running.status = RequestStatus.RUNNING
    manager.admit(running)
    equal(manager.num_free_blocks, 4)
    request = manager.request("r", range(12))
    request.status = status
    answer = manager.allocate_slots(request, 12, has_scheduled_reqs=beside_others)
    holds((answer is not None) is admitted)


@cases((4, False), (5, True))
@example("KV-MGR-9")
def the_watermark_is_cut_towards_zero(bench: Bench, free: int, admitted: bool) -> None:
    """int(2.5) is 2: a need of 3 fits into 5 free blocks."""
    manager = bench.manager(10, watermark=0.25)
    others = manager.request("others", range(50, 50 + 4 * (9 - free)))
    manager.admit(others, has_scheduled_reqs=False)
    equal(manager.num_free_blocks, free)
    request = manager.request("r", range(12))
    holds((manager.allocate_slots(request, 12) is not None) is admitted)


@example("KV-MGR-9")
def the_null_block_is_part_of_the_watermark(bench: Bench) -> None:
    """0.1 of 10 blocks is one block, although only 9 can be given away."""
    manager = bench.manager(10, watermark=0.1)
    equal(manager.allocate_slots(manager.request("r", range(36)), 36), None)
    holds(manager.allocate_slots(manager.request("s", range(32)), 32) is not None)


# Caching.


@example("KV-MGR-10", "KV-REQ-3", level=Level.IDENTITY)
def drafts_are_not_cached(bench: Bench) -> None:
    """9 tokens, 8 computed; 1 + 3 drafts fill block 3, which is cached when they are accepted."""
    bench.need(Feature.DRAFTING)
    manager = bench.manager(6)
    request = manager.request("r", range(9))
    manager.admit(request, 8)
    equal(manager.cached(), {1, 2})
    equal(manager.allocate_slots(request, 4), KVCacheBlocks(((3,),)))
    equal(manager.cached(), {1, 2})
    request.num_computed_tokens = 12
    manager.append(request, [9, 10, 11, 12])
    equal(request.num_tokens, 13)
    equal(manager.run(request), [[4]])
    equal(manager.cached(), {1, 2, 3})


@example("KV-MGR-10", level=Level.IDENTITY)
def caching_can_be_delayed(bench: Bench) -> None:
    """With `delay_cache_blocks` the next allocation caches what this one did not."""
    manager = bench.manager(6)
    request = manager.request("r", range(12))
    manager.admit(request, 8, delay_cache_blocks=True)
    equal(manager.cached(), set())
    equal(manager.hit(manager.request("s", range(12))), [])
    manager.run(request, 4)
    equal(manager.cached(), {1, 2, 3})


@example("KV-MGR-10", level=Level.IDENTITY)
def blocks_are_cached_when_the_step_is_planned(bench: Bench) -> None:
    """A request planned in the same step already hits them."""
    manager = bench.manager(6)
    manager.allocate_slots(manager.request("a", range(8)), 8)
    equal(manager.hit(manager.request("b", range(9))), [1, 2])
    equal(manager.queue(), [3, 4, 5])
