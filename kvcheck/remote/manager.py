"""A manager that lives in a child process: every call is one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvcheck.play.calls import DEFAULTS, Delegating
from kvcheck.play.elsewhere import ElsewhereManager
from kvcheck.remote.connection import Connection
from kvcheck.remote.operations import OWNED_BY_SCHEDULER
from kvcheck.remote.values import carried
from kvspec.audit import unwrapped
from kvspec.blocks import KVCacheBlocks
from kvspec.config import ManagerConfig
from kvspec.errors import (
    FormatError,
    InvalidArgumentError,
    KVSpecError,
    RemoteError,
    UnknownBlockError,
)
from kvspec.event_codec import decode_event
from kvspec.events import Event
from kvspec.files.objects import Where
from kvspec.interface import KVCacheManager
from kvspec.operations import LOOK_UPS
from kvspec.request import Request, RequestStatus
from kvspec.snapshot import Snapshot

ALLOCATE_DEFAULTS: Mapping[str, object] = DEFAULTS["allocate_slots"]

LISTS = ("get_blocks", "get_unhashed_block_ids")
"""Calls that are one message, `get_block_ids`."""


class RemoteManager(Delegating, ElsewhereManager):
    """See `kvspec.interface.KVCacheManager` for what each call promises."""

    config: ManagerConfig
    none_hash: bytes

    def __init__(
        self, connection: Connection, handle: int, config: ManagerConfig, none_hash: bytes
    ) -> None:
        self.connection = connection
        self.handle = handle
        self.config = config
        self.none_hash = none_hash
        self._num_allocations = 0
        connection.forget(self, "managers", handle)

    @classmethod
    def made(
        cls, connection: Connection, handle: int, config: ManagerConfig, made: dict[str, Any]
    ) -> RemoteManager:
        try:
            filled = replace(
                config,
                scheduler_block_size_tokens=made["scheduler_block_size"],
                hash_block_size_tokens=made["hash_block_size"],
            )
        except InvalidArgumentError as error:
            raise connection.nonsense(str(error)) from None
        return cls(connection, handle, filled, made["none_hash"])

    @property
    def num_free_blocks(self) -> int:
        return int(self._call("get_usage")["num_free_blocks"])

    @property
    def usage(self) -> float:
        return float(self._call("get_usage")["usage"])

    def foresee(self, *questions: str) -> None:
        """Prefetch some of `kvcheck.remote.connection.QUESTIONS`."""
        self.connection.foresee(self.handle, questions)

    def _call(self, op: str, **args: Any) -> Any:
        return self.connection.call(op, manager=self.handle, args=args)

    def _made(self, name: str, request: Request | None, given: dict[str, Any]) -> Any:
        """Send a message; one about a request includes what its scheduler changed."""
        op = "get_block_ids" if name in LISTS else name
        args = self._arguments(name, given)
        if request is None:
            answer = self._call(op, **args)
        else:
            sent = {argument: carried(argument, value) for argument, value in args.items()}
            answer = own(request, self.connection).call(op, self.handle, sent)
        if name in LOOK_UPS:
            self._check_lists(answer.blocks)
        elif name == "allocate_slots" and answer is not None:
            self._check_lists(answer)
        elif name in LISTS:
            self._check_lists(answer["blocks"])
            return answer["blocks" if name == "get_blocks" else "unhashed"]
        return self._events(answer) if name == "take_events" else answer

    def _events(self, answer: list[Any]) -> tuple[Event, ...]:
        where, int_hashes = Where("answer", field="result"), self.config.int_event_hashes
        try:
            return tuple(
                decode_event(event, where.item(place), int_hashes=int_hashes)
                for place, event in enumerate(answer)
            )
        except FormatError as error:
            raise self.connection.nonsense(str(error)) from None

    def _arguments(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        if name == "find_longest_cache_hit_per_group":
            return {"max_cache_hit_length": given["max_hit_length_tokens"]}
        if name == "record_prefix_cache_stats":
            return {"num_hits": given["num_hit_tokens"]}
        if name in ("free_blocks", "evict_blocks"):
            return {"block_ids": self._sent_blocks("block_ids", given["block_ids"])}
        if name != "allocate_slots":
            return given
        hit = given["new_computed_blocks"]
        if hit is not None and not isinstance(hit, KVCacheBlocks):
            raise InvalidArgumentError("new_computed_blocks", hit, "KVCacheBlocks or None")
        sent = {option: given[option] for option in ALLOCATE_DEFAULTS}
        sent["new_computed_blocks"] = None if hit is None else self._sent_hits(hit)
        return {"num_new_tokens": given["num_new_tokens"], **self._some_left_out(sent)}

    def _some_left_out(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Omit half of the options that have their default value, a different half each time.

        This also tests the server's defaults.
        """
        self._num_allocations += 1
        return {
            name: value
            for number, (name, value) in enumerate(options.items(), self._num_allocations)
            if number % 2 or value is not ALLOCATE_DEFAULTS[name]
        }

    def snapshot(self) -> Snapshot:
        found: Snapshot = self._call("snapshot")
        return found

    def _check_lists(self, blocks: KVCacheBlocks) -> None:
        if len(blocks.groups) != len(self.config.kv_cache.groups):
            problem = f"{len(blocks.groups)} lists of blocks, not one per group"
            raise self.connection.nonsense(problem)

    def _sent_hits(self, hit: KVCacheBlocks) -> list[Any]:
        return [
            self._sent_blocks(f"new_computed_blocks[{group}]", ids)
            for group, ids in enumerate(hit.groups)
        ]

    def _sent_blocks(self, field: str, ids: Sequence[int]) -> list[Any]:
        """Encode block ids; one that no message can carry is not a block."""
        try:
            return sent_ids(field, ids)
        except InvalidArgumentError as error:
            if error.field == field:
                raise
            raise UnknownBlockError(error.value, self.config.kv_cache.num_blocks) from None


def sent_ids(field: str, ids: Sequence[int]) -> list[Any]:
    """Encode tokens or blocks. A set is refused, because the order matters."""
    if not isinstance(ids, Sequence):
        raise InvalidArgumentError(field, ids, "a sequence")
    listed: list[Any] = carried(field, list(ids))
    return listed


def manager_handle(manager: KVCacheManager) -> RemoteManager:
    """Return the manager, without monitors, if it lives in a child process."""
    inner = unwrapped(manager)
    if not isinstance(inner, RemoteManager):
        raise InvalidArgumentError("manager", manager, "made by this implementation's create")
    return inner


class RemoteRequest:
    """See `kvspec.request.Request`; tokens are counted and hashed by the child.

    The scheduler's attributes are set here, and changes are sent with the next message about the
    request.
    """

    def __init__(
        self,
        connection: Connection,
        handle: int,
        args: Mapping[str, Any],
        made: Mapping[str, Any],
    ) -> None:
        self.connection = connection
        self.handle = handle
        self.request_id = str(args["request_id"])
        self.token_ids = list(args["prompt_token_ids"])
        self.num_prompt_tokens = len(self.token_ids)
        self.num_tokens = int(made["num_tokens"])
        self.block_hashes = [bytes.fromhex(digits) for digits in made["block_hashes"]]
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.junction_tokens = 0
        self.num_in_flight_tokens = 0
        self._sent = self._owned()
        connection.forget(self, "requests", handle)

    def call(self, op: str, manager: int, args: Mapping[str, Any]) -> Any:
        """Send a message about this request, with what the scheduler changed."""
        owned = self._owned()
        # Compare types as well: True is not 1, though Python calls them equal.
        changed = {
            name: value
            for name, value in owned.items()
            if value != self._sent[name] or type(value) is not type(self._sent[name])
        }
        try:
            result = self.connection.call(
                op, manager=manager, request=self.handle, owned=changed, args=args
            )
        except (FormatError, RemoteError):
            raise  # perhaps it was never set; setting it again does no harm
        except KVSpecError:
            self._sent = owned
            raise
        self._sent = owned
        return result

    def _owned(self) -> dict[str, Any]:
        return {
            name: carried(f"request.{name}", getattr(self, name)) for name in OWNED_BY_SCHEDULER
        }

    def appended(self, token_ids: Sequence[int], answer: Mapping[str, Any]) -> None:
        self.token_ids.extend(token_ids)
        self.num_tokens = int(answer["num_tokens"])
        self.block_hashes += [bytes.fromhex(digits) for digits in answer["new_block_hashes"]]
        if len(self.block_hashes) != answer["num_block_hashes"]:
            raise self.connection.nonsense(
                f"num_block_hashes {answer['num_block_hashes']}"
                f" where {len(self.block_hashes)} hashes were returned so far"
            )


def own(request: Request, connection: Connection) -> RemoteRequest:
    if not isinstance(request, RemoteRequest) or request.connection is not connection:
        raise InvalidArgumentError("request", request, "made by this implementation's make_request")
    return request
