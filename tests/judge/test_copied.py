"""Shadow memory of drafts, copies and keys: what is read of them, and what is said, to the word."""

from __future__ import annotations

from typing import Any

import pytest

from kvcheck.play.shadow.claims import Claims
from kvcheck.play.shadow.content import Content, ShadowMemory
from kvcheck.play.shadow.content_check import ContentCheck, first_token_read, is_in_gap
from kvspec.errors import InvariantViolation
from kvspec.snapshot import Snapshot
from kvspec.specs import ChunkedLocalAttentionSpec, RSWASpec, SlidingWindowSpec
from tests.judge.test_contents import LONGEST, OTHER, TEXT, states
from tests.programs import configure, full

BLOCKS = [3, 4, 5, 6, 7, 8]


def drafted() -> ContentCheck:
    """Blocks of two tokens, with nine tokens and three drafts behind them."""
    check = ContentCheck(configure(30, full(2), max_model_len_tokens=12))
    check.write_granted("r", TEXT, [BLOCKS], start=0, num_external=0, num_new=12)
    return check


def said(check: ContentCheck, content: Content, length: int) -> str | None:
    try:
        check.read_held("r", "held", content, [BLOCKS], length, "KV-HASH-1")
    except InvariantViolation as error:
        return error.detail
    return None


def test_drafts_of_another_prefix_or_group_are_not_accepted() -> None:
    shadow = drafted().shadow
    other = Content(b"another", LONGEST.tokens)
    shadow.take_written()
    shadow.accept(7, 0, 2, 4, range(9, 10), other)
    shadow.accept(7, 1, 2, 4, range(9, 10), LONGEST)
    assert shadow.take_written() == set()
    assert shadow.first_offence(7, 0, 2, 4, 2, LONGEST) == (1, "a draft")
    shadow.accept(7, 0, 2, 4, range(9, 10), LONGEST)
    assert shadow.take_written() == {7}
    assert shadow.first_offence(7, 0, 2, 4, 2, LONGEST) is None
    assert shadow.first_offence(7, 1, 2, 4, 2, LONGEST) == (0, "content of group 0")
    assert shadow.size_bytes == 6 * (300 + 8 * 2)


def of(shadow: ShadowMemory, block: int, content: Content = TEXT) -> object:
    """Return the violation at the first two tokens in a block."""
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


def test_a_copy_of_what_nobody_saw_is_unknown_too() -> None:
    shadow = ShadowMemory(copies=True)
    shadow.write(4, 0, 2, 0, range(2), TEXT)
    shadow.forget([3])
    shadow.copy(3, 4)
    assert of(shadow, 4, OTHER) is None
    shadow.copy(9, 4)
    assert of(shadow, 4) == (0, "nothing")
    shadow.write_state(5, 0, 3, b"after")
    assert shadow.is_of_this_step(5)
    shadow.new_step_starts()
    shadow.copy(5, 6)
    assert shadow.holds_state(6, 0, b"after")
    assert not shadow.holds_state(6, 1, b"after")
    assert not shadow.holds_state(9, 0, b"after")
    assert not shadow.is_of_this_step(6)
    shadow.write_state(6, 0, 3, b"after")
    assert not shadow.is_of_this_step(6)  # as it was
    shadow.write_state(6, 0, 3, b"")
    assert shadow.is_of_this_step(6)
    assert shadow.state_offence(6, 0, b"after") == "the state after 3 tokens with drafts"
    assert shadow.state_offence(6, 1, b"after") == "content of group 0"
    assert shadow.state_offence(9, 0, b"after") == "nothing"
    shadow.settle_state(6, 0, 4, b"after")
    shadow.settle_state(6, 1, 3, b"after")
    assert not shadow.holds_state(6, 0, b"after")
    shadow.settle_state(6, 0, 3, b"after")
    assert shadow.holds_state(6, 0, b"after")
    shadow.forget([6])
    assert not shadow.is_of_this_step(6)
    assert shadow.state_offence(6, 1, b"another") is None


@pytest.mark.parametrize(
    ("pairs", "retained", "is_kept"),
    [
        ([[3, 4]], [4, 3], True),
        ([[3, 4], [3, 5]], [3, 3, 4, 5], True),
        ([[3, 4]], [3], False),
        ([], [3], False),
        ([[1, 29]], [1, 29], True),
        ([[0, 4]], [0, 4], False),
        ([[3, 30]], [3, 30], False),
    ],
)
def test_both_ends_of_each_copy_are_kept(
    pairs: list[list[int]], retained: list[int], is_kept: bool
) -> None:
    check = ContentCheck(configure(30, full(2)), inside=True)
    check.shadow.write(3, 0, 2, 0, range(2), TEXT)
    check.new_step_starts()
    if is_kept:
        check.copy(pairs, retained, 30)
        for source, end in pairs:
            assert of(check.shadow, end) == of(check.shadow, source)
        return
    with pytest.raises(InvariantViolation) as caught:
        check.copy(pairs, retained, 30)
    assert (caught.value.invariant, caught.value.rule) == ("ends_of_copies_are_kept", "KV-INSIDE-4")
    assert caught.value.detail == f"copies {pairs}, and references to {retained} to be returned"


def keyed(**keys: bytes) -> Snapshot:
    """A pool of which some blocks have a key."""
    of_block = tuple((keys[f"b{block}"],) if f"b{block}" in keys else () for block in range(10))
    return Snapshot(10, (), (), of_block, {}, (), b"", {})


HASHES = (b"first", b"second", b"third")
GROUP = b"\0\0\0\0"


def claims(early: bool = False) -> Claims:
    """Of the first six tokens block 3 has two, and block 4 the third: by hashes of two tokens."""
    check = ContentCheck(configure(30, full(4), max_model_len_tokens=12), inside=True)
    check.write_granted("r", TEXT, [[3, 4]], start=0, num_external=0, num_new=2)
    check.shadow.write(4, 0, 4, 1, range(4, 5), TEXT)
    if early:
        check.shadow.copied_early.update((3, 4))
    found = Claims(check, 2)
    found.learn(TEXT, HASHES)
    found.learn(OTHER, HASHES[:1])  # who comes first is right
    return found


def offence(claims: Claims, snapshot: Snapshot) -> Any:
    try:
        claims.read(snapshot, "free")
    except InvariantViolation as error:
        return error.invariant, error.rule, error.detail
    return None


@pytest.mark.parametrize(
    ("keys", "block", "tokens", "held"),
    [
        ({"b3": b"first" + GROUP}, 0, 0, ""),
        ({"b3": b"unknown" + GROUP, "b4": b"unknown" + GROUP}, 0, 0, ""),
        ({"b3": b"second" + GROUP}, 3, 4, "nothing in slot 2"),
        ({"b3": b"first" + GROUP, "b4": b"third" + GROUP}, 4, 6, "nothing in slot 1"),
        ({"b4": b"first" + GROUP}, 4, 2, "token 104 of another prefix in slot 0"),
        ({"b5": b"first" + GROUP}, 5, 2, "nothing in slot 0"),
        ({"b3": b"second\0\0\0\1"}, 0, 0, ""),
    ],
)
def test_a_key_claims_no_more_than_what_is_there(
    keys: dict[str, bytes], block: int, tokens: int, held: str
) -> None:
    found = offence(claims(), keyed(**keys))
    if not held:
        assert found is None
        return
    words = (
        f"after free: a key of group 0 says that block {block} holds the first {tokens} tokens;"
        f" it holds {held}"
    )
    assert found == ("keys_claim_what_is_there", "KV-INSIDE-2", words)
    early = offence(claims(early=True), keyed(**keys))
    expected = ("copies_read_what_was_there", "KV-INSIDE-6") if block < 5 else found[:2]
    assert early == (*expected, words)


def test_what_a_key_names_is_looked_at_when_it_is_written() -> None:
    """Not again while nobody writes there, and not as a new claim."""
    told, snapshot = claims(), keyed(b3=b"first" + GROUP)
    assert offence(told, snapshot) is None
    told.check.shadow._held[3].tokens[1] = 9
    assert offence(told, snapshot) is None
    told.check.shadow.write(3, 0, 4, 0, range(1, 2), OTHER)
    assert offence(told, snapshot) is None  # both begin so
    other = Content(b"r", (100, 9))
    told.check.shadow.write(3, 0, 4, 0, range(1, 2), other)
    found = offence(told, snapshot)
    assert found[:2] == ("nobody_writes_what_a_key_names", "KV-INSIDE-3")
    assert found[2].endswith("block 3 holds the first 2 tokens; it holds token 9 in slot 1")


def test_a_key_of_a_state_stands_for_the_state_after_its_tokens() -> None:
    check = ContentCheck(configure(30, full(3), states("align"), max_model_len_tokens=12))
    check.write_granted("r", TEXT, [[3, 4], [5, 6]], start=0, num_external=0, num_new=6)
    assert check.offence_at(6, 1, TEXT, 6) is None
    assert check.offence_at(6, 1, TEXT, 3) == "the state after 6 tokens of some prefix"
    assert check.offence_at(4, 0, TEXT, 6) is None
    assert check.offence_at(4, 0, TEXT, 7) == "token 103 of another prefix in slot 0"
    assert check.offence_at(4, 7, TEXT, 7) is None


WINDOW = SlidingWindowSpec(2, 1, 8, "float16", sliding_window=3)
CHUNKED = ChunkedLocalAttentionSpec(2, 1, 8, "float16", attention_chunk_size=4)
GAPS = RSWASpec(2, 1, 8, "float16", rswa_window=3)


def test_which_tokens_are_read_from_a_position_on() -> None:
    positions = range(9)
    assert [first_token_read(WINDOW, each) for each in positions] == [0, 0, 0, 1, 2, 3, 4, 5, 6]
    assert [first_token_read(CHUNKED, each) for each in positions] == [0, 0, 0, 0, 4, 4, 4, 4, 8]
    assert [first_token_read(GAPS, each) for each in positions] == [0] * 9


@pytest.mark.parametrize(
    ("prompt", "tokens", "is_gap"),
    [
        (2, range(2, 4), True),
        (2, range(1, 3), False),
        (None, range(2), True),
        (2, range(4, 6), False),
        (0, range(3, 5), True),
        (0, range(4, 6), False),
    ],
)
def test_a_gap_lies_behind_the_prompt_and_before_the_window(
    prompt: int | None, tokens: range, is_gap: bool
) -> None:
    content = Content(b"", range(9))
    content.num_prompt = prompt
    assert is_in_gap(GAPS, content, tokens, 8) is is_gap
    assert not is_in_gap(full(2), content, tokens, 8)
