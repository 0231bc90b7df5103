"""An offload manager in another process: its calls as messages, on both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any, cast

from kvcheck.play.calls import give_calls
from kvcheck.remote.calls import Call, ProtocolViolation, known, unused
from kvcheck.remote.connection import Connection
from kvcheck.remote.operations import MESSAGES, OFFLOAD_RESULTS
from kvcheck.remote.values import carried
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.offload import (
    OPTIONS,
    Found,
    OffloadConfig,
    OffloadImplementation,
    OffloadManager,
    WholeOffloadManager,
)

# The server.


class Told:
    """A lower tier in the server: it has what the client's tier has said for this look-up."""

    def __init__(self) -> None:
        self.key, self.found = b"", Found.MISS

    def lookup(self, key: bytes) -> Found:
        return self.found if key == self.key else Found.MISS


class Served:
    """An offload manager that was made for a client, and its lower tiers."""

    def __init__(self, manager: OffloadManager, lower: tuple[Told, ...]) -> None:
        self.manager, self.lower = manager, lower

    def lookup(self, key: Any, request_id: Any, below: Any) -> Found:
        """Make a look-up in which the lower tiers say what they said to the client."""
        if not isinstance(below, list) or len(below) != len(self.lower):
            said = f"below: {below!r} is not what {len(self.lower)} lower tiers say"
            raise ProtocolViolation("bad_message", said)
        for told, word in zip(self.lower, below, strict=True):
            if word not in tuple(Found):
                raise ProtocolViolation("bad_message", f"below: {word!r} is no result of a tier")
            told.key, told.found = key, Found(word)
        return self.manager.lookup(key, request_id)


def _make_offload(call: Call) -> None:
    handle = unused(call.session.offloads, "offload manager", call.manager_handle)
    maker = call.session.implementation
    if not isinstance(maker, OffloadImplementation):
        raise UnsupportedError("offload managers", maker.capabilities.name)
    given = dict(call.args)
    number = given.pop("num_lower")
    if type(number) is not int or not 0 <= number <= 64:
        raise ProtocolViolation("bad_message", f"num_lower: {number!r} is not an int in 0 … 64")
    lower = tuple(Told() for _ in range(number))
    manager = maker.make_offload(OffloadConfig(lower=lower, **given))
    call.session.offloads[handle] = Served(manager, lower)


def _made(name: str, call: Call) -> Any:
    """Make a call of an offload manager: the required arguments in their order, others by name."""
    served: Served = known(call.session.offloads, "offload manager", call.manager_handle)
    given = {name: _decoded(name, value) for name, value in call.args.items()}
    ordered = [given.pop(each) for each in MESSAGES[call.name].required]
    made = served.lookup if name == "lookup" else getattr(served.manager, name)
    return OFFLOAD_RESULTS[name].write(made(*ordered, **given))


def _decoded(name: str, value: Any) -> Any:
    """Decode keys; what is none is left as it is, for the manager to refuse."""
    if name in ("keys", "failed") and isinstance(value, list):
        return [_decoded("key", each) for each in value]
    if name != "key" or not isinstance(value, str):
        return value
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise ProtocolViolation("bad_message", f"{value!r} is no key in hexadecimal") from None


OFFLOAD_CALLS: Mapping[str, Callable[[Call], Any]] = {
    "make_offload": _make_offload,
    **{f"offload_{name}": partial(_made, name) for name in OFFLOAD_RESULTS},
}


# The client.


def made_offload(connection: Connection, config: OffloadConfig) -> OffloadManager:
    """Make a manager in the child; the lower tiers stay here."""
    usual, given = OffloadConfig(1), {name: getattr(config, name) for name in OPTIONS}
    args: dict[str, Any] = {"num_chunks": config.num_chunks, "num_lower": len(config.lower)}
    args |= {"order": config.order}
    args |= {name: each for name, each in given.items() if each != getattr(usual, name)}
    sent = {n: dict(v) if n == "quotas" else carried(n, v) for n, v in args.items()}
    return cast(OffloadManager, RemoteOffload(connection, sent, config))


class RemoteOffload:
    """See `kvspec.offload.OffloadManager` for the calls, which are added below.

    A look-up carries what the lower tiers say to it.
    """

    def __init__(self, connection: Connection, args: dict[str, Any], config: OffloadConfig) -> None:
        self._connection, self._lower = connection, config.lower
        self._handle = connection.new_handle()
        connection.call("make_offload", manager=self._handle, args=args)
        connection.forget(self, "managers", self._handle)

    def _call(self, name: str, given: Mapping[str, Any]) -> Any:
        usual = signature(getattr(WholeOffloadManager, name)).parameters
        required = MESSAGES[f"offload_{name}"].required
        args = {
            each: _sent(each, value)
            for each, value in given.items()
            if each in required or value != usual[each].default
        }
        if name == "lookup":
            args["below"] = [str(tier.lookup(given["key"])) for tier in self._lower]
        return self._connection.call(f"offload_{name}", manager=self._handle, args=args)


def _sent(name: str, value: Any) -> Any:
    """Encode an argument. A text is no key, and a value of another type is for the server."""
    if name == "failed":
        name, value = "keys", list(value)
    if name == "keys":
        if not isinstance(value, list | tuple):
            raise InvalidArgumentError("keys", value, "a list or tuple of keys")
        return [_sent("key", key) for key in value]
    if name != "key":
        return carried(name, value)
    if isinstance(value, str):
        raise InvalidArgumentError("keys", value, "bytes")
    return value.hex() if isinstance(value, bytes) else carried("keys", value)


give_calls(RemoteOffload, WholeOffloadManager, OFFLOAD_RESULTS)
