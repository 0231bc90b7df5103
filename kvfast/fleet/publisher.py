"""Publish events of one engine over ZeroMQ, and keep some for consumers that missed them
(KV-FLEET-11).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from kvfast.fleet.index import FastIndex
from kvfast.fleet.sockets import end, received
from kvfast.fleet.wire import END, STATE, encode_batch, state_as_batch
from kvspec.domains import count
from kvspec.events import Event
from kvspec.fleet import Batch

_ENGINE = ""
"""The only one of the publisher's own index."""
_SECONDS_BETWEEN_LOOKS = 0.1


@dataclass(frozen=True)
class PublisherOptions:
    """Options of a publisher.

    `endpoint`, `replay`: ZeroMQ addresses to bind, such as `tcp://*:5557`; port 0 takes a free one.
    Without `replay` lost batches cannot be requested. `rank`: of this engine among data-parallel
    ones. `max_kept`: batches kept for replays. `max_queued`: messages that wait for a slow
    consumer; further ones are lost for it. `removed_event_per`: the manager's policy (KV-POL-3).
    """

    endpoint: str
    replay: str | None = None
    topic: str = ""
    rank: int | None = None
    max_kept: int = 10_000
    max_queued: int = 100_000
    removed_event_per: str = "copy"

    def __post_init__(self) -> None:
        count("max_kept", self.max_kept, 1)
        count("max_queued", self.max_queued, 1)


class Publisher:
    """Publishes batches from one engine: a PUB socket, and a ROUTER socket that a thread serves.

    Any thread may publish; it waits while a state is copied for a request. `endpoint` and `replay`
    are the addresses with their ports. The publisher keeps the last `max_kept` batches, and a count
    per cached key. It must receive all events from the start of the manager. Use it in a `with`
    block, or call `close`.
    """

    def __init__(
        self, options: PublisherOptions, *, clock_s: Callable[[], float] = time.time
    ) -> None:
        self._options, self._clock_s = options, clock_s
        self._lock = threading.Lock()
        self._kept: deque[tuple[bytes, bytes]] = deque(maxlen=options.max_kept)
        self._index = FastIndex(removed_event_per=options.removed_event_per)
        self._next = 0
        self._time_s = float("-inf")
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._topic = options.topic.encode()
        self._closed = threading.Event()
        self._server: threading.Thread | None = None
        self._sockets: list[Any] = []
        try:
            self._pub = self._bound(zmq.PUB, options.endpoint, options.max_queued)
            self.endpoint = self._pub.getsockopt_string(zmq.LAST_ENDPOINT)
            self.replay: str | None = None
            if options.replay is not None:
                # A whole reply has to fit, even while the client is slow to read the one before.
                router = self._bound(zmq.ROUTER, options.replay, 2 * (options.max_kept + 1))
                self.replay = router.getsockopt_string(zmq.LAST_ENDPOINT)
                self._server = threading.Thread(target=self._serve, args=(router,), daemon=True)
                self._server.start()
        except BaseException:
            end(self._context, self._sockets)
            raise

    def publish(self, events: Sequence[Event]) -> int | None:
        """Send the events of a step as one batch; its number, or None where there are none.

        Never waits. InvalidArgumentError for what is no event (KV-FLEET-9).
        """
        if not events:
            return None
        with self._lock:
            self._time_s = max(self._time_s, self._clock_s())  # a clock may be set back
            batch = Batch(self._next, self._time_s, tuple(events))
            self._index.hear(_ENGINE, batch)
            payload = encode_batch(batch, rank=self._options.rank)
            number = batch.number.to_bytes(8, "big")
            self._kept.append((number, payload))
            self._next += 1
            self._pub.send_multipart((self._topic, number, payload))
        return batch.number

    def close(self) -> None:
        """Stop, and give the addresses back. Messages under way to consumers are still sent."""
        if self._closed.is_set():
            return
        self._closed.set()
        end(self._context, self._sockets, linger_ms=1000, server=self._server)

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _bound(self, kind: int, address: str, most: int) -> Any:
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        socket.setsockopt(zmq.SNDHWM, most)
        socket.bind(address)
        return socket

    def _serve(self, router: Any) -> None:
        """Reply to requests until the publisher is closed."""
        while not self._closed.is_set():
            if router.poll(int(_SECONDS_BETWEEN_LOOKS * 1000)):
                frames = received(router)
                if len(frames) == 3:  # otherwise the request is meaningless
                    for number, payload in self._answer(frames[2]):
                        router.send_multipart((frames[0], b"", self._topic, number, payload))
                    router.send_multipart((frames[0], b"", b"", END, b""))

    def _answer(self, wanted: bytes) -> list[tuple[bytes, bytes]]:
        """Return numbers and payloads of the batches from a number on, or of the state."""
        with self._lock:
            if wanted != STATE:
                # Big-endian numbers of 8 bytes have the order of their bytes.
                return [one for one in self._kept if len(wanted) == 8 and one[0] >= wanted]
            if not self._next:
                return []
            batch = state_as_batch(self._index.state(_ENGINE))
        payload = encode_batch(batch, rank=self._options.rank)
        return [(batch.number.to_bytes(8, "big"), payload)]
