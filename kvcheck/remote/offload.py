"""An offload manager that lives in a child process: every call is one message."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from kvcheck.remote.connection import Connection
from kvcheck.remote.values import carried
from kvspec.errors import InvalidArgumentError
from kvspec.offload import (
    OPTIONS,
    Found,
    OffloadConfig,
    OffloadCounts,
    OffloadEvent,
    OffloadManager,
    PreparedStore,
    TierTransfer,
)


def made_offload(connection: Connection, config: OffloadConfig) -> OffloadManager:
    """Make a manager in the child; the lower tiers stay here."""
    usual = OffloadConfig(1)
    args: dict[str, Any] = {"num_chunks": config.num_chunks, "num_lower": len(config.lower)}
    args |= {"order": config.order}
    more = {name: getattr(config, name) for name in OPTIONS}
    args |= {name: more[name] for name in OPTIONS if more[name] != getattr(usual, name)}
    if "quotas" in args:
        args["quotas"] = dict(args["quotas"])
    return RemoteOffload(connection, args, config)


class RemoteOffload:
    """See `kvspec.offload.OffloadManager`. A look-up carries what the lower tiers say to it."""

    def __init__(self, connection: Connection, args: dict[str, Any], config: OffloadConfig) -> None:
        self._connection, self._lower = connection, config.lower
        self._handle = connection.new_handle()
        sent = {n: v if n == "quotas" else carried(n, v) for n, v in args.items()}
        connection.call("make_offload", manager=self._handle, args=sent)
        connection.forget(self, "managers", self._handle)

    def new_request(self, request_id: str, *, tenant: str = "", priority: int = 0) -> None:
        more = {"tenant": tenant, "priority": priority}
        given = {name: value for name, value in more.items() if value not in ("", 0)}
        self._call("new_request", request_id=request_id, **given)

    def lookup(self, key: bytes, request_id: str) -> Found:
        below = [str(tier.lookup(key)) for tier in self._lower]
        return Found(
            self._call("lookup", key=_hex("keys", key), request_id=request_id, below=below)
        )

    def prepare_load(self, keys: Sequence[bytes], request_id: str) -> tuple[int, ...]:
        return tuple(self._call("prepare_load", keys=_hexes(keys), request_id=request_id))

    def complete_load(self, keys: Sequence[bytes], request_id: str) -> None:
        self._call("complete_load", keys=_hexes(keys), request_id=request_id)

    def prepare_store(self, keys: Sequence[bytes], request_id: str) -> PreparedStore | None:
        found = self._call("prepare_store", keys=_hexes(keys), request_id=request_id)
        return found and PreparedStore(*map(tuple, found.values()))

    def complete_store(
        self, keys: Sequence[bytes], request_id: str, *, success: bool = True
    ) -> None:
        given = {} if success else {"success": success}
        self._call("complete_store", keys=_hexes(keys), request_id=request_id, **given)

    def touch(self, keys: Sequence[bytes], request_id: str) -> None:
        self._call("touch", keys=_hexes(keys), request_id=request_id)

    def end_step(self) -> tuple[TierTransfer, ...]:
        return tuple(
            TierTransfer(**{**each, "keys": tuple(each["keys"]), "places": tuple(each["places"])})
            for each in self._call("end_step")
        )

    def finish_transfer(self, number: int, failed: Collection[bytes] = ()) -> None:
        self._call("finish_transfer", number=number, failed=_hexes(list(failed)))

    def finish_request(self, request_id: str) -> None:
        self._call("finish_request", request_id=request_id)

    def reset(self) -> None:
        self._call("reset")

    def take_events(self) -> tuple[OffloadEvent, ...]:
        events = self._call("take_events")
        return tuple(OffloadEvent(tuple(each["keys"]), each["is_removed"]) for each in events)

    def counts(self) -> OffloadCounts:
        found = OffloadCounts(**self._call("counts"))
        return replace(found, tenants=tuple((name, number) for name, number in found.tenants))

    def _call(self, name: str, **args: Any) -> Any:
        sent = {argument: carried(argument, value) for argument, value in args.items()}
        return self._connection.call(f"offload_{name}", manager=self._handle, args=sent)


def _hexes(keys: Sequence[bytes]) -> list[Any]:
    if not isinstance(keys, list | tuple):
        raise InvalidArgumentError("keys", keys, "a list or tuple of keys")
    return [_hex("keys", key) for key in keys]


def _hex(field: str, key: Any) -> Any:
    """Return a key as text; a text is no key, and a value of another type is for the server."""
    if isinstance(key, str):
        raise InvalidArgumentError(field, key, "bytes")
    return key.hex() if isinstance(key, bytes) else carried(field, key)
