"""Batches as bytes, and real ZeroMQ: what was lost, repeated or damaged is healed."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest

import kvfast
import kvref
from kvcheck.fleet import stream
from kvcheck.fleet.suite import game_of
from kvcheck.mistakes import Mistake
from kvcheck.play.lives import broken_by
from kvspec.errors import InvalidArgumentError
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored
from kvspec.fleet import Batch, MediumCleared, WireError
from kvspec.interface import Implementation
from tests.device.mistakes import planted
from tests.fleet.traffic import cached, index_of, managed, removed, stored, traffic

msgspec = pytest.importorskip("msgspec", reason="needs the extra fleet (msgspec, pyzmq)")
zmq = pytest.importorskip("zmq", reason="needs the extra fleet (msgspec, pyzmq)")

from kvfast.fleet import sockets  # noqa: E402 (the same)
from kvfast.fleet.publisher import Publisher, PublisherOptions  # noqa: E402 (after the check above)
from kvfast.fleet.view import FleetView, Source  # noqa: E402 (the same)
from kvfast.fleet.wire import (  # noqa: E402 (the same)
    batch_as_state,
    decode_batch,
    decode_message,
    encode_batch,
    state_as_batch,
)
from tests.fleet.views import (  # noqa: E402 (the same)
    PATIENCE_S,
    Views,
    a_clock_is_set_back,
    no_peer_holds_a_view,
)

HERE = "tcp://127.0.0.1:*"


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    with Publisher(PublisherOptions(HERE, replay=HERE)) as made:
        yield made


def viewing(publisher: Publisher, *, replay: bool = True) -> FleetView:
    """Open a view that listens to one engine, e."""
    source = Source(publisher.endpoint, publisher.replay if replay else None)
    return FleetView({"e": source}, pause_s=0.0)


def read_until(view: FleetView, number: int, *, is_first: bool = False) -> None:
    """Read until this batch is applied; the first one may be sent before the subscription is."""
    end = time.monotonic() + PATIENCE_S
    while "e" not in view.index.engines or view.index.last("e")[0] < number:
        if not view.poll(0.5) and is_first:
            view.catch_up("e")
        if time.monotonic() > end:
            raise TimeoutError(f"{view.index.engines}, {view.counts}")


@pytest.mark.rule("KV-FLEET-10")
def test_a_batch_has_the_form_that_engines_publish() -> None:
    """Read without our types; vLLM's own read it in test_vllm.py."""
    payload = encode_batch(Batch(0, 1.5, (stored(b"a"), removed(7), AllBlocksCleared())), rank=2)
    time_s, events, rank = msgspec.msgpack.decode(payload)
    assert (time_s, rank) == (1.5, 2)
    assert events[0].items() >= {"type": "BlockStored", "block_hashes": [b"a"]}.items()
    assert events[0].items() >= {"parent_block_hash": None, "lora_id": None}.items()
    assert events[1] == {
        "type": "BlockRemoved",
        "block_hashes": [7],
        "medium": "GPU",
        "group_idx": 0,
    }
    assert events[2] == {"type": "AllBlocksCleared"}
    example = "93cb3ff80000000000009181a474797065b0416c6c426c6f636b73436c6561726564c0"
    assert encode_batch(Batch(0, 1.5, (AllBlocksCleared(),))).hex() == example


@pytest.mark.rule("KV-FLEET-10")
@pytest.mark.parametrize("implementation", [kvref.implementation(), kvfast.implementation()])
def test_what_managers_tell_survives_the_wire(implementation: Implementation) -> None:
    manager = managed(implementation, 40)
    for number, _ in zip(range(60), traffic(implementation, manager, Random(1)), strict=False):
        batch = Batch(number, float(number), manager.take_events())
        assert decode_batch(number.to_bytes(8, "big"), encode_batch(batch)) == batch


def packed(*events: object, time_s: object = 1.0, rank: int | None = None) -> bytes:
    """Pack a payload that may be nonsense."""
    found: bytes = msgspec.msgpack.encode([time_s, list(events), rank])
    return found


REMOVED = {"type": "BlockRemoved", "block_hashes": [b"a"], "medium": "GPU"}


@pytest.mark.rule("KV-FLEET-10")
def test_what_is_not_there_has_its_meaning_and_what_is_unknown_is_passed_over() -> None:
    payload = packed({**REMOVED, "medium": None, "locality": "LOCAL", "more": [1]})
    assert decode_batch(bytes(8), payload).events == (removed(b"a"),)


@pytest.mark.rule("KV-FLEET-10")
@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        packed(REMOVED)[:-3],
        packed(time_s="now"),
        packed(time_s=float("nan")),
        packed(["BlockRemoved"]),
        packed({**REMOVED, "type": 7}),
        packed({**REMOVED, "type": "BlockMoved"}, {**REMOVED, "group_idx": -1}),
        packed({"type": "AllBlocksCleared", "medium": 1}),
        packed(rank=-1),
        packed({**REMOVED, "block_hashes": None}),
        packed({**REMOVED, "block_hashes": ["a"]}),
        packed({**REMOVED, "group_idx": -1}),
        packed({"type": "BlockStored", "block_hashes": []}),
        msgspec.msgpack.encode({"ts": 1.0}),
        b"\x91" * 5000,
        # Text that is not UTF-8: a type, and a medium.
        packed(REMOVED).replace(b"BlockRemoved", b"Block\xffemoved"),
        packed(REMOVED).replace(b"GPU", b"G\xffU"),
    ],
)
def test_nonsense_is_a_wire_error(payload: bytes) -> None:
    with pytest.raises(WireError):
        decode_batch(bytes(8), payload)
    with pytest.raises(WireError, match="7 bytes"):
        decode_batch(bytes(7), packed(REMOVED))


@pytest.mark.rule("KV-FLEET-12")
def test_a_cleared_medium_is_read_and_written() -> None:
    payload = packed({"type": "AllBlocksCleared", "medium": "CPU"}, {"type": "AllBlocksCleared"})
    batch = decode_batch(bytes(8), payload)
    assert batch.events == (MediumCleared("CPU"), AllBlocksCleared())
    assert decode_batch(bytes(8), encode_batch(batch)) == batch


@pytest.mark.rule("KV-FLEET-13")
def test_an_event_of_an_unknown_type_is_passed_over() -> None:
    """Put it between two that are known."""
    moved = {"type": "BlockMoved", "block_hashes": "any", "to": {"medium": "DISK"}}
    message = decode_message(bytes(8), packed(REMOVED, moved, {**REMOVED, "medium": "CPU"}, rank=3))
    assert message.batch.events == (removed(b"a"), removed(b"a", medium="CPU"))
    assert (message.num_unknown, message.rank) == (1, 3)


@pytest.mark.rule("KV-FLEET-18")
def test_events_may_be_arrays() -> None:
    events_are_arrays()
    with pytest.raises(WireError, match="8 members, not 7"):
        decode_batch(bytes(8), packed(["BlockStored", [1], None, [1], 1, None, "GPU", None, []]))


def events_are_arrays() -> None:
    """Decode SGLang's arrays, with few and all members, between events with names."""
    one, other = ["BlockStored", [1], None, [1, 2], 2, None], ["BlockRemoved", [b"a"], "CPU"]
    batch = decode_batch(bytes(8), packed(REMOVED, one, other, ["AllBlocksCleared"], REMOVED))
    first = BlockStored((1,), None, (1, 2), 2, None, None, "GPU", None, 0, "", None)
    middle = (first, removed(b"a", medium="CPU"), AllBlocksCleared())
    assert batch.events == (removed(b"a"), *middle, removed(b"a"))


@pytest.mark.rule("KV-FLEET-15")
def test_to_close_takes_no_longer_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a socket open, for which a context waits for ever, and a reply that never ends."""
    monkeypatch.setattr(sockets, "MOST_SECONDS_TO_END", 0.1)
    view = FleetView({"e": Source("inproc://nobody")})
    left = view._context.socket(zmq.SUB)
    view.close()
    left.close()
    going_on = threading.Event()
    server = threading.Thread(target=going_on.wait, daemon=True)
    server.start()
    with zmq.Context() as context, context.socket(zmq.PULL) as empty:
        assert sockets.received(empty) == []
        assert not sockets.end(context, (), server=server)
    going_on.set()


@pytest.mark.rule("KV-FLEET-11", "KV-FLEET-13", "KV-FLEET-14")
@pytest.mark.parametrize("max_kept", [10_000, 1])
def test_a_view_knows_what_engines_have_that_restart_and_lose_batches(max_kept: int) -> None:
    views_are_right(30, max_kept=max_kept)


def views_are_right(num_lives: int, *, max_kept: int = 10_000) -> None:
    """Play the lives of `kvspec check --index`, two ranks behind one source among the engines."""
    game = game_of(Views(max_kept), kvref.implementation())
    with patch.object(stream, "PATIENCE_S", PATIENCE_S / 2):  # of a machine that others use, too
        for seed in range(num_lives):
            assert broken_by(game, game.begun(game.drawn(seed))) is None


@pytest.mark.rule("KV-FLEET-15")
def test_no_peer_holds_a_view() -> None:
    no_peer_holds_a_view()


@pytest.mark.rule("KV-FLEET-16", "KV-FLEET-2")
def test_a_clock_that_was_set_back_loses_nothing() -> None:
    a_clock_is_set_back()


@pytest.mark.rule("KV-FLEET-11")
def test_members_that_are_nil_may_be_left_out() -> None:
    """Omit them as SGLang 0.5 does; kvfast writes every member but the later ones."""
    stored_event = {
        "type": "BlockStored",
        "block_hashes": [7],
        "token_ids": [1, 2],
        "block_size": 2,
    }
    events = [stored_event, {"type": "BlockRemoved", "block_hashes": [7]}]
    batch = decode_batch(bytes(8), msgspec.msgpack.encode([1.5, events, 0]))
    told, gone = batch.events
    assert isinstance(told, BlockStored)
    assert (told.parent_block_hash, told.lora_id, told.lora_name) == (None, None, None)
    assert (told.medium, gone) == ("GPU", BlockRemoved((7,), "GPU", 0))
    (written, _) = msgspec.msgpack.decode(encode_batch(batch))[1]
    assert {"parent_block_hash", "lora_id", "medium", "lora_name"} <= written.keys()


def test_a_state_goes_out_as_a_batch() -> None:
    """Encode two copies of one key, and two groups."""
    index = index_of(kvref.implementation())
    index.hear("e", Batch(0, 3.0, (stored(b"a", b"b"), stored(b"a", group=1), stored(b"a"))))
    state = index.state("e")
    assert batch_as_state(state_as_batch(state)) == state
    for events in ((), (stored(b"a"),), (AllBlocksCleared(), removed(b"a"))):
        with pytest.raises(WireError):
            batch_as_state(Batch(0, 0.0, events))


@pytest.mark.rule("KV-FLEET-11")
@pytest.mark.parametrize("kept", [1000, 1], ids=["replay", "state"])
def test_a_gap_is_healed_by_a_replay_or_a_state(kept: int) -> None:
    """Heal it by a replay, or by a state where too little was kept."""
    options = PublisherOptions(HERE, replay=HERE, max_kept=kept)
    with Publisher(options) as publisher, viewing(publisher) as view:
        view.poll(0.2)  # connected
        for letter in b"abcde":
            publisher.publish([stored(bytes([letter]))])
        read_until(view, 4)
        view.index.forget("e")  # as if all of it had been lost
        publisher.publish([removed(b"a")])
        read_until(view, 5)
        assert {key[2] for key in view.index.state("e").keys} == {b"b", b"c", b"d", b"e"}
        assert view.index.state("e").is_whole
        assert (view.counts.replays, view.counts.states) == ((1, 0) if kept > 1 else (0, 1))


@pytest.mark.rule("KV-FLEET-11", "KV-FLEET-7")
def test_without_anybody_to_ask_a_gap_is_given_up(publisher: Publisher) -> None:
    publisher.publish([stored(b"a")])
    with viewing(publisher, replay=False) as view:
        view.poll(0.2)
        assert publisher.publish([]) is None
        publisher.publish([stored(b"b")])
        read_until(view, 1)
        assert view.index.prefixes((b"b",)) == {"e": 1}
        assert not view.index.state("e").is_whole
        assert view.counts.given_up == 1
        assert not view.catch_up("e")
        with pytest.raises(InvalidArgumentError, match="name"):
            view.catch_up("f")


@pytest.mark.rule("KV-FLEET-11", "KV-FLEET-5")
def test_an_engine_that_restarts_is_noticed(publisher: Publisher) -> None:
    """Publish three batches to a view, and then restart with another content."""
    for letter in b"abc":
        publisher.publish([stored(bytes([letter]))])
    with viewing(publisher) as view:
        view.catch_up("e")
        endpoint, replay = publisher.endpoint, publisher.replay
        publisher.close()
        with Publisher(PublisherOptions(endpoint, replay=replay)) as again:
            again.publish([stored(b"z")])
            assert view.catch_up("e")
            assert {key[2] for key in view.index.state("e").keys} == {b"z"}
            assert view.counts.restarts == 1


@pytest.mark.rule("KV-FLEET-11")
def test_silence_is_waited_for(publisher: Publisher) -> None:
    publisher.publish([stored(b"a")])
    nobody = Source(publisher.endpoint, "tcp://127.0.0.1:9")
    with FleetView({"e": nobody}, answer_timeout_s=0.05, pause_s=60.0) as view:
        view.poll(0.2)
        publisher.publish([stored(b"b")])
        end = time.monotonic() + PATIENCE_S
        while not view.counts.gaps and time.monotonic() < end:
            view.poll(0.05)
        view.poll(0.05)
        assert view.index.missing("e") == (0, 1)
        assert (view.counts.unanswered, view.counts.given_up) == (1, 0)


def known_at_moments(num_events: int, num_moments: int, *, kept: int) -> None:
    """Publish a manager's events; a view that forgot all knows what is cached, moment by moment."""
    random, kv = Random(num_events), kvfast.implementation()
    manager = managed(kv, 120)
    steps = traffic(kv, manager, random)
    options = PublisherOptions(HERE, replay=HERE, max_kept=kept)
    told, numbers = 0, list[int]()
    with Publisher(options) as publisher, viewing(publisher) as view:
        for moment in [*sorted(random.sample(range(1, num_events), num_moments)), num_events]:
            while told < moment:
                next(steps)
                events = manager.take_events()
                told += len(events)
                number = publisher.publish(events)
                numbers += [] if number is None else [number]
                view.poll()
            if random.random() < 0.3:
                view.index.forget("e")
            assert view.catch_up("e")
            state = view.index.state("e")
            assert (state.number, state.is_whole) == (numbers[-1], True)
            assert state.keys == cached(manager.snapshot())
        assert numbers == [*range(len(numbers))]
        assert bool(view.counts.states) == (kept < 100)


@pytest.mark.rule("KV-FLEET-4", "KV-FLEET-11", "KV-EVT-7")
@pytest.mark.parametrize("kept", [10_000, 3])
def test_at_every_moment_a_view_knows_what_is_cached(kept: int) -> None:
    known_at_moments(10_000, 40, kept=kept)


MISTAKES = planted(Path(__file__).parent / "planted/view.diff")


# With NumbersTwice the publisher's own index may be stale when it is asked: its thread dies then.
# With AddsNoState the engine may be one that sent nothing.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: str(one.id))
def test_a_mistake_on_the_way_is_found(mistake: Mistake) -> None:
    found = (AssertionError, TimeoutError, WireError, InvalidArgumentError, UnicodeDecodeError)
    with mistake.make(), pytest.raises(found):
        everything_that_can_happen()


def everything_that_can_happen() -> None:
    """Lose messages that a replay restores, or only a state, and restart."""
    with pytest.raises(WireError):
        decode_batch(bytes(8), packed(REMOVED).replace(b"GPU", b"G\xffU"))
    test_an_event_of_an_unknown_type_is_passed_over()
    events_are_arrays()
    test_a_state_goes_out_as_a_batch()
    views_are_right(12)
    no_peer_holds_a_view()
    a_clock_is_set_back()
    known_at_moments(3_000, 15, kept=10_000)
    known_at_moments(3_000, 15, kept=3)
    test_a_gap_is_healed_by_a_replay_or_a_state(1000)
    test_a_gap_is_healed_by_a_replay_or_a_state(1)
    with Publisher(PublisherOptions(HERE, replay=HERE)) as publisher:
        test_an_engine_that_restarts_is_noticed(publisher)


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_of_a_million_events_a_view_knows_what_is_cached_at_a_thousand_moments() -> None:
    known_at_moments(1_000_000, 1_000, kept=10_000)
