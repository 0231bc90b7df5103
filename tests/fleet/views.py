"""Views of kvfast beside engines that publish: a subject of `kvspec check --index`."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import count
from typing import Any

import pytest

from examples.index.feed import Feed
from kvfast.fleet.index import FastIndex
from kvfast.fleet.sockets import received
from kvfast.fleet.view import FleetView, Limits, Source
from kvspec.errors import InvalidArgumentError
from kvspec.events import MEDIUM_GPU, EventHash
from kvspec.fleet import MOST_WAITING, Batch, IndexCapabilities, PrefixIndex
from tests.fleet.traffic import removed, stored


class Views:
    """See `kvspec.fleet.FleetImplementation`. `max_kept`: batches that an engine keeps."""

    def __init__(self, max_kept: int = 10_000) -> None:
        self.max_kept = max_kept
        self.index_capabilities = IndexCapabilities(
            calls=frozenset(), is_stream=True, has_replays=max_kept > 99, checks_calls=False
        )

    def make_prefix_index(
        self, *, removed_event_per: str = "copy", max_waiting: int = MOST_WAITING
    ) -> PrefixIndex:
        index = FastIndex(removed_event_per=removed_event_per)
        made: Any = View("e", "f", max_kept=self.max_kept, index=index)
        return made  # type: ignore[no-any-return]  # a StreamIndex, as it declares


class Watched(Feed):
    """Engines that publish, and a view of them."""

    def __init__(self, *names: str, max_kept: int = 10_000, **options: Any) -> None:
        super().__init__(max_kept=max_kept)
        sources = {name: Source(*self.addresses(name)) for name in names}
        self.view = FleetView(sources, pause_s=0.0, **options)
        for name in names:
            self.await_reader(name)

    def close(self) -> None:
        self.view.close()
        super().close()


class View(Watched):
    """See `kvspec.fleet.StreamIndex`: a view of the sources e and f."""

    def publish(self, engine: str, batch: Batch, num_unknown: int) -> None:
        """Send it behind a damaged copy: a half, or text that is not UTF-8."""
        number, payload = self.frames(engine, batch, num_unknown)
        halves = payload[: len(payload) // 2], payload.replace(b"Block", b"\xfflock") + b"\xc1"
        for each in (halves[batch.number % 2], payload):
            self.send(engine, number, each)

    def prefixes(
        self, hashes: Sequence[EventHash], *, group: int = 0, medium: str = MEDIUM_GPU
    ) -> Mapping[str, int]:
        self.view.poll(0.01)
        return self.view.index.prefixes(hashes, group=group, medium=medium)


PATIENCE_S = 20.0


class Peer(Watched):
    """One engine, pod. If it is `endless`, its replies are damage without an end."""

    endless = False

    def __init__(self, **options: Any) -> None:
        super().__init__("pod", **options)

    def tell(self, batch: Batch, engine: str = "pod") -> None:
        """Publish a batch, and keep it for replays."""
        self.keep(engine, batch, 0)
        self.publish(engine, batch, 0)

    def _reply(self, router: Any, source: str) -> None:
        if not self.endless:
            return super()._reply(router, source)
        who = received(router)[0]
        # A view that gave up asks again, on another socket.
        while not self.stopped.wait(0.001) and not router.poll(0):
            router.send_multipart((who, b"", b"", bytes(8), b"junk"))

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
        for number in range(5):
            peer.tell(Batch(number, 1.0, ()))
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
        before = peer.view.counts.damaged
        for rank in (1, 2):
            peer.tell(Batch(0, 1.0, ()), f"pod#{rank}")
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
        peer.tell(Batch(0, 100.0, (stored(b"a", b"b"),)))
        assert peer.heard("pod") == {b"a", b"b"}
        peer.tell(Batch(1, 95.0, (removed(b"a"),)))
        assert peer.heard("pod") == {b"b"}
        peer.tell(Batch(2, 95.5, (stored(b"c"),)))
        assert peer.heard("pod") == {b"b", b"c"}
        peer.tell(Batch(3, 101.0, (removed(b"b"),)))
        assert peer.heard("pod") == {b"c"}
        assert peer.view.index.last("pod") == (3, 101.0)
        assert (peer.view.counts.restarts, peer.view.counts.set_back) == (0, 2)
