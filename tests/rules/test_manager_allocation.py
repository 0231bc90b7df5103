"""KV-MGR-3 … KV-MGR-10: what `allocate_slots` demands, refuses, takes and caches.

The hits it is given are in test_manager_hits.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation
from kvspec.request import RequestStatus
from tests.rules.builders import (
    MakeManager,
    MakeRequest,
    Story,
    admit,
    blocks_of,
    cached_blocks,
    cached_count,
    everything,
    hit_of,
    queue_of,
    run_on,
)

BAD_COUNTS = (-1, True, 1.0, "1", 2**63)


@pytest.mark.rule("KV-MGR-3")
def test_an_allocation_brings_tokens(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """No new and no external tokens is an error; external ones alone get room for 4 tokens."""
    manager = make_manager()
    request = make_request(manager, "r", range(9))
    before = manager.snapshot()
    with pytest.raises(InvalidArgumentError) as caught:
        manager.allocate_slots(request, 0)
    assert caught.value.field == "num_new_tokens"
    assert manager.snapshot() == before
    answer = manager.allocate_slots(request, 0, num_external_computed_tokens=4)
    assert answer == KVCacheBlocks(((),))
    assert blocks_of(manager, request) == [1]


@pytest.mark.rule("KV-MGR-4", "KV-MGR-7")
def test_computed_tokens_end_at_the_longest_sequence(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """max_model_len 32, 8 hit tokens and 30 external ones: what is cached ends at token 32."""
    manager = make_manager(20, 4, max_model_len_tokens=32)
    admit(manager, make_request(manager, "first", range(8)))
    request = make_request(manager, "r", range(40))
    hit = manager.get_computed_blocks(request)
    arguments: dict[str, Any] = {
        "num_new_computed_tokens": 8,
        "new_computed_blocks": hit.blocks,
        "num_external_computed_tokens": 30,
    }
    # 38 computed tokens are 10 blocks; 2 of them are hits that sit in use.
    free = manager.num_free_blocks
    assert manager.allocate_slots(request, 0, **arguments, reserved_blocks=free - 7) is None
    assert manager.allocate_slots(request, 0, **arguments, reserved_blocks=free - 8) is not None
    assert len(blocks_of(manager, request)) == 10
    assert cached_count(manager, request) == 8


@pytest.mark.rule("KV-MGR-4", "KV-MGR-10")
def test_the_whole_prompt_can_be_external(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """12 tokens, 8 hit and 4 external: three blocks, all of them kept and cached."""
    manager = make_manager(20, 4)
    admit(manager, make_request(manager, "first", range(8)))
    request = make_request(manager, "r", range(12))
    hit = KVCacheBlocks(((1, 2),))
    manager.allocate_slots(
        request,
        0,
        num_new_computed_tokens=8,
        new_computed_blocks=hit,
        num_external_computed_tokens=4,
    )
    assert blocks_of(manager, request) == [1, 2, 3]
    assert cached_count(manager, request) == 3


@pytest.mark.rule("KV-MGR-5", "KV-ERR-1")
@pytest.mark.parametrize("num_blocks", [7, 10, 11])
def test_the_whole_sequence_must_fit_if_asked(
    make_manager: MakeManager, make_request: MakeRequest, num_blocks: int
) -> None:
    """40 tokens in chunks of 8: with 6 free blocks the first chunk gets 2, but not at the gate."""
    manager = make_manager(num_blocks, 4)
    request = make_request(manager, "r", range(40))
    before = manager.snapshot()
    answer = manager.allocate_slots(request, 8, full_sequence_must_fit=True)
    if num_blocks > 10:
        assert answer == KVCacheBlocks(((1, 2),))
        return
    assert answer is None
    assert manager.snapshot() == before
    assert manager.allocate_slots(request, 8) == KVCacheBlocks(((1, 2),))


@pytest.mark.rule("KV-MGR-5", "KV-MGR-9")
def test_the_gate_knows_the_watermark_but_no_reserve_and_no_lookahead(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """10 free blocks and a prompt of 10: a watermark of 1 refuses, lookahead and reserve do not."""
    manager = make_manager(11, 4, watermark=0.1)
    request = make_request(manager, "r", range(40))
    gate: dict[str, Any] = {"full_sequence_must_fit": True}
    assert manager.allocate_slots(request, 8, **gate, has_scheduled_reqs=True) is None
    answer = manager.allocate_slots(
        request, 8, **gate, has_scheduled_reqs=False, num_lookahead_tokens=4, reserved_blocks=7
    )
    assert answer == KVCacheBlocks(((1, 2, 3),))


@pytest.mark.rule("KV-MGR-5")
def test_the_gate_ends_at_the_longest_sequence(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Of 40 tokens only the first 32 ever get slots: 8 free blocks are enough."""
    manager = make_manager(9, 4, max_model_len_tokens=32)
    request = make_request(manager, "r", range(40))
    assert manager.allocate_slots(request, 8, full_sequence_must_fit=True) is not None


@pytest.mark.rule("KV-MGR-6", "KV-ERR-1")
def test_a_refusal_changes_nothing(story: Story, make_request: MakeRequest) -> None:
    """State, events and samples are the same, and the answer is None again."""
    manager = story.manager
    request = make_request(manager, "c", [*range(1, 9), *range(30, 38)])
    hit = manager.get_computed_blocks(request)
    assert hit.blocks.to_lists() == [[1, 2]]
    before = everything(manager)
    for _ in range(2):
        answer = manager.allocate_slots(
            request, 8, num_new_computed_tokens=8, new_computed_blocks=hit.blocks
        )
        assert answer is None
    assert everything(manager) == before


@pytest.mark.rule("KV-MGR-7", "KV-GRP-7")
def test_slots_cover_new_tokens_and_lookahead(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """List 1, 2, 8 computed, 1 new and 3 lookahead: one block; refused with 3 of 3 reserved."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(12))
    admit(manager, request, 8)
    assert manager.num_free_blocks == 3
    assert manager.allocate_slots(request, 1, num_lookahead_tokens=3, reserved_blocks=3) is None
    assert manager.allocate_slots(request, 1, num_lookahead_tokens=3) == KVCacheBlocks(((3,),))


@pytest.mark.rule("KV-MGR-7")
def test_an_answer_without_blocks_is_success(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """With 7 computed tokens the eighth fits into block 2: the answer is an empty list."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(12))
    admit(manager, request, 7)
    assert manager.allocate_slots(request, 1) == KVCacheBlocks(((),))


@pytest.mark.rule("KV-MGR-7")
def test_more_can_be_reserved_than_is_free(story: Story) -> None:
    """Free minus reserved may be negative, and then even a need of 0 is refused."""
    assert story.manager.allocate_slots(story.a, 1, reserved_blocks=1) == KVCacheBlocks(((),))
    assert story.manager.allocate_slots(story.a, 1, reserved_blocks=2) is None


@pytest.mark.rule("KV-MGR-7")
def test_slots_end_at_the_longest_sequence(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """max_model_len 8: five new tokens and lookahead get two blocks, and the rest no more."""
    manager = make_manager(6, 4, max_model_len_tokens=8)
    request = make_request(manager, "r", range(20))
    answer = manager.allocate_slots(request, 5, num_lookahead_tokens=10)
    assert answer == KVCacheBlocks(((1, 2),))
    request.num_computed_tokens = 5
    assert run_on(manager, request, 3) == [[]]


@pytest.mark.rule("KV-MGR-4", "KV-ERR-6")
@pytest.mark.parametrize("computed", [0, 8])
@pytest.mark.parametrize("external", [0, 4, 8, 40])
def test_there_are_no_more_new_tokens_than_slots(
    make_manager: MakeManager, make_request: MakeRequest, computed: int, external: int
) -> None:
    """max_model_len 16: of 8 computed and 4 external tokens 4 are left to be computed, not 5."""
    manager = make_manager(20, 4, max_model_len_tokens=16)
    request = make_request(manager, "r", range(20))
    if computed:
        run_on(manager, request, computed)
    most = max(16 - computed - external, 0)
    before = everything(manager)
    for new in (most + 1, 2**53 - 1):
        with pytest.raises(InvalidArgumentError) as caught:
            manager.allocate_slots(request, new, num_external_computed_tokens=external)
        assert (caught.value.field, caught.value.value) == ("num_new_tokens", new)
        assert str(most) in caught.value.allowed
        assert everything(manager) == before
    if most or external:
        answer = manager.allocate_slots(request, most, num_external_computed_tokens=external)
        assert answer is not None


@pytest.mark.rule("KV-MGR-8", "KV-ERR-2")
@pytest.mark.parametrize("bad", BAD_COUNTS)
@pytest.mark.parametrize(
    "name",
    [
        "num_new_tokens",
        "num_new_computed_tokens",
        "num_lookahead_tokens",
        "num_external_computed_tokens",
        "num_encoder_tokens",
        "reserved_blocks",
    ],
)
def test_every_count_is_checked(
    story: Story, make_request: MakeRequest, name: str, bad: object
) -> None:
    """What is no int of at least 0 is refused, the error names it, and nothing changes."""
    request = make_request(story.manager, "c", range(9))
    before = everything(story.manager)
    arguments: dict[str, Any] = {"num_new_tokens": 1, name: bad}
    with pytest.raises(InvalidArgumentError) as caught:
        story.manager.allocate_slots(request, **arguments)
    assert caught.value.field == name
    assert everything(story.manager) == before


# Watermark.


@pytest.mark.rule("KV-MGR-9")
@pytest.mark.parametrize(
    ("status", "beside_others", "admitted"),
    [
        (RequestStatus.WAITING, True, False),
        (RequestStatus.PREEMPTED, True, False),
        (RequestStatus.WAITING, False, True),
        (RequestStatus.PREEMPTED, False, True),
        (RequestStatus.RUNNING, True, True),
        (RequestStatus.RUNNING, False, True),
    ],
)
def test_the_watermark_holds_back_newcomers(
    make_manager: MakeManager,
    make_request: MakeRequest,
    status: RequestStatus,
    beside_others: bool,
    admitted: bool,
) -> None:
    """10 blocks, 0.25: int(2.5) = 2. A need of 3 with 4 free: 3 + 2 > 4."""
    manager = make_manager(10, 4, watermark=0.25)
    running = make_request(manager, "running", range(50, 70))
    running.status = RequestStatus.RUNNING
    admit(manager, running)
    assert manager.num_free_blocks == 4
    request = make_request(manager, "r", range(12))
    request.status = status
    answer = manager.allocate_slots(request, 12, has_scheduled_reqs=beside_others)
    assert (answer is not None) is admitted


@pytest.mark.rule("KV-MGR-9")
@pytest.mark.parametrize(("free", "admitted"), [(4, False), (5, True)])
def test_the_watermark_is_cut_towards_zero(
    make_manager: MakeManager, make_request: MakeRequest, free: int, admitted: bool
) -> None:
    """int(2.5) is 2: a need of 3 fits into 5 free blocks."""
    manager = make_manager(10, 4, watermark=0.25)
    others = make_request(manager, "others", range(50, 50 + 4 * (9 - free)))
    admit(manager, others, has_scheduled_reqs=False)
    assert manager.num_free_blocks == free
    request = make_request(manager, "r", range(12))
    assert (manager.allocate_slots(request, 12) is not None) is admitted


@pytest.mark.rule("KV-MGR-9")
def test_the_null_block_is_part_of_the_watermark(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """0.1 of 10 blocks is one block, although only 9 can be given away."""
    manager = make_manager(10, 4, watermark=0.1)
    assert manager.allocate_slots(make_request(manager, "r", range(36)), 36) is None
    assert manager.allocate_slots(make_request(manager, "s", range(32)), 32) is not None


# Caching.


@pytest.mark.rule("KV-MGR-10", "KV-REQ-3")
def test_drafts_are_never_cached(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """9 tokens, 8 computed; 1 + 3 drafts fill block 3, which is cached when they are accepted."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(9))
    admit(manager, request, 8)
    assert cached_blocks(manager) == {1, 2}
    assert manager.allocate_slots(request, 4) == KVCacheBlocks(((3,),))
    assert cached_blocks(manager) == {1, 2}
    request.num_computed_tokens = 12
    implementation.append_tokens(manager, request, [9, 10, 11, 12])
    assert request.num_tokens == 13
    assert run_on(manager, request) == [[4]]
    assert cached_blocks(manager) == {1, 2, 3}


@pytest.mark.rule("KV-MGR-10")
def test_caching_can_be_delayed(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """With `delay_cache_blocks` the next allocation caches what this one did not."""
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(12))
    admit(manager, request, 8, delay_cache_blocks=True)
    assert cached_blocks(manager) == set()
    assert hit_of(manager, make_request(manager, "s", range(12))) == []
    run_on(manager, request, 4)
    assert cached_blocks(manager) == {1, 2, 3}


@pytest.mark.rule("KV-MGR-10")
def test_blocks_are_cached_when_the_step_is_planned(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A request planned in the same step already hits them."""
    manager = make_manager(6, 4)
    manager.allocate_slots(make_request(manager, "a", range(8)), 8)
    assert hit_of(manager, make_request(manager, "b", range(9))) == [1, 2]
    assert queue_of(manager) == [3, 4, 5]
