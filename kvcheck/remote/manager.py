"""A manager that lives in a child process: every call is one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvcheck.play.calls import DEFAULTS, Delegating, decoded
from kvcheck.play.elsewhere import ElsewhereManager
from kvcheck.remote.connection import Connection
from kvcheck.remote.request import own
from kvcheck.remote.values import carried
from kvspec._json import Where
from kvspec.audit import unwrapped
from kvspec.blocks import KVCacheBlocks
from kvspec.config import ManagerConfig
from kvspec.errors import FormatError, InvalidArgumentError, UnknownBlockError
from kvspec.interface import KVCacheManager
from kvspec.request import Request
from kvspec.snapshot import Snapshot

ALLOCATE_DEFAULTS: Mapping[str, object] = DEFAULTS["allocate_slots"]

LISTS = ("get_blocks", "get_unhashed_block_ids")
"""Calls that are one message, `get_block_ids`."""

WITH_BLOCKS = ("get_computed_blocks", "find_longest_cache_hit_per_group", *LISTS)


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
        """Make a manager from the reply to `create_manager`."""
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
        lists = answer["blocks"] if name in WITH_BLOCKS else answer
        if name in (*WITH_BLOCKS, "allocate_slots") and lists is not None:
            self._check_lists(lists)
        where, int_hashes = Where("answer", field="result"), self.config.int_event_hashes
        try:
            return decoded(name, answer, where, int_hashes=int_hashes)
        except FormatError as error:
            raise self.connection.nonsense(str(error)) from None

    def _arguments(self, name: str, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by the protocol's names."""
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

    def _check_lists(self, groups: Sequence[object]) -> None:
        if len(groups) != len(self.config.kv_cache.groups):
            raise self.connection.nonsense(f"{len(groups)} lists of blocks, not one per group")

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
