"""An engine that sends what a test says, and a view of it (KV-FLEET-14 … KV-FLEET-16)."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from itertools import count
from typing import Any

import pytest
import zmq

from kvfast.fleet.sockets import end, received
from kvfast.fleet.view import FleetView, Limits, Source
from kvfast.fleet.wire import END, encode_batch
from kvspec.errors import InvalidArgumentError
from kvspec.fleet import Batch
from tests.fleet.traffic import removed, stored

PATIENCE_S = 20.0


class Peer:
    """An engine that sends what the test wants, damaged or not, and a view of it.

    `kept`: numbers and payloads sent for a replay; damage without an end follows them if it is
    `endless`.
    """

    def __init__(self, **options: Any) -> None:
        self.context = zmq.Context()
        self.pub = self.context.socket(zmq.PUB)
        self.router = self.context.socket(zmq.ROUTER)
        ports = [s.bind_to_random_port("tcp://127.0.0.1") for s in (self.pub, self.router)]
        here, replay = (f"tcp://127.0.0.1:{port}" for port in ports)
        self.view = FleetView({"pod": Source(here, replay)}, pause_s=0.0, **options)
        self.kept: list[tuple[bytes, bytes]] = []
        self.endless = False
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def connect(self) -> None:
        """Send damaged messages until the view has received some."""
        end = time.monotonic() + PATIENCE_S
        while not self.view.counts.damaged:
            assert time.monotonic() < end
            self.pub.send_multipart([b"", b""])
            self.view.poll(0.05)
        while self.view.poll(0.05):
            pass

    def send(self, batch: Batch, *, rank: int | None = None) -> None:
        """Publish a batch, and keep it for replays."""
        frames = batch.number.to_bytes(8, "big"), encode_batch(batch, rank=rank)
        self.kept.append(frames)
        self.pub.send_multipart([b"", *frames])

    def serve(self) -> None:
        """Serve requests for replays; no state is known here."""
        while not self.stopped.is_set():
            if not self.router.poll(20):
                continue
            request = received(self.router)
            if len(request) != 3:
                continue
            who, _, wanted = request
            kept = [one for one in self.kept if len(wanted) == 8 and one[0] >= wanted]
            for frames in kept:
                self.router.send_multipart((who, b"", b"", *frames))
            # A router that gave up asks again, on another socket.
            while self.endless and not self.stopped.wait(0.001) and not self.router.poll(0):
                self.router.send_multipart((who, b"", b"", bytes(8), b"junk"))
            self.router.send_multipart((who, b"", b"", END, b""))

    def close(self) -> None:
        """Stop serving, and close all sockets."""
        self.stopped.set()
        self.view.close()
        end(self.context, (self.pub, self.router), server=self.thread)

    def heard(self, name: str) -> set[object]:
        """Return the hashes that an engine has after all that was sent."""
        while self.view.poll(0.2):
            pass
        return {key[2] for key in self.view.index.state(name).keys}


def no_peer_holds_a_view() -> None:
    """Send five messages at once, then replies without an end: by number, bytes and time."""
    clock = iter(count(0.0, 0.25))
    limits = Limits(poll_messages=2)
    with closing(Peer(limits=limits, clock_s=lambda: next(clock))) as peer:
        peer.connect()
        for number in range(5):
            peer.send(Batch(number, 1.0, ()))
        end = time.monotonic() + PATIENCE_S
        read: list[int] = []
        while sum(read) < 5 and time.monotonic() < end:
            read.append(peer.view.poll(0.2))
        assert sum(read) == 5
        assert max(read) <= 2
        peer.endless = True
        bounds: list[dict[str, Any]] = [
            {"answer_messages": 8, "answer_s": 1e9},
            {"answer_bytes": 100, "answer_s": 1e9},
            {"answer_s": 2.0},
        ]
        for bound in bounds:
            peer.view.limits, before = Limits(**bound), peer.view.counts.unanswered
            gives_up = threading.Timer(PATIENCE_S / 4, peer.stopped.set)
            gives_up.start()
            assert not peer.view.catch_up("pod")
            gives_up.cancel()
            assert not peer.stopped.is_set(), bound
            assert peer.view.counts.unanswered > before
    limits = Limits(ranks=2)
    with closing(Peer(limits=limits)) as peer:
        peer.connect()
        before = peer.view.counts.damaged
        for rank in (1, 2):
            peer.send(Batch(0, 1.0, ()), rank=rank)
        assert peer.heard("pod#1") == set()
        assert peer.view.counts.damaged == before + 1
    with pytest.raises(InvalidArgumentError, match="a#1"):
        FleetView({"a": Source("inproc://a"), "a#1": Source("inproc://b")})
    for wrong in ({"ranks": 0}, {"answer_s": 0.0}, {"poll_messages": True}):
        with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
            Limits(**wrong)


def a_clock_is_set_back() -> None:
    """Set the clock back by five seconds, and later forward again."""
    with closing(Peer()) as peer:
        peer.connect()
        peer.send(Batch(0, 100.0, (stored(b"a", b"b"),)))
        assert peer.heard("pod") == {b"a", b"b"}
        peer.send(Batch(1, 95.0, (removed(b"a"),)))
        assert peer.heard("pod") == {b"b"}
        peer.send(Batch(2, 95.5, (stored(b"c"),)))
        assert peer.heard("pod") == {b"b", b"c"}
        peer.send(Batch(3, 101.0, (removed(b"b"),)))
        assert peer.heard("pod") == {b"c"}
        assert peer.view.index.last("pod") == (3, 101.0)
        assert (peer.view.counts.restarts, peer.view.counts.set_back) == (0, 2)
