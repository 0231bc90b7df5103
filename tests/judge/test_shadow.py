"""The shadow memory and the comparison of events, with lists and events that are made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcheck.play.agreement import require_same_events
from kvcheck.play.shadow.content import Content, ShadowMemory
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
)

SIZE = 2
TOKENS = tuple(range(10, 19))
TEXT = Content(b"r", TOKENS)
FULL = FullAttentionSpec(SIZE, 1, 8, "float16")


def test_each_ring_of_a_request_is_read_in_full() -> None:
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
    require_same_events(expected, list(expected))
    with pytest.raises(InvariantViolation, match=rule):
        require_same_events(expected, got)


def test_a_key_counts_once_for_each_block_that_has_it() -> None:
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
    order = {b"z" * 8 + name.encode() * 8 + bytes((0, 0, 0, 1)): at for name, at in blocks.items()}
    return Snapshot(9, (), (), (), order, (), b"", {})


@pytest.mark.parametrize("int_hashes", [False, True])
def test_what_events_tell_is_what_is_cached(int_hashes: bool) -> None:
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


def of(shadow: ShadowMemory, block: int, content: Content = TEXT) -> object:
    return shadow.first_offence(block, 0, 2, 0, 2, content)


def test_a_copy_reads_what_was_there_when_the_step_began() -> None:
    shadow = ShadowMemory(copies=True)
    mine, yours = Content(b"", (1, 2)), Content(b"", (3, 4))
    shadow.write(3, 0, 2, 0, range(2), mine)
    shadow.new_step_starts()
    shadow.copy(3, 4)
    assert (of(shadow, 4, mine), shadow.copied_early) == (None, set())
    shadow.write(3, 0, 2, 0, range(1, 2), yours)
    shadow.write(3, 0, 2, 0, range(1), yours)
    shadow.copy(3, 5)
    assert (of(shadow, 3, yours), of(shadow, 5, mine)) == (None, None)
    assert shadow.copied_early == {5}
    assert shadow.take_written() == {3, 4, 5}
    shadow.copy(9, 5)
    assert (of(shadow, 5), shadow.copied_early) == ((0, "nothing"), set())
    shadow.copy(4, 5)  # nothing was in 4 when the step began
    assert (of(shadow, 5, mine), shadow.copied_early) == ((0, "nothing"), {5})
    shadow.copy(3, 6)
    assert shadow.copied_early == {5, 6}
    shadow.write(6, 0, 2, 0, range(1, 2), yours)
    assert shadow.copied_early == {5, 6}
    shadow.write(6, 0, 2, 0, range(2), yours)
    assert shadow.copied_early == {5}
    shadow.new_step_starts()
    shadow.copy(3, 7)
    assert (of(shadow, 7, yours), shadow.copied_early) == (None, {5})
