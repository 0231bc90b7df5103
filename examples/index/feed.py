"""Engines for an index that reads ZeroMQ: they publish, and reply to requests for replays."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import zmq

from kvfast.fleet.sockets import end, received
from kvfast.fleet.wire import END, encode_batch
from kvspec.fleet import Batch

UNKNOWN = {"type": "BlockUpdated", "block_hashes": [1]}
POLL_MS = 20
PATIENCE_MS = 5000


class Feed:
    """One publisher per source; `pod` and `pod#1` are ranks of one, unless `is_apart`.

    A thread replies with what was kept: the last `max_kept` batches. A reply that the other side
    does not read is dropped, so `close` always ends.
    """

    def __init__(self, *, is_apart: bool = False, max_kept: int = 10_000) -> None:
        self.is_apart, self.max_kept = is_apart, max_kept
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.sockets: dict[str, tuple[Any, Any]] = {}
        self.kept: dict[str, list[tuple[str, bytes, bytes]]] = {}
        self.lock = threading.Lock()
        self.stopped = threading.Event()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def source_of(self, engine: str) -> str:
        return engine if self.is_apart else engine.partition("#")[0]

    def addresses(self, engine: str) -> tuple[str, str]:
        """Return where the engine publishes, and where it replies; open both at first."""
        source = self.source_of(engine)
        with self.lock:
            if source not in self.sockets:
                pair = (self.context.socket(zmq.XPUB), self.context.socket(zmq.ROUTER))
                for socket in pair:
                    socket.setsockopt(zmq.LINGER, 0)
                    socket.bind("tcp://127.0.0.1:*")
                self.sockets[source], self.kept[source] = pair, []
            published, replied = (
                each.getsockopt_string(zmq.LAST_ENDPOINT) for each in self.sockets[source]
            )
        return published, replied

    def await_reader(self, engine: str) -> None:
        """Wait until the index has subscribed: what is published before is lost."""
        publisher = self.sockets[self.source_of(engine)][0]
        if not publisher.poll(PATIENCE_MS):
            raise TimeoutError(f"nothing reads {engine} after {PATIENCE_MS} ms")
        publisher.recv()

    def keep(self, engine: str, batch: Batch, num_unknown: int) -> None:
        source = self.source_of(engine)
        frames = self.frames(engine, batch, num_unknown)
        with self.lock:
            if batch.number == 0:
                self.kept[source] = [each for each in self.kept[source] if each[0] != engine]
            self.kept[source] = [*self.kept[source], (engine, *frames)][-self.max_kept :]

    def publish(self, engine: str, batch: Batch, num_unknown: int) -> None:
        self.send(engine, *self.frames(engine, batch, num_unknown))

    def send(self, engine: str, number: bytes, payload: bytes) -> None:
        self.sockets[self.source_of(engine)][0].send_multipart((b"", number, payload))

    def frames(self, engine: str, batch: Batch, num_unknown: int) -> tuple[bytes, bytes]:
        payload = encode_batch(batch, rank=int(engine.partition("#")[2] or 0))
        if num_unknown:
            time_s, events, rank = msgspec.msgpack.decode(payload)
            payload = msgspec.msgpack.encode([time_s, [*events, *num_unknown * [UNKNOWN]], rank])
        return batch.number.to_bytes(8, "big"), payload

    def _serve(self) -> None:
        while not self.stopped.is_set():
            with self.lock:
                routers = {source: pair[1] for source, pair in self.sockets.items()}
            for source, router in routers.items():
                if router.poll(0):
                    self._reply(router, source)
            self.stopped.wait(POLL_MS / 1000)

    def _reply(self, router: Any, source: str) -> None:
        frames = received(router)
        if len(frames) != 3:
            return
        who, _, wanted = frames
        with self.lock:
            kept = list(self.kept[source])
        for _engine, number, payload in kept:
            if len(wanted) == len(number) and number >= wanted:
                router.send_multipart((who, b"", b"", number, payload), zmq.NOBLOCK)
        router.send_multipart((who, b"", b"", END, b""), zmq.NOBLOCK)

    def close(self) -> None:
        self.stopped.set()
        sockets = [socket for pair in self.sockets.values() for socket in pair]
        end(self.context, sockets, server=self.thread)
