"""Make each call of the protocol on the implementation that a server offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import index
from typing import Any, TypeAlias, TypeVar

from kvcheck.play.calls import grown_answer, lists_of, made_answer, make, plain, sequence
from kvcheck.remote.index import RESULTS, perform, read
from kvcheck.remote.values import decode_request, encode_sample
from kvspec.codec import decode_manager_config
from kvspec.errors import FormatError, UnsupportedError
from kvspec.event_codec import decode_stats
from kvspec.files.objects import Where, boolean, checked_members, integer, list_of
from kvspec.fleet import FleetImplementation, PrefixIndex
from kvspec.interface import Feature, HitRateWindow, Implementation, KVCacheManager
from kvspec.operations import OPERATIONS
from kvspec.planning_functions import FUNCTIONS
from kvspec.request import Request
from kvspec.snapshot_codec import decode_snapshot, encode_snapshot

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
    indexes: dict[int, PrefixIndex] = field(default_factory=dict)
    offloads: dict[int, Any] = field(default_factory=dict)


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


_ARGS = Where("message", field="args")


@dataclass(frozen=True)
class Call:
    """A checked message; handles are looked up when the call needs their objects."""

    session: Session
    name: str
    args: Mapping[str, Any]
    manager_handle: int
    request_handle: int

    @property
    def manager(self) -> KVCacheManager:
        return known(self.session.managers, "manager", self.manager_handle)

    @property
    def request(self) -> Request:
        return known(self.session.requests, "request", self.request_handle)


def _create_manager(call: Call) -> Any:
    handle = unused(call.session.managers, "manager", call.manager_handle)
    config = _decoded(decode_manager_config, call.args["config"], "config")
    check = _decoded(boolean, call.args["check_invariants"], "check_invariants")
    manager = call.session.implementation.create(config, check_invariants=check)
    return _created(call, handle, manager)


def _restore_manager(call: Call) -> Any:
    handle = unused(call.session.managers, "manager", call.manager_handle)
    config = _decoded(decode_manager_config, call.args["config"], "config")
    snapshot = _decoded(decode_snapshot, call.args["snapshot"], "snapshot")
    manager = call.session.implementation.restore(config, snapshot)
    return _created(call, handle, manager)


def _created(call: Call, handle: int, manager: KVCacheManager) -> Any:
    config = manager.config
    shown = {
        "scheduler_block_size": index(config.scheduler_block_size_tokens or 0),
        "hash_block_size": index(config.hash_block_size_tokens or 0),
        "none_hash": manager.none_hash.hex(),
    }
    call.session.managers[handle] = manager
    return shown


def _clone_manager(call: Call) -> None:
    handle = unused(call.session.managers, "manager", call.args["copy"])
    call.session.managers[handle] = call.session.implementation.clone(call.manager)


def _make_request(call: Call) -> Any:
    handle = unused(call.session.requests, "request", call.request_handle)
    request_input = _decoded(decode_request, dict(call.args), "")
    request = call.session.implementation.make_request(call.manager, request_input)
    shown = made_answer(request)
    call.session.requests[handle] = request
    return shown


def _append_tokens(call: Call) -> Any:
    request = call.request
    before = len(request.block_hashes)
    tokens = sequence(call.args["token_ids"])
    call.session.implementation.append_tokens(call.manager, request, tokens)
    return grown_answer(request, before)


def _drop(call: Call) -> None:
    for kind, table in (
        ("managers", call.session.managers),
        ("managers", call.session.offloads),
        ("requests", call.session.requests),
        ("windows", call.session.windows),
        ("indexes", call.session.indexes),
    ):
        for handle in _decoded(list_of(integer), call.args.get(kind, []), kind):
            table.pop(handle, None)


def _of_manager(call: Call) -> Any:
    """Make a call that records also know."""
    request = call.request if OPERATIONS[call.name].on_request else None
    return plain(call.name, make(call.manager, call.name, request, call.args))


def _true_or_false(call: Call) -> Any:
    answer = _of_manager(call)
    if not isinstance(answer, bool):
        raise TypeError(f"answered {answer!r} where True or False is due")
    return answer


def _get_block_ids(call: Call) -> Any:
    features = call.session.implementation.capabilities.features
    has_unhashed = Feature.UNHASHED_BLOCKS in features
    return lists_of(call.manager, call.request, has_unhashed=has_unhashed)


def _get_usage(call: Call) -> Any:
    manager = call.manager
    return {"num_free_blocks": index(manager.num_free_blocks), "usage": float(manager.usage)}


def _make_window(call: Call) -> None:
    handle = unused(call.session.windows, "window", call.args["window"])
    window = call.session.implementation.make_hit_rate_window(call.args["max_requests"])
    call.session.windows[handle] = window


def _observe(call: Call) -> Any:
    window = known(call.session.windows, "window", call.args["window"])
    window.observe(_decoded(decode_stats, call.args["stats"], "stats"))
    return {"num_requests": index(window.num_requests), "hit_rate": float(window.hit_rate)}


def _make_index(call: Call) -> None:
    handle = unused(call.session.indexes, "index", call.args["index"])
    made = call.session.implementation
    if not isinstance(made, FleetImplementation):
        raise UnsupportedError("an index of engines", made.capabilities.name)
    options = {name: call.args[name] for name in ("removed_event_per", "max_waiting")}
    call.session.indexes[handle] = made.make_prefix_index(**options)


def _index(call: Call) -> Any:
    engines = known(call.session.indexes, "index", call.args["index"])
    name = call.args["fn"]
    if name != "engines" and (not isinstance(name, str) or name not in RESULTS):
        raise ProtocolViolation("unknown_op", f"unknown call of an index {name!r}")
    found = _decoded(lambda value, where: read(name, value, where), call.args["input"], "input")
    return perform(engines, name, found)


def _plan(call: Call) -> Any:
    planner = call.session.implementation.planner
    if planner is None:
        raise UnsupportedError("planning", call.session.implementation.capabilities.name)
    name = call.args["fn"]
    if not isinstance(name, str) or name not in FUNCTIONS:
        raise ProtocolViolation("unknown_op", f"unknown planning function {name!r}")
    function = FUNCTIONS[name]
    values = _decoded(
        lambda value, where: checked_members(value, where, function.checks, {}),
        call.args["input"],
        "input",
    )
    return function.answer.write(function.call(planner, values))


def _decoded(decode: Callable[[Any, Where], Any], value: object, name: str) -> Any:
    """Decode a structured argument: its shape is checked here, its values by the implementation."""
    try:
        return decode(value, _ARGS.member(name) if name else _ARGS)
    except FormatError as error:
        raise ProtocolViolation("bad_message", str(error)) from None


Make: TypeAlias = Callable[[Call], Any]

CALLS: Mapping[str, Make] = {
    **dict.fromkeys(set(OPERATIONS) - {"new_request"}, _of_manager),
    "create_manager": _create_manager,
    "clone_manager": _clone_manager,
    "restore_manager": _restore_manager,
    "make_request": _make_request,
    "append_tokens": _append_tokens,
    "drop": _drop,
    "cache_partial_block": _true_or_false,
    "reset_prefix_cache": _true_or_false,
    "get_block_ids": _get_block_ids,
    "take_residency_samples": lambda c: [
        encode_sample(sample) for sample in c.manager.take_residency_samples()
    ],
    "get_usage": _get_usage,
    "snapshot": lambda c: encode_snapshot(c.manager.snapshot()),
    "make_window": _make_window,
    "observe": _observe,
    "make_index": _make_index,
    "index": _index,
    "plan": _plan,
}
"""Every message but `hello`."""
