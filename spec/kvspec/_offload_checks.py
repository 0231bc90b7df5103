"""Checks of the arguments of an `OffloadManager` (KV-TIER-24)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvspec._check import int_at_least
from kvspec.errors import InvalidArgumentError
from kvspec.offload import ORDERS, OffloadConfig


def check_made(config: OffloadConfig) -> None:
    """Raise InvalidArgumentError for members outside of their domains."""
    int_at_least("num_chunks", config.num_chunks, 1, error=InvalidArgumentError)
    if config.order not in ORDERS:
        raise InvalidArgumentError("order", config.order, f"one of {', '.join(ORDERS)}")
    int_at_least("store_after", config.store_after, 1, error=InvalidArgumentError)
    int_at_least("ttl_steps", config.ttl_steps, 0, error=InvalidArgumentError)
    if not isinstance(config.quotas, Mapping):
        raise InvalidArgumentError("quotas", config.quotas, "a mapping from tenants to numbers")
    for tenant, number in config.quotas.items():
        if type(tenant) is not str:
            raise InvalidArgumentError("quotas", tenant, "a str")
        int_at_least("quotas", number, 0, error=InvalidArgumentError)
    if type(config.write_back) is not bool:
        raise InvalidArgumentError("write_back", config.write_back, "a bool")


def check_begun(request_id: str, tenant: str, priority: int) -> None:
    check_name(request_id)
    if type(tenant) is not str:
        raise InvalidArgumentError("tenant", tenant, "a str")
    if type(priority) is not int:
        raise InvalidArgumentError("priority", priority, "an int")


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
