"""An implementation that answers what a record says: the record played back from the other side.

It has no rules of its own, so a replay of the same record must pass, whatever the block types; and
a tape with one altered record must be caught at exactly that record. It also refuses a call that
is not the recorded one, so that the player's translation of arguments is checked as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvcheck.play.calls import Delegating, decoded
from kvcheck.play.text import DEFAULT_ARGUMENTS
from kvspec._json import Where
from kvspec.config import HASH_FUNCTIONS, ManagerConfig
from kvspec.errors import ConfigError, InvalidArgumentError, UnsupportedError
from kvspec.interface import Capabilities, Feature, HitRateWindow, KVCacheManager
from kvspec.planning import Planner
from kvspec.record import Header, Operation
from kvspec.record_file import read_trace
from kvspec.request import Request, RequestInput, RequestStatus
from kvspec.snapshot import RequestState, Snapshot
from kvspec.specs import SPEC_TYPES

WHERE = Where("tape")


@dataclass(frozen=True)
class Tape:
    """A record of a small pool, in memory."""

    header: Header
    operations: tuple[Operation, ...]

    @classmethod
    def read(cls, path: Path) -> Tape:
        lines = list(read_trace(path))
        header = lines[0]
        assert isinstance(header, Header)
        return cls(header, tuple(line for line in lines if isinstance(line, Operation)))

    def altered(self, index: int, change: Callable[[Operation], Operation]) -> Tape:
        """The same tape with one operation changed."""
        operations = list(self.operations)
        operations[index] = change(operations[index])
        return replace(self, operations=tuple(operations))


@dataclass
class TapeRequest:
    request_id: str
    token_ids: list[int]
    num_prompt_tokens: int
    block_hashes: list[bytes]
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    status: RequestStatus = RequestStatus.WAITING

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass
class TapeManager(Delegating):
    """Answers call after call from the tape; `state` follows what the tape says of it."""

    tape: Tape
    config: ManagerConfig
    position: int = 0
    state: dict[str, Any] = field(default_factory=dict)
    dup_order: dict[str, list[int]] = field(default_factory=dict)
    num_free_blocks: int = 0
    usage: float = 0.0

    def __post_init__(self) -> None:
        assert self.tape.header.initial is not None
        self._show(self.tape.header.initial)

    @property
    def none_hash(self) -> bytes:
        return self.tape.header.none_hash

    def _show(self, observed: Any) -> None:
        self.state |= observed.state
        if observed.dup_order is not None:
            self.dup_order = observed.dup_order
        self.num_free_blocks, self.usage = observed.num_free_blocks, observed.usage

    def next(self, name: str, request: Request | None = None, **arguments: Any) -> Any:
        """The recorded result of this call, which must be the one that is due."""
        operation = self.tape.operations[self.position]
        asked = (name, None if request is None else request.request_id)
        assert asked == (operation.name, operation.request_id)
        for argument, value in arguments.items():
            recorded = operation.arguments.get(argument, DEFAULTS.get(argument))
            assert value == recorded, (argument, value, recorded)
        assert set(operation.arguments) <= set(arguments), operation.arguments
        self.position += 1
        self._show(operation.observed)
        if operation.raises == "NotImplementedError":
            raise UnsupportedError("this", "the tape")
        if operation.raises is not None:
            raise InvalidArgumentError("argument", None, "something else")
        return operation.result

    def _made(self, name: str, request: Request | None, given: dict[str, Any]) -> Any:
        if name == "get_unhashed_block_ids":
            # One operation of the record is two calls; `get_blocks` moves the tape on.
            return decoded(name, self.tape.operations[self.position].result, WHERE, int_hashes=True)
        if name == "take_residency_samples":
            return ()
        asked = dict(given)
        if name == "find_longest_cache_hit_per_group":
            asked = {"max_cache_hit_length": given["max_hit_length_tokens"]}
        elif request is not None and name == "get_computed_blocks":
            asked = {"num_preemptions": request.num_preemptions}
        elif request is not None and name == "allocate_slots":
            hit = given["new_computed_blocks"]
            asked |= {
                "num_computed_tokens": request.num_computed_tokens,
                "status": request.status.value,
                "new_computed_blocks": hit and hit.to_lists(),
            }
        elif "block_ids" in given:
            asked = {"block_ids": list(given["block_ids"])}
        op = "get_block_ids" if name == "get_blocks" else name
        answer = self.next(op, request, **asked)
        return decoded(name, answer, WHERE, int_hashes=self.config.int_event_hashes)

    def snapshot(self) -> Snapshot:
        keys = [(bytes.fromhex(key),) if key else () for key in self.state["block_hash"]]
        order: dict[bytes, tuple[int, ...]] = {
            key: (block,) for block, of_block in enumerate(keys) for key in of_block
        }
        order |= {bytes.fromhex(key): tuple(ids) for key, ids in self.dup_order.items()}
        groups = len(self.config.kv_cache.groups)
        blocks, counts = self.state["req_blocks"], self.state["num_cached_block"]
        return Snapshot(
            num_blocks=self.config.kv_cache.num_blocks,
            free_queue=tuple(self.state["free_queue"]),
            ref_counts=tuple(self.state["ref_cnt"]),
            block_keys=tuple(keys),
            lookup_order=order,
            covered_tokens=(0,) * len(keys),  # in no record, so never compared
            none_hash=self.none_hash,
            requests={
                name: RequestState(
                    tuple(tuple(ids) for ids in blocks.get(name, [[]] * groups)),
                    tuple(counts.get(name, [None] * groups)),
                )
                for name in [*blocks, *(name for name in counts if name not in blocks)]
            },
        )


CAPABILITIES = Capabilities(
    "tape", "0", frozenset(SPEC_TYPES), frozenset(HASH_FUNCTIONS), frozenset(Feature)
)


@dataclass
class TapeImplementation:
    """Makes managers that play one tape."""

    tape: Tape
    planner: Planner | None = None
    refuses: bool = False
    capabilities: Capabilities = CAPABILITIES

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        assert check_invariants
        assert config == self.tape.header.config
        if self.tape.header.raises is not None or self.refuses:
            raise ConfigError("config", None, "something else")
        return TapeManager(self.tape, config)

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        assert isinstance(manager, TapeManager)
        tokens = list(request.prompt_token_ids)
        made = TapeRequest(request.request_id, tokens, len(tokens), [])
        lora = request.lora and {"name": request.lora.name, "id": request.lora.id}
        items = [
            {"identifier": item.identifier, "offset": item.offset, "length": item.length}
            for item in request.multimodal
        ]
        found = manager.next(
            "new_request",
            made,
            prompt_token_ids=tokens,
            cache_salt=request.cache_salt,
            lora=lora,
            mm_features=items or None,
            skip_reading_prefix_cache=request.skip_reading_cache,
        )
        made.block_hashes = [bytes.fromhex(block_hash) for block_hash in found["block_hashes"]]
        made.token_ids = tokens[: found["num_tokens"]]
        return made

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        assert isinstance(manager, TapeManager)
        assert isinstance(request, TapeRequest)
        found = manager.next("append_tokens", request, token_ids=list(token_ids))
        request.token_ids += list(token_ids)
        request.block_hashes += [bytes.fromhex(new) for new in found["new_block_hashes"]]

    def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
        raise UnsupportedError("hit rates", "the tape")

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        raise UnsupportedError("clone", "the tape")

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        raise UnsupportedError("restore", "the tape")


DEFAULTS = {**DEFAULT_ARGUMENTS, "skip_reading_prefix_cache": False}
"""What a record leaves out."""
