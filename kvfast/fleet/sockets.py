"""ZeroMQ's waits that have no limit of their own, with one: to receive, and to end a context."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import zmq

MOST_SECONDS_TO_END = 5.0
"""For what is under way when something is closed, beside the linger of its sockets."""


def received(socket: Any) -> list[bytes]:
    """Return a message that is there; no frames if there is none after all."""
    try:
        frames: list[bytes] = socket.recv_multipart(zmq.NOBLOCK)
    except zmq.Again:
        return []
    return frames


def end(
    context: Any,
    sockets: Iterable[Any],
    *,
    linger_ms: int = 0,
    server: threading.Thread | None = None,
) -> bool:
    """Close the sockets and the context, after the thread that serves one of them.

    Returns False if the thread or the context has not ended in time: what is left ends with the
    process. `Context.term` waits for every socket of the context, however long it stays open.
    """
    if server is not None:
        server.join(MOST_SECONDS_TO_END)
        if server.is_alive():
            return False
    for socket in sockets:
        socket.close(linger=linger_ms)
    ending = threading.Thread(target=context.term, daemon=True)
    ending.start()
    ending.join(MOST_SECONDS_TO_END + linger_ms / 1000)
    return not ending.is_alive()
