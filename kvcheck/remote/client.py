"""An `Implementation` whose managers, requests and planner live in a child process.

Arguments that a message cannot carry (a set where a sequence is due, an 80-bit number) are refused
here, with the error that any implementation must raise.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from kvcheck.installed import installed_implementations
from kvcheck.play.calls import asking
from kvcheck.play.elsewhere import ElsewhereImplementation
from kvcheck.remote.chunks import made_offload
from kvcheck.remote.connection import Connection, Heard, Options
from kvcheck.remote.index import RemoteIndex
from kvcheck.remote.manager import RemoteManager, RemoteRequest, manager_handle, own, sent_ids
from kvcheck.remote.values import carried, decode_parts, encode_request
from kvspec.codec import encode_manager_config, field_of_member
from kvspec.config import ManagerConfig
from kvspec.errors import (
    ConfigError,
    FormatError,
    InvalidArgumentError,
    UnknownImplementationError,
    UnsupportedError,
)
from kvspec.event_codec import encode_stats
from kvspec.files.objects import Where
from kvspec.fleet import MOST_WAITING, IndexCapabilities, PrefixIndex
from kvspec.interface import Capabilities, Feature, HitRateWindow, KVCacheManager
from kvspec.offload import OffloadCapabilities, OffloadConfig, OffloadManager
from kvspec.planning import Planner
from kvspec.planning_functions import FUNCTIONS, PlanningFunction
from kvspec.request import Request, RequestInput, has_extra_keys, token_list
from kvspec.snapshot import Snapshot
from kvspec.snapshot_codec import encode_snapshot
from kvspec.specs import SPEC_TYPES, LayerSpec
from kvspec.stats import PrefixCacheStats

T = TypeVar("T")


def connect(name: str) -> RemoteImplementation:
    """Connect to the implementation `cmd:PROGRAM ARGS…`.

    Before the colon, `+json` or `+cbor` may set the framing, which is otherwise detected, and
    `+timeout=SECONDS` the time for each reply. Raises UnknownImplementationError for a malformed
    name and RemoteError if the program doesn't reply to the handshake.
    """
    options = parse_name(name)
    connection = Connection(options)
    kind = RemoteImplementation if connection.offload is None else RemoteOffloads
    return kind(options, connection=connection)


def parse_name(name: str) -> Options:
    """Parse the command and the options in `cmd[+json][+timeout=SECONDS]:PROGRAM ARGS…`."""
    head, _, rest = name.partition(":")
    framing, timeout_s = Options.framing, Options.timeout_s
    for option in head.split("+")[1:]:
        if option in ("json", "cbor"):
            framing = option
        elif option.startswith("timeout="):
            timeout_s = _seconds(name, option.removeprefix("timeout="))
        else:
            raise _unreadable(
                name, f"unknown option {option!r}; known: json, cbor, timeout=SECONDS"
            )
    try:
        command = tuple(shlex.split(rest))
    except ValueError as error:
        raise _unreadable(name, f"{error} in the command") from None
    if not command:
        raise _unreadable(name, "no program behind the colon")
    return Options(command, framing, timeout_s)


def _seconds(name: str, digits: str) -> float:
    try:
        seconds = float(digits)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise _unreadable(name, f"timeout={digits} is not a number of seconds above 0")
    return seconds


def _unreadable(name: str, reason: str) -> UnknownImplementationError:
    return UnknownImplementationError(name, installed_implementations(), reason)


class RemoteImplementation(ElsewhereImplementation):
    """See `kvspec.interface.Implementation` for what each call promises.

    When the child has failed, its managers and requests are lost and every call of them raises
    RemoteError; the next `create`, `restore`, look at the planner or new window starts another.
    """

    def __init__(
        self,
        options: Options,
        heard: Heard | None = None,
        *,
        connection: Connection | None = None,
    ) -> None:
        self._heard = heard
        self._connection = Connection(options, heard) if connection is None else connection
        self.options = self._connection.options  # with the framing that was found

    @property
    def connection(self) -> Connection:
        """Connection for new managers and requests; a new one after a failure."""
        if self._connection.has_failed:
            self._connection = Connection(self.options, self._heard)
        return self._connection

    def close(self) -> None:
        """End the child before it is no longer used. RemoteError if it wrote more than answers."""
        self._connection.close()

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities from the handshake, without custom specs, which are code."""
        return self._connection.capabilities

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        """Make a manager in the child. UnsupportedError with a clock, which cannot be sent."""
        if clock is not None and not callable(clock):
            raise InvalidArgumentError("clock", clock, "a function, or None")
        if clock is not None:
            raise UnsupportedError("a clock of the caller", self.capabilities.name)
        args = {"config": self._config(config), "check_invariants": bool(check_invariants)}
        try:
            return self._made("create_manager", config, args)
        except ConfigError as error:
            error.field = field_of_member(error.field)  # a server knows the names of the protocol
            raise

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        self._needs(Feature.RESTORE)
        try:
            encoded = encode_snapshot(snapshot)
        except (AttributeError, TypeError, ValueError) as error:
            raise InvalidArgumentError("snapshot", snapshot, "a Snapshot") from error
        args = {"config": self._config(config), "snapshot": encoded}
        return self._made("restore_manager", config, args)

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        """Copy the manager, in the same child."""
        self._needs(Feature.CLONE)
        original = manager_handle(manager)
        handle = original.connection.new_handle()
        original.connection.call("clone_manager", manager=original.handle, args={"copy": handle})
        return RemoteManager(original.connection, handle, original.config, original.none_hash)  # type: ignore[abstract]  # made of the interface

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """Make a request in the child, with a copy of its tokens and hashes here."""
        remote = manager_handle(manager)
        if not isinstance(request, RequestInput):
            raise InvalidArgumentError("request", request, "a RequestInput")
        form = remote.config.policy.extra_keys
        if form not in self.capabilities.extra_key_forms and has_extra_keys(request):
            raise UnsupportedError(f"extra keys {form}", self.capabilities.name)
        args = encode_request(request)
        handle = remote.connection.new_handle()
        made = remote.connection.call(
            "make_request", manager=remote.handle, request=handle, args=args
        )
        return RemoteRequest(remote.connection, handle, args, made)

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        """Append tokens to the request, there and here."""
        remote = manager_handle(manager)
        mine = own(request, remote.connection)
        tokens = sent_ids("token_ids", token_list(token_ids))
        answer = mine.call("append_tokens", remote.handle, {"token_ids": tokens})
        mine.appended(tokens, answer)

    def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
        self._needs(Feature.STATISTICS)
        return RemoteWindow(self.connection, max_requests)

    @property
    def index_capabilities(self) -> IndexCapabilities:
        """What its index has. UnsupportedError if it has none."""
        if self._connection.index is None:
            raise UnsupportedError("an index of engines", self.capabilities.name)
        return self._parts(IndexCapabilities, self._connection.index, "index")

    def make_prefix_index(
        self, *, removed_event_per: str = "copy", max_waiting: int = MOST_WAITING
    ) -> PrefixIndex:
        """Make an index in the child. UnsupportedError if it has none."""
        _ = self.index_capabilities
        made: Any = RemoteIndex(self.connection, removed_event_per, max_waiting)
        return cast(PrefixIndex, made)

    @property
    def planner(self) -> Planner | None:
        if Feature.PLANNING not in self.capabilities.features:
            return None
        return cast(Planner, RemotePlanner(self.connection))

    def _made(self, op: str, config: ManagerConfig, args: dict[str, Any]) -> KVCacheManager:
        connection = self.connection
        handle = connection.new_handle()
        made = connection.call(op, manager=handle, args=args)
        return RemoteManager.made(connection, handle, config, made)

    def _config(self, config: ManagerConfig) -> dict[str, Any]:
        """Encode the configuration as in records; code cannot be sent."""
        if not isinstance(config, ManagerConfig):
            raise ConfigError("config", config, "a ManagerConfig")
        if config.registry.custom:
            raise UnsupportedError("custom specs", self.capabilities.name)
        for group in config.kv_cache.groups:
            self._check_spec(group.spec)
        sent = encode_manager_config(config)
        if "tagged" not in self.capabilities.extra_key_forms and "policy" in sent:
            # A server that is older than the tags: the member is unknown to it, and means plain.
            sent["policy"].pop("extra_keys")
        return sent

    def _check_spec(self, spec: LayerSpec) -> None:
        if type(spec) not in SPEC_TYPES:
            raise UnsupportedError(f"spec type {type(spec).__name__}", self.capabilities.name)
        for _, inner in spec.layers:
            self._check_spec(inner)

    def _parts(self, made: Callable[..., T], value: object, member: str) -> T:
        try:
            return decode_parts(made, value, member)
        except FormatError as error:
            raise self._connection.nonsense(str(error)) from None

    def _needs(self, feature: Feature) -> None:
        if feature not in self.capabilities.features:
            raise UnsupportedError(feature.value, self.capabilities.name)


class RemoteOffloads(RemoteImplementation):
    """A program whose handshake offers offload managers."""

    @property
    def offload_capabilities(self) -> OffloadCapabilities:
        """What the handshake says of them."""
        return self._parts(OffloadCapabilities, self._connection.offload, "offload")

    def make_offload(self, config: OffloadConfig) -> OffloadManager:
        return made_offload(self.connection, config)


class RemoteWindow:
    def __init__(self, connection: Connection, max_requests: int) -> None:
        self._connection = connection
        self._handle = connection.new_handle()
        self._shown: dict[str, Any] = {"num_requests": 0, "hit_rate": 0.0}
        args = {"window": self._handle, "max_requests": carried("max_requests", max_requests)}
        connection.call("make_window", args=args)
        connection.forget(self, "windows", self._handle)

    def observe(self, stats: PrefixCacheStats) -> None:
        if not isinstance(stats, PrefixCacheStats):
            raise InvalidArgumentError("stats", stats, "PrefixCacheStats")
        args = {"window": self._handle, "stats": encode_stats(stats)}
        self._shown = self._connection.call("observe", args=args)

    @property
    def num_requests(self) -> int:
        """Number of requests in the window, from the last reply."""
        return int(self._shown["num_requests"])

    @property
    def hit_rate(self) -> float:
        """Hit tokens / queried tokens in the window, from the last reply."""
        return float(self._shown["hit_rate"])


class RemotePlanner:
    """See `kvspec.planning.Planner` for the functions, which are added below."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def _call(self, function: str, given: Mapping[str, Any]) -> Any:
        forms = FUNCTIONS[function].inputs
        sent = {name: forms[name].write(value) for name, value in given.items()}
        output = self._connection.call("plan", args={"fn": function, "input": sent})
        try:
            return FUNCTIONS[function].answer.read(output, Where("answer", field="result"))
        except FormatError as error:
            raise self._connection.nonsense(str(error)) from None


def _method(name: str, function: PlanningFunction) -> Callable[..., Any]:
    def ask(planner: RemotePlanner, given: dict[str, Any]) -> Any:
        return planner._call(name, dict(zip(function.inputs, given.values(), strict=True)))

    return asking(getattr(Planner, function.method), ask)


for _name, _function in FUNCTIONS.items():
    setattr(RemotePlanner, _function.method, _method(_name, _function))
