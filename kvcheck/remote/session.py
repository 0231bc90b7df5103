"""State of a server between messages: the managers, requests and windows behind the handles.

The client chooses the handles; the server only looks them up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

from kvspec.interface import HitRateWindow, Implementation, KVCacheManager
from kvspec.request import Request

T = TypeVar("T")


class ProtocolViolation(Exception):  # noqa: N818 (named for what the client did)
    """A message that the protocol does not know; `reason` is one of `values.REASONS`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass
class Session:
    implementation: Implementation
    greeted: bool = False
    managers: dict[int, KVCacheManager] = field(default_factory=dict)
    requests: dict[int, Request] = field(default_factory=dict)
    windows: dict[int, HitRateWindow] = field(default_factory=dict)


def known(table: dict[int, T], kind: str, handle: Any) -> T:
    """Return the object of a handle; raises ProtocolViolation if it is unknown."""
    if type(handle) is not int or handle not in table:
        raise ProtocolViolation("unknown_handle", f"no {kind} with handle {handle!r}")
    return table[handle]


def unused(table: dict[int, T], kind: str, handle: Any) -> int:
    """Return a handle that is free for a new object; raises ProtocolViolation otherwise."""
    if type(handle) is not int or handle < 1:
        raise ProtocolViolation("bad_message", f"{kind}: {handle!r} is not an int of at least 1")
    if handle in table:
        raise ProtocolViolation("bad_message", f"{kind}: handle {handle} is in use")
    return handle
