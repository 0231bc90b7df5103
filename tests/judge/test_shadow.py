"""The shadow memory and the comparison of events, with lists and events that are made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcheck.play.agreement import require_same_events
from kvcheck.play.shadow.content import PASSED, Content
from kvcheck.play.shadow.content_check import ContentCheck
from kvcheck.play.shadow.event_fold import EventFold
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvspec.policy import Policy
from kvspec.snapshot import Snapshot
from kvspec.specs import (
    CircularBufferSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)

SIZE = 2
TOKENS = tuple(range(10, 19))
FULL = FullAttentionSpec(SIZE, 1, 8, "float16")
WINDOW = SlidingWindowSpec(SIZE, 1, 8, "float16", sliding_window=4)
ALIGNED = MambaSpec(4, ((2,),), ("float16",), mamba_cache_mode="align")


def check_of(spec: LayerSpec) -> tuple[ContentCheck, Content]:
    """A pool in whose blocks 1 to 4 the first eight tokens of a request were computed."""
    cache = KVCacheConfig(9, (KVCacheGroup(("layer.0",), spec),))
    check = ContentCheck(ManagerConfig(cache, max_model_len_tokens=16))
    content = Content(b"", TOKENS)
    check.write_granted("r", content, [[1, 2, 3, 4]], start=0, num_external=0, num_new=8)
    return check, content


def offence(check: ContentCheck, content: Content, blocks: list[int], length: int) -> str | None:
    """The check that fails if a hit is answered with these blocks."""
    try:
        check.read_hit("s", content, [blocks], length)
    except InvariantViolation as error:
        return error.invariant
    return None


@pytest.mark.parametrize(("spec", "first_read"), [(FULL, 0), (WINDOW, 2)])
def test_a_null_or_missing_block_is_an_offence_exactly_where_content_is_read(
    spec: LayerSpec, first_read: int
) -> None:
    """The token behind eight, with a window of four, reads tokens 5 to 7: blocks 2 and 3."""
    check, content = check_of(spec)
    assert offence(check, content, [1, 2, 3, 4], 8) is None
    for index in range(4):
        blocks = [1, 2, 3, 4]
        blocks[index] = 0
        expected = "what_is_read_is_there" if index >= first_read else None
        assert offence(check, content, blocks, 8) == expected
        assert offence(check, content, blocks[:index], 8) == "what_is_read_is_there"


def test_each_ring_of_a_request_is_read_in_full() -> None:
    """KV-CIRC-2: two rings, of one slot and of three; what the larger one lost is missed."""
    rings = [CircularBufferSpec(size, 1, 8, "float16") for size in (1, 3)]
    groups = tuple(KVCacheGroup(("layer",), spec) for spec in (FULL, *rings))
    check = ContentCheck(ManagerConfig(KVCacheConfig(9, groups), max_model_len_tokens=16))
    content, lists = Content(b"", TOKENS), [[1, 2], [3], [4]]
    check.write_granted("r", content, lists, start=0, num_external=0, num_new=4)
    check.read_held("r", "held", content, lists, 4, "KV-HASH-1")
    check.shadow.lose([4])
    for gone, block in ((lists, 4), ([*lists[:2], []], 0)):
        with pytest.raises(InvariantViolation, match="KV-CIRC-2") as caught:
            check.read_held("r", "held", content, gone, 4, "KV-HASH-1")
        assert caught.value.detail == (
            f"held in group 2: token 0 should be in slot 0 of block {block}, which holds nothing"
        )


def test_what_a_hit_holds_is_compared_slot_by_slot() -> None:
    """Another block's content, a block that nobody wrote, the right block at another place."""
    check, content = check_of(FULL)
    claimed = "content_is_where_it_is_claimed"
    for blocks in ([1, 2, 3, 3], [1, 2, 3, 7], [2, 1, 3, 4]):
        assert offence(check, content, blocks, 8) == claimed
    other = Content(b"", (*TOKENS[:7], 99, TOKENS[8]))
    assert offence(check, other, [1, 2, 3, 4], 8) == claimed
    assert offence(check, other, [1, 2, 3, 4], 7) is None
    assert offence(check, Content(b"salt", TOKENS), [1, 2, 3, 4], 8) == claimed
    assert offence(check, content, [1, 2, 3, 4], 9) == "the_last_token_is_computed"
    check.shadow.lose([4])
    assert offence(check, content, [1, 2, 3, 4], 8) == claimed
    check.shadow.forget([4])
    assert offence(check, content, [1, 2, 3, 4], 8) is None
    for start, expected in ((7, None), (6, claimed)):  # known again from its first slot on
        check.write_granted("s", other, [[1, 2, 3, 4]], start=start, num_external=0, num_new=1)
        assert offence(check, content, [1, 2, 3, 4], 8) == expected


@pytest.mark.parametrize(
    ("loaded", "there"),
    [(2, {4: None, 8: "KV-MAMBA-9", 12: None}), (6, {4: None, 8: None, 12: None})],
)
def test_a_step_fills_the_entry_that_it_starts_from_and_goes_past_those_before_its_end(
    loaded: int, there: dict[int, str | None]
) -> None:
    """Behind a load that ends inside a block: the first of three, or the second."""
    cache = KVCacheConfig(9, (KVCacheGroup(("layer.0",), ALIGNED),))
    check = ContentCheck(ManagerConfig(cache, max_model_len_tokens=16))
    content, lists = Content(b"", range(13)), [[1, 2, 3]]
    check.write_granted("r", content, lists, start=0, num_external=loaded, num_new=12 - loaded)
    for length, rule in there.items():
        if rule is None:
            check.read_hit("s", content, lists, length)
            continue
        with pytest.raises(InvariantViolation, match=PASSED) as caught:
            check.read_hit("s", content, lists, length)
        assert caught.value.rule == rule


def test_after_a_load_of_everything_the_state_before_the_last_token_is_still_read() -> None:
    """The last token is computed again: the block that the state before it is in must be there."""
    cache = KVCacheConfig(9, (KVCacheGroup(("layer.0",), ALIGNED),))
    check = ContentCheck(ManagerConfig(cache, max_model_len_tokens=16))
    content = Content(b"", range(9))
    check.write_granted("r", content, [[1, 2, 3]], start=0, num_external=9, num_new=0)
    check.read_held("r", "held of r", content, [[0, 2, 3]], 8, "KV-HASH-1")
    for lists in ([[1, 0, 3]], [[1]]):
        with pytest.raises(InvariantViolation, match=r"held of r in group 0: ") as caught:
            check.read_held("r", "held of r", content, lists, 8, "KV-HASH-1")
        assert caught.value.rule == "KV-MAMBA-1"


def test_tokens_beyond_the_list_of_blocks_and_into_null_have_no_slot() -> None:
    check, content = check_of(FULL)
    for blocks, name in (([1, 2, 3, 4], "granted_tokens_have_slots"), ([1, 2, 3, 4, 0], "null")):
        with pytest.raises(InvariantViolation, match=name):
            check.write_granted("r", content, [blocks], start=8, num_external=0, num_new=1)


REMOVED = BlockRemoved((b"h",), "GPU", 0)
CLEARED = AllBlocksCleared()


@pytest.mark.parametrize(
    ("expected", "got", "rule"),
    [
        ([REMOVED, CLEARED], [REMOVED], "KV-EVT-1"),
        ([REMOVED], [REMOVED, CLEARED], "KV-EVT-1"),
        ([], [CLEARED], "KV-EVT-1"),
        ([REMOVED], [BlockRemoved((b"g",), "GPU", 0)], "KV-EVT-4"),
        ([CLEARED], [REMOVED], "KV-EVT-5"),
    ],
)
def test_events_are_compared_one_by_one_and_counted(
    expected: list[Event], got: list[Event], rule: str
) -> None:
    """One more or one less at the end is a difference, too."""
    require_same_events(expected, list(expected))
    with pytest.raises(InvariantViolation, match=rule):
        require_same_events(expected, got)


def test_a_key_counts_once_for_each_block_that_has_it() -> None:
    """Removed once of twice, a key is cached once; more often than stored, it is owed."""
    fold = EventFold()
    fold.keys[b"h", 0] = 2
    fold.take_in([REMOVED])
    assert fold.keys == {(b"h", 0): 1}
    fold.take_in([REMOVED])
    assert not fold.keys
    fold.take_in([REMOVED])
    assert fold.keys == {(b"h", 0): -1}
    fold.take_in([CLEARED])
    assert not fold.keys


def cached(**blocks: tuple[int, ...]) -> Snapshot:
    """Keys of group 1, each in these blocks."""
    order = {b"z" * 8 + name.encode() * 8 + bytes((0, 0, 0, 1)): at for name, at in blocks.items()}
    return Snapshot(9, (), (), (), order, (), b"", {})


@pytest.mark.parametrize("int_hashes", [False, True])
def test_what_events_tell_is_what_is_cached(int_hashes: bool) -> None:
    """Each key as often as there are blocks with it; by bytes, or by the last eight as a number."""
    one: Any = b"z" * 8 + b"a" * 8
    other: Any = b"z" * 8 + b"b" * 8
    if int_hashes:
        one, other = int.from_bytes(one[8:], "big"), int.from_bytes(other[8:], "big")
    of_group = (None, 1, "full_attention", None)
    stored = BlockStored((one, other, one), None, (), 2, None, None, "GPU", *of_group)
    fold = EventFold()
    fold.take_in([stored])
    fold.expect_state(cached(a=(1, 2), b=(3,)), int_hashes=int_hashes)
    name = one if int_hashes else "7a" * 8 + "61" * 8
    for wrong, told in ((cached(a=(1,), b=(3,)), "1 times, 2"), (cached(b=(3,)), "0 times, 2")):
        with pytest.raises(InvariantViolation, match="KV-EVT-7") as caught:
            fold.expect_state(wrong, int_hashes=int_hashes)
        assert f"key {name} of group 1 is cached {told} times" in caught.value.detail
    heard_late = EventFold()
    heard_late.start_from(cached(a=(1, 2), b=(3,)), int_hashes=int_hashes)
    assert heard_late.keys == fold.keys
    with pytest.raises(InvariantViolation, match="1 times, 0 times"):
        EventFold().expect_state(cached(b=(3,)), int_hashes=int_hashes)


def test_reports_add_nothing_and_name_what_was_stored() -> None:
    """Of a group whose key it is not, or after it went, a report is wrong (KV-EVT-11)."""
    fold, one = EventFold(), b"z" * 8 + b"a" * 8
    stored = BlockStored((one,), None, (), 2, None, None, "GPU", None, 1, "full_attention", None)
    report = replace(stored, is_report=True)
    fold.take_in([stored, report, report])
    fold.expect_state(cached(a=(1,)), int_hashes=False)
    stories: list[list[Event]] = [
        [replace(report, group=0)],
        [BlockRemoved((one,), "GPU", 1), report],
    ]
    for events in stories:
        with pytest.raises(InvariantViolation, match="KV-EVT-11"):
            fold.take_in(events)


def test_where_the_last_copy_alone_is_told_each_key_counts_once() -> None:
    """Stored of each copy, and removed once (KV-POL-3)."""
    fold = EventFold.under(Policy(removed_event_per="last_copy"))
    one: Any = b"z" * 8 + b"a" * 8
    stored = BlockStored((one,), None, (), 2, None, None, "GPU", None, 1, "full_attention", None)
    removed = BlockRemoved((one,), "GPU", 1)
    fold.take_in([stored, stored])
    fold.expect_state(cached(a=(1, 2)), int_hashes=False)
    fold.take_in([removed])
    fold.expect_state(cached(), int_hashes=False)
    fold.take_in([removed])
    with pytest.raises(InvariantViolation, match="0 times, -1 times"):
        fold.expect_state(cached(), int_hashes=False)
    assert not EventFold.under(Policy()).is_set
