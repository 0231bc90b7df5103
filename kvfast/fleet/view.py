"""Receive engines' events over ZeroMQ into an index for a router, and recover from losses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import zmq

from kvfast.fleet.index import FastIndex
from kvfast.fleet.sockets import end, received
from kvfast.fleet.wire import END, STATE, batch_as_state, decode_message
from kvspec.domains import count
from kvspec.errors import InvalidArgumentError
from kvspec.fleet import Batch, Heard, PrefixIndex, WireError

_TRIES = 3
"""Replays for one gap before the state is asked for."""


@dataclass(frozen=True)
class Source:
    """The addresses at which one engine publishes and replies; see `PublisherOptions`."""

    endpoint: str
    replay: str | None = None
    topic: str = ""


@dataclass(frozen=True)
class Limits:
    """Bounds of what engines can make a view do or keep (KV-FLEET-15).

    `poll_messages`: read from one source in one `poll`. `queued_messages`: waiting unread; ZeroMQ
    drops more, which then have to be requested. `message_bytes`: of one frame; ZeroMQ disconnects a
    peer that sends a longer one. `answer_messages`, `answer_bytes`, `answer_s`: of one reply to a
    request. `ranks`: engines behind one source.
    """

    poll_messages: int = 1_000
    queued_messages: int = 10_000
    message_bytes: int = 1 << 26
    answer_messages: int = 100_000
    answer_bytes: int = 1 << 28
    answer_s: float = 10.0
    ranks: int = 1_024

    def __post_init__(self) -> None:
        for field in ("poll_messages", "queued_messages", "message_bytes", "answer_messages"):
            count(field, getattr(self, field), 1)
        count("answer_bytes", self.answer_bytes, 1)
        count("ranks", self.ranks, 1)
        if not self.answer_s > 0:
            raise InvalidArgumentError("answer_s", self.answer_s, "more than 0 seconds")


@dataclass
class ViewCounts:
    """Counts of a view's events.

    `damaged`: messages that were no batch. `unknown`: events of unknown types (KV-FLEET-13).
    `gaps`: found when messages were read. `set_back`: messages whose time is before that of the
    last applied one. `unanswered`: requests without a whole reply in time.
    """

    applied: int = 0
    known: int = 0
    damaged: int = 0
    unknown: int = 0
    restarts: int = 0
    gaps: int = 0
    set_back: int = 0
    replays: int = 0
    states: int = 0
    given_up: int = 0
    unanswered: int = 0


class FleetView:
    """Engines by name. One thread at a time: `poll` reads, `index` serves look-ups.

    An engine has the name of its source. Data-parallel ranks behind one source are separate
    engines, `NAME#1`, `NAME#2`, … for all but rank 0 (KV-FLEET-14). `index`: an empty one, or None
    for kvfast's. `answer_timeout_s`: how long to wait for each part of a reply. After a request
    without reply the engine is asked again after `pause_s` at the earliest. `clock_s`: a monotonic
    clock, in seconds. Use it in a `with` block, or call `close`.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        index: PrefixIndex | None = None,
        answer_timeout_s: float = 2.0,
        pause_s: float = 1.0,
        limits: Limits | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self.index: PrefixIndex = FastIndex() if index is None else index
        self.counts = ViewCounts()
        self.limits = Limits() if limits is None else limits
        self._sources = dict(sources)
        self._parts = {name: (name, 0) for name in self._sources}
        self._answer_timeout_ms = max(1, int(answer_timeout_s * 1000))
        self._pause_s, self._clock_s = pause_s, clock_s
        self._ask_again: dict[str, float] = {}
        self._set_back: set[str] = set()
        for name in self._sources:
            first, mark, rank = name.rpartition("#")
            if mark and rank.isdecimal() and first in self._sources:
                raise InvalidArgumentError("sources", name, f"no name of a rank of {first}")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._names: dict[Any, str] = {}
        for name, source in self._sources.items():
            socket = self._socket(zmq.SUB, self.limits.queued_messages)
            socket.setsockopt_string(zmq.SUBSCRIBE, source.topic)
            socket.connect(source.endpoint)
            self._poller.register(socket, zmq.POLLIN)
            self._names[socket] = name

    def poll(self, timeout_s: float = 0.0) -> int:
        """Read available messages, waiting up to `timeout_s` for the first, and recover; returns
        their number.

        It reads at most `limits.poll_messages` of one source: the next call reads the rest.
        """
        read = 0
        for socket, _ in self._poller.poll(int(timeout_s * 1000)):
            for _ in range(self.limits.poll_messages):
                frames = received(socket)
                if not frames:
                    break
                read += 1
                self._read(self._names[socket], frames)
        for name in self.index.engines:
            if self.index.missing(name) is not None:
                self.counts.gaps += 1
                self._heal(name)
            elif name in self._set_back:
                self._heal(name)
        return read

    def catch_up(self, name: str) -> bool:
        """Request the last batches, or those before this view started; False without a reply.

        Only this detects a loss at the end of a stream. InvalidArgumentError for an unknown engine.
        """
        if name not in self._parts:
            raise InvalidArgumentError("name", name, "one of " + ", ".join(self._parts))
        self._ask_again.pop(name, None)
        return self._replay(name) or self._state(name)

    def close(self) -> None:
        """Disconnect from all engines."""
        end(self._context, self._names)

    def __enter__(self) -> FleetView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _socket(self, kind: int, most_queued: int) -> Any:
        socket: Any = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, most_queued)
        socket.setsockopt(zmq.MAXMSGSIZE, self.limits.message_bytes)
        return socket

    def _read(self, source: str, frames: list[bytes]) -> None:
        """Process one message; a damaged one shows as a gap later."""
        try:
            if len(frames) != 3:
                raise WireError(f"{len(frames)} frames, not 3")
            message = decode_message(frames[1], frames[2])
            if message.rank >= self.limits.ranks:
                raise WireError(f"rank {message.rank} of at most {self.limits.ranks}")
        except WireError:
            self.counts.damaged += 1
            return
        name = f"{source}#{message.rank}" if message.rank else source
        self._parts[name] = (source, message.rank)
        self.counts.unknown += message.num_unknown
        self._hear(name, message.batch)

    def _hear(self, name: str, batch: Batch) -> None:
        heard = self.index.hear(name, batch)
        self.counts.applied += heard in (Heard.APPLIED, Heard.RESTARTED)
        self.counts.known += heard is Heard.KNOWN
        self.counts.restarts += heard is Heard.RESTARTED
        number, time_s = self.index.last(name)
        if batch.number > number and batch.time_s < time_s:
            self.counts.set_back += 1
            self._set_back.add(name)

    def _heal(self, name: str) -> None:
        """Try replays, then the state, then continue without (KV-FLEET-11)."""
        if self._clock_s() < self._ask_again.get(name, 0.0):
            return
        self._set_back.discard(name)
        for _ in range(_TRIES):
            if not self._replay(name):
                break
            if self.index.missing(name) is None:
                return
        if self._state(name) or name in self._ask_again:
            return  # silence proves nothing: the engine may reply to the next request
        while self.index.missing(name) is not None and self.index.skip(name):
            self.counts.given_up += 1

    def _replay(self, name: str) -> bool:
        """Receive a replay that continues from the last batch, or starts at the engine's beginning.

        A reply is in order whatever the engine's clock did: an earlier time counts as the time
        before it (KV-FLEET-16).
        """
        last = self._last(name)[0]
        for first in dict.fromkeys((max(last, 0), 0)):
            batches = self._ask(name, first.to_bytes(8, "big"))
            if batches and batches[0].number == first:
                self.counts.replays += 1
                time_s = batches[0].time_s
                for batch in batches:
                    time_s = max(time_s, batch.time_s)
                    number, last_s = self._last(name)
                    heard_s = max(time_s, last_s) if batch.number > number else time_s
                    self._hear(name, replace(batch, time_s=heard_s))
                return True
        return False

    def _last(self, name: str) -> tuple[int, float]:
        if name not in self.index.engines:
            return -1, float("-inf")
        return self.index.last(name)

    def _state(self, name: str) -> bool:
        """Replace the state by the engine's."""
        for batch in self._ask(name, STATE) or ():
            try:
                is_taken = self.index.restore(name, batch_as_state(batch))
            except WireError:
                self.counts.damaged += 1
                return False
            self.counts.states += is_taken
            return is_taken
        return False

    def _ask(self, name: str, wanted: bytes) -> list[Batch] | None:
        """Return the batches of a reply; None without a whole one in time and within the limits.

        Each request uses a new socket, so that an earlier reply is not mistaken for this one's.
        """
        source = self._sources[self._parts[name][0]]
        if source.replay is None or self._clock_s() < self._ask_again.get(name, 0.0):
            return None
        dealer = self._socket(zmq.DEALER, self.limits.answer_messages)
        try:
            dealer.connect(source.replay)
            dealer.send_multipart((b"", wanted))
            batches = self._answer(dealer, self._parts[name][1])
        finally:
            dealer.close(linger=0)
        if batches is not None:
            self._ask_again.pop(name, None)
            return batches
        self.counts.unanswered += 1
        self._ask_again[name] = self._clock_s() + self._pause_s
        return None

    def _answer(self, dealer: Any, rank: int) -> list[Batch] | None:
        """Return the batches of one rank up to the end of a reply; None at a limit."""
        batches: list[Batch] = []
        left_bytes, end_s = self.limits.answer_bytes, self._clock_s() + self.limits.answer_s
        for _ in range(self.limits.answer_messages + 1):
            if self._clock_s() >= end_s or not dealer.poll(self._answer_timeout_ms):
                return None
            frames = received(dealer)
            if not frames:
                return None
            number, payload = frames[-2:][0], frames[-1]
            if number == END:
                return batches
            left_bytes -= sum(map(len, frames))
            if left_bytes < 0:
                return None
            try:
                message = decode_message(number, payload)
            except WireError:
                self.counts.damaged += 1
                continue
            if message.rank == rank:
                self.counts.unknown += message.num_unknown
                batches.append(message.batch)
        return None
