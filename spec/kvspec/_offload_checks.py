"""Checks of the arguments of an `OffloadManager` (KV-TIER-24)."""

from __future__ import annotations

from collections.abc import Sequence

from kvspec._check import int_at_least
from kvspec.errors import InvalidArgumentError
from kvspec.offload import OffloadConfig


def check_made(config: OffloadConfig) -> None:
    """Raise InvalidArgumentError for fewer than one chunk, or an order that is not offered."""
    int_at_least("num_chunks", config.num_chunks, 1, error=InvalidArgumentError)
    if config.order != "lru":
        raise InvalidArgumentError("order", config.order, "lru")


def check_name(request_id: str) -> None:
    if type(request_id) is not str:
        raise InvalidArgumentError("request_id", request_id, "a str")


def check_number(number: int) -> None:
    int_at_least("number", number, 0, error=InvalidArgumentError)


def check_keys(keys: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return a copy of the keys; InvalidArgumentError unless all are bytes."""
    if not isinstance(keys, list | tuple):
        raise InvalidArgumentError("keys", keys, "a list or tuple of keys")
    for key in keys:
        if type(key) is not bytes:
            raise InvalidArgumentError("keys", key, "bytes")
    return tuple(keys)
