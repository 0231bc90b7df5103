"""Checks after every operation and step: content, results, events, transitions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import kvref
from kvcheck.play import checks
from kvcheck.play.agreement import require_same_events
from kvcheck.play.checks import CompareCheck, EventCheck, InvariantCheck, ShadowCheck, identities
from kvcheck.play.difference import WrongAnswer
from kvcheck.play.player import Outcome
from kvcheck.play.runner import Performed, Tracked
from kvcheck.play.scheduler import Seat
from kvcheck.play.shadow.content import Content, ShadowMemory
from kvcheck.play.shadow.content_check import ContentCheck
from kvcheck.play.shadow.event_fold import EventFold
from kvcheck.play.state import View
from kvcheck.play.steps import Admit, Arrive
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from kvspec.interface import Feature
from kvspec.policy import Policy
from kvspec.snapshot import Snapshot
from kvspec.specs import CircularBufferSpec, FullAttentionSpec
from tests.judge.test_verdicts import ran
from tests.programs import CFG, A
from tests.stand_ins import Lacks

REFERENCE = kvref.implementation()
ITEM = Arrive((1, 2, 3, 4), items=(("i", 1, 2), ("j", 2, 1)))
EMBEDDED = Arrive((1, 2, 3, 4), embedded=(9, 9))


def told_apart(arrival: Arrive, start: int = 0) -> list[int]:
    tokens = arrival.prompt[start:]
    return list(identities(Tracked("r0", arrival, Seat.of(arrival.prompt)), start, tokens))


def test_items_and_embeddings_tell_tokens_apart() -> None:
    assert told_apart(Arrive((1, 2, 3))) == [1, 2, 3]
    plain, first, second, last = told_apart(ITEM)
    assert (plain, last) == (1, 4)
    assert len({first, second, 2, 3}) == 4
    assert told_apart(ITEM, 2) == [second, 4]
    for items in ((("k", 1, 2), ("j", 2, 1)), (("i", 0, 3), ("j", 2, 1)), (("i", 1, 2),)):
        assert told_apart(replace(ITEM, items=items))[2] != second
    zero, one, *rest = told_apart(EMBEDDED)
    assert (zero != 1, one != 2, rest) == (True, True, [3, 4])
    assert told_apart(EMBEDDED, 1) == [one, 3, 4]
    assert told_apart(replace(EMBEDDED, embedded=(9, 8)))[:2] != [zero, one]
    assert told_apart(replace(EMBEDDED, embedded=(8, 9)))[1] == one


def done(name: str, result: Any = None, **more: Any) -> Performed:
    view = View(5, 0.5, REFERENCE.create(CFG).snapshot())
    kept = {"before": view, "after": view, "oracle": Outcome(result), "oracle_after": view, **more}
    return Performed(name, None, {}, Outcome(result), **kept)


@pytest.mark.parametrize("exact_ids", [True, False])
def test_an_answer_and_how_much_is_free_are_compared_with_the_oracle(exact_ids: bool) -> None:
    check, runner = CompareCheck(exact_ids=exact_ids), ran()
    view = done("free").after
    blocks = replace(view.snapshot, free_queue=())
    cases = {
        "pop_blocks_for_free answers": done("pop_blocks_for_free", [1], oracle=Outcome([1, 2])),
        "free blocks after free": done("free", oracle_after=replace(view, num_free_blocks=4)),
    }
    if exact_ids:
        cases["free_queue after free"] = done("free", after=replace(view, snapshot=blocks))
        cases["pop_blocks_for_free answers "] = done(
            "pop_blocks_for_free", [1], oracle=Outcome([2])
        )
    check.after_operation(runner, done("free"))
    for what, one in cases.items():
        with pytest.raises(WrongAnswer) as caught:
            check.after_operation(runner, one)
        assert caught.value.expected.startswith(what.strip())
        check.after_operation(runner, replace(one, oracle=None))
        check.after_operation(runner, replace(one, oracle_after=None))


def test_events_are_taken_of_both_sides_after_each_step() -> None:
    runner = ran(Arrive(A), Admit(), oracle=REFERENCE)
    assert runner.oracle is not None
    check = EventCheck()
    check.after_step(runner)
    assert check.fold is not None
    assert len(check.fold.keys) == 2
    for side in (runner.subject, runner.oracle):
        assert side.player.manager.take_events() == ()
    runner.oracle.player.manager.reset_prefix_cache = lambda: True  # type: ignore[method-assign]
    told = AllBlocksCleared()
    runner.subject.player.manager.take_events = lambda: (told,)  # type: ignore[method-assign]
    check.fold.keys.clear()
    runner.look_again()
    with pytest.raises(WrongAnswer, match="KV-EVT-1"):
        check.after_step(runner)
    silent = ran()
    silent.config = replace(CFG, enable_events=False)
    EventCheck().after_step(silent)
    silent.subject.player.manager.take_events = lambda: (told,)  # type: ignore[method-assign]
    with pytest.raises(InvariantViolation) as caught:
        EventCheck().after_step(silent)
    assert (caught.value.invariant, caught.value.rule) == ("no_event_when_off", "KV-EVT-1")
    silent.subject.features -= {Feature.EVENTS}
    EventCheck().after_step(silent)


@pytest.mark.parametrize(
    ("name", "outcome", "told"),
    [
        ("allocate_slots", Outcome(None), "refused"),
        ("allocate_slots", Outcome([[]]), "done"),
        ("reset_prefix_cache", Outcome(False), "refused"),
        ("reset_prefix_cache", Outcome(True), "done"),
        ("free", Outcome(None), "done"),
        ("free", Outcome(error=ValueError()), "error"),
        ("get_block_ids", Outcome({}), "done"),
    ],
)
def test_a_transition_is_told_with_its_ending(
    name: str, outcome: Outcome, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(checks, "check_transition", lambda *a, **k: seen.append((a, k)))
    for subject, left_out in (
        (REFERENCE, frozenset()),
        (Lacks(Feature.STABLE_LISTS), checks.UNSTABLE_LISTS),
    ):
        runner = ran(subject=subject)
        for inside in (False, True):
            runner.ends_inside = inside
            one = replace(done(name), outcome=outcome)
            InvariantCheck().after_operation(runner, one)
            (config, transition), more = seen.pop()
            assert config == runner.config
            assert (transition.call, transition.outcome) == (
                {"get_block_ids": "get_blocks"}.get(name, name), told,
            )  # fmt: skip
            assert transition.before is one.before.snapshot
            assert transition.after is one.after.snapshot
            assert more == {"left_out": left_out | (checks.MOVED_KEYS if inside else frozenset())}


def test_a_load_that_is_awaited_is_written_when_it_arrives() -> None:
    runner = ran(Arrive(A), Admit(external_tokens=4, load_later=True))
    (request,) = runner.requests
    asked = next(given for name, _, given in runner.operations if name == "allocate_slots")

    def waiting() -> ShadowCheck:
        check = ShadowCheck(runner)
        waits = replace(request, seat=Seat.of(A))
        check._write_granted(runner, waits, asked)
        assert check.awaited == {"r0": asked}
        assert check.check.shadow.take_written() == {1, 2}
        assert check.check.shadow.size_bytes == 0
        return check

    for name in ("cache_blocks", "evict_blocks"):
        check = waiting()
        one = replace(done(name), request=request, lost=(2,) if name == "evict_blocks" else ())
        check._after_operation(runner, one)
        assert check.awaited == {}
        there = [block for block in (1, 2) if check.check.shadow._held.get(block)]
        assert there == ([1] if name == "evict_blocks" else [1, 2])
    for name in ("free", "pop_blocks_for_free"):
        check = waiting()
        check._after_operation(runner, replace(done(name), request=request))
        assert check.awaited == {}
        assert check.check.shadow.size_bytes == 0
    check = waiting()
    check._after_operation(runner, replace(done("evict_blocks"), lost=(7,)))
    assert check.awaited == {"r0": asked}


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
