"""Serves an implementation over standard input and output (`spec/protocol.md`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BufferedIOBase
from typing import Any, BinaryIO

from kvcheck.remote.calls import CALLS, Call, ProtocolViolation, Session
from kvcheck.remote.chunks import OFFLOAD_CALLS
from kvcheck.remote.codec import MessageStream, decode, encode
from kvcheck.remote.operations import MESSAGES, OWNED_BY_SCHEDULER, PROTOCOL_VERSION, MessageShape
from kvcheck.remote.values import encode_capabilities, encode_error, encode_parts, protocol_error
from kvspec.errors import FormatError
from kvspec.files.objects import (
    Where,
    anything,
    checked_members,
    integer,
    list_of,
    null,
    object_of,
    shown,
    text,
)
from kvspec.fleet import FleetImplementation, IndexCapabilities
from kvspec.interface import Implementation
from kvspec.offload import OffloadImplementation
from kvspec.request import Request, RequestStatus


def serve_stdio(make: Callable[[], Implementation]) -> int:
    """Make the implementation and serve it until standard input ends; returns the exit code.

    Anything the implementation prints, even from C, is redirected to standard error: standard
    output carries only the protocol.
    """
    sys.stdout.flush()
    with os.fdopen(os.dup(0), "rb") as source, os.fdopen(os.dup(1), "wb") as sink:
        nowhere = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nowhere, 0)
        os.close(nowhere)
        os.dup2(2, 1)
        sys.stdout = sys.stderr
        implementation = make()
        with suppress(BrokenPipeError):
            return serve(implementation, source, sink)
    return 0


def serve(implementation: Implementation, source: BufferedIOBase, sink: BinaryIO) -> int:
    """Reply to messages until `source` ends; returns 0, or 2 after input not in the protocol."""
    session = Session(implementation)
    stream = MessageStream(source)
    while True:
        try:
            body = stream.next()
            if body is None:
                return 0
            message = decode(body, stream.framing)
        except FormatError as error:
            # The start of the next message is no longer known.
            _send(sink, {"id": None, "error": protocol_error("bad_message", str(error))}, stream)
            print(f"kvspec serve: {error}", file=sys.stderr)
            return 2
        _send(sink, answer(session, message), stream)


def _send(sink: BinaryIO, message: dict[str, Any], stream: MessageStream) -> None:
    try:
        framed = encode(message, stream.framing)
    except FormatError as error:
        refusal = protocol_error("too_large", str(error))
        framed = encode({"id": message["id"], "error": refusal}, stream.framing)
    except Exception as error:  # a result that is not JSON, such as a usage of nan
        framed = encode({"id": message["id"], "error": encode_error(error)}, stream.framing)
    sink.write(framed)
    sink.flush()


def answer(session: Session, message: dict[str, Any]) -> dict[str, Any]:
    """Return the reply to one message; never raises."""
    number = message.get("id")
    if type(number) is not int:
        number = None
    try:
        return {"id": number, "result": _perform(session, message)}
    except ProtocolViolation as error:
        return {"id": number, "error": protocol_error(error.reason, str(error))}
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever an implementation raises is its result
        return {"id": number, "error": encode_error(error)}


def _perform(session: Session, message: dict[str, Any]) -> Any:
    where = Where("message")
    try:
        found = checked_members(
            message,
            where,
            {"id": integer, "op": text},
            {
                "manager": integer,
                "request": integer,
                "set": object_of(anything),
                "args": object_of(anything),
            },
        )
        name = found["op"]
        if name not in MESSAGES:
            raise ProtocolViolation("unknown_op", f"unknown op {shown(name)}")
        if name == "hello":
            return hello(session, found.get("args", {}), where)
        if not session.greeted:
            raise where.member("op").error(f"{name} before hello")
        call = _resolved(session, found, MESSAGES[name], where)
    except FormatError as error:
        raise ProtocolViolation("bad_message", str(error)) from None
    result = (CALLS.get(name) or OFFLOAD_CALLS[name])(call)
    if MESSAGES[name].result is null and result is not None:
        raise TypeError(f"{name} answered {shown(result)} where nothing is due")
    return result


def hello(session: Session, args: Mapping[str, Any], where: Where) -> dict[str, Any]:
    """Make the handshake: choose a common protocol version, and return the capabilities."""
    found = checked_members(
        args, where.member("args"), {"protocol": list_of(integer), "client": text}, {}
    )
    if PROTOCOL_VERSION not in found["protocol"]:
        raise ProtocolViolation(
            "version", f"this server speaks protocol {PROTOCOL_VERSION}, not {found['protocol']}"
        )
    session.greeted = True
    made = session.implementation
    answer = {"protocol": PROTOCOL_VERSION, **encode_capabilities(made.capabilities)}
    if isinstance(made, FleetImplementation):
        can: IndexCapabilities = getattr(made, "index_capabilities", IndexCapabilities())
        answer["index"] = encode_parts(can)
    if isinstance(made, OffloadImplementation):
        answer["offload"] = encode_parts(made.offload_capabilities)
    return {**answer, "pipelining": True}


def _resolved(
    session: Session, found: Mapping[str, Any], shape: MessageShape, where: Where
) -> Call:
    """Look up the call's handles, and set its request's attributes."""
    for handle in ("manager", "request"):
        if handle in shape.handles and handle not in found:
            raise where.member(handle).error("missing")
        if handle not in shape.handles and handle in found:
            raise where.member(handle).error(f"{found['op']} names none")
    args = dict(found.get("args", {}))
    checked_members(
        args,
        where.member("args"),
        dict.fromkeys(shape.required, anything),
        dict.fromkeys(shape.optional, anything),
    )
    call = Call(session, found["op"], args, found.get("manager", 0), found.get("request", 0))
    owned = found.get("set", {})
    if owned:
        if "request" not in shape.handles or found["op"] == "make_request":
            raise where.member("set").error(f"{found['op']} is about no request that exists")
        checked_members(owned, where.member("set"), {}, dict.fromkeys(OWNED_BY_SCHEDULER, anything))
        _set(call.request, owned)
    return call


def _set(request: Request, owned: Mapping[str, Any]) -> None:
    """Set the scheduler's attributes, even wrong values: the call that reads them refuses."""
    for name, value in owned.items():
        if name == "status" and value in tuple(RequestStatus):
            value = RequestStatus(value)
        setattr(request, name, value)
