"""Checks of the arguments of an `OffloadManager` (KV-TIER-24)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvspec.domains import check_members, int_at_least
from kvspec.errors import InvalidArgumentError
from kvspec.offload import OffloadConfig


def check_made(config: OffloadConfig) -> None:
    """Raise InvalidArgumentError for members outside of their domains."""
    check_members(config, error=InvalidArgumentError)
    if not isinstance(config.quotas, Mapping):
        raise InvalidArgumentError("quotas", config.quotas, "a mapping from tenants to numbers")
    for tenant, number in config.quotas.items():
        if type(tenant) is not str:
            raise InvalidArgumentError("quotas", tenant, "a str")
        int_at_least("quotas", number, 0, error=InvalidArgumentError)


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
