"""What a router knows of a fleet: engines' events over ZeroMQ into an index, and healing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import zmq

from kvfast.fleet.index import FastIndex
from kvfast.fleet.wire import END, STATE, batch_as_state, decode_batch
from kvspec.errors import InvalidArgumentError
from kvspec.fleet import Batch, Heard, PrefixIndex, WireError

_TRIES = 3
"""Replays for one gap before the state is asked for."""


@dataclass(frozen=True)
class Source:
    """Where one engine publishes, and where it answers; see `PublisherOptions`."""

    endpoint: str
    replay: str | None = None
    topic: str = ""


@dataclass
class ViewCounts:
    """What a view has seen and done.

    `damaged`: messages that were no batch. `gaps`: that were found open when messages were read.
    `unanswered`: requests without a whole answer in time.
    """

    applied: int = 0
    known: int = 0
    damaged: int = 0
    restarts: int = 0
    gaps: int = 0
    replays: int = 0
    states: int = 0
    given_up: int = 0
    unanswered: int = 0


class FleetView:
    """Engines by name. One thread at a time: `poll` reads, `index` answers.

    `index`: an empty one, or None for kvfast's. `answer_timeout_s`: how long to wait for each part
    of an answer. After a request without answer the engine is asked again at the earliest after
    `pause_s`. Use it in a `with` block, or call `close`.
    """

    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        index: PrefixIndex | None = None,
        answer_timeout_s: float = 2.0,
        pause_s: float = 1.0,
    ) -> None:
        self.index: PrefixIndex = FastIndex() if index is None else index
        self.counts = ViewCounts()
        self._sources = dict(sources)
        self._answer_timeout_ms = max(1, int(answer_timeout_s * 1000))
        self._pause_s = pause_s
        self._ask_again: dict[str, float] = {}
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._names: dict[Any, str] = {}
        for name, source in self._sources.items():
            socket = self._context.socket(zmq.SUB)
            socket.setsockopt(zmq.RCVHWM, 0)  # what is lost here has to be asked for
            socket.setsockopt_string(zmq.SUBSCRIBE, source.topic)
            socket.connect(source.endpoint)
            self._poller.register(socket, zmq.POLLIN)
            self._names[socket] = name

    def poll(self, timeout_s: float = 0.0) -> int:
        """Read what is there, waiting up to `timeout_s` for the first, and heal; batches read."""
        read = 0
        for socket, _ in self._poller.poll(int(timeout_s * 1000)):
            while socket.poll(0):
                read += 1
                self._read(self._names[socket], socket.recv_multipart())
        for name in self.index.engines:
            if self.index.missing(name) is not None:
                self.counts.gaps += 1
                self._heal(name)
        return read

    def catch_up(self, name: str) -> bool:
        """Ask an engine for what came last, or before this view did; False without an answer.

        A loss at the end of a stream shows only so. InvalidArgumentError for an unknown engine.
        """
        if name not in self._sources:
            raise InvalidArgumentError("name", name, "one of " + ", ".join(self._sources))
        self._ask_again.pop(name, None)
        return self._replay(name) or self._state(name)

    def close(self) -> None:
        """Leave all engines."""
        for socket in self._names:
            socket.close(linger=0)
        self._context.term()

    def __enter__(self) -> FleetView:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, name: str, frames: list[bytes]) -> None:
        """One message; what is no batch shows as a gap later."""
        try:
            if len(frames) != 3:
                raise WireError(f"{len(frames)} frames, not 3")
            self._hear(name, decode_batch(frames[1], frames[2]))
        except WireError:
            self.counts.damaged += 1

    def _hear(self, name: str, batch: Batch) -> None:
        heard = self.index.hear(name, batch)
        self.counts.applied += heard in (Heard.APPLIED, Heard.RESTARTED)
        self.counts.known += heard is Heard.KNOWN
        self.counts.restarts += heard is Heard.RESTARTED

    def _heal(self, name: str) -> None:
        """Replays, then the state, then without (KV-FLEET-11)."""
        if time.monotonic() < self._ask_again.get(name, 0.0):
            return
        for _ in range(_TRIES):
            if not self._replay(name):
                break
            if self.index.missing(name) is None:
                return
        if self._state(name) or name in self._ask_again:
            return  # of silence nothing follows: the engine may be there again when next asked
        while self.index.missing(name) is not None and self.index.skip(name):
            self.counts.given_up += 1

    def _replay(self, name: str) -> bool:
        """Hear a replay that goes on from what is known, or from the engine's start."""
        last = self.index.last(name)[0] if name in self.index.engines else -1
        for first in dict.fromkeys((max(last, 0), 0)):
            batches = self._ask(name, first.to_bytes(8, "big"))
            if batches and batches[0].number == first:
                self.counts.replays += 1
                for batch in batches:
                    self._hear(name, batch)
                return True
        return False

    def _state(self, name: str) -> bool:
        """Take the engine's state in place of what is known."""
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
        """The batches of an answer; None without a whole one in time.

        A socket of its own, so that no answer to an earlier request is taken for this one's.
        """
        source = self._sources[name]
        if source.replay is None or time.monotonic() < self._ask_again.get(name, 0.0):
            return None
        dealer: Any = self._context.socket(zmq.DEALER)
        try:
            dealer.setsockopt(zmq.RCVHWM, 0)
            dealer.connect(source.replay)
            dealer.send_multipart((b"", wanted))
            batches: list[Batch] = []
            while dealer.poll(self._answer_timeout_ms):
                frames = dealer.recv_multipart()[-2:]
                if frames[0] == END:
                    self._ask_again.pop(name, None)
                    return batches
                try:
                    batches.append(decode_batch(frames[0], frames[-1]))
                except WireError:
                    self.counts.damaged += 1
        finally:
            dealer.close(linger=0)
        self.counts.unanswered += 1
        self._ask_again[name] = time.monotonic() + self._pause_s
        return None
