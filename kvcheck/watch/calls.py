"""One call as the monitor saw it, and how records write it down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import index
from typing import Any

from kvcheck.play.calls import DEFAULTS, plain
from kvcheck.play.compare import BUILTIN_ERRORS
from kvspec.errors import UnsupportedError
from kvspec.interface import KVCacheManager
from kvspec.operations import OPERATIONS
from kvspec.request import Request
from kvspec.snapshot_codec import ints

TOLD = ("junction_tokens", "num_in_flight_tokens")
"""Members of a request that records leave out where they are 0."""


@dataclass(slots=True)
class Call:
    """A call of the manager. `arguments` are those of the interface, by name, with defaults.

    The scheduler's attributes are as they were at the call: a request changes later. `result` and
    `error` are its outcome; `num_free_blocks` and `usage` are those afterwards. `about`: what was
    given in place of a request.
    """

    name: str
    request: Request | None
    arguments: Mapping[str, Any]
    num_tokens: int = 0
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    status: str = ""
    junction_tokens: int = 0
    num_in_flight_tokens: int = 0
    result: Any = None
    error: Exception | None = None
    num_free_blocks: int = 0
    usage: float = 0.0
    is_about_no_request: bool = False
    about: object = None

    @classmethod
    def of(cls, name: str, request: Request | None, arguments: Mapping[str, Any]) -> Call:
        if request is None:
            return cls(name, None, arguments)
        try:
            owned = (request.num_computed_tokens, request.num_preemptions, str(request.status))
            told: dict[str, Any] = {each: getattr(request, each, 0) for each in TOLD}
            return cls(name, request, arguments, request.num_tokens, *owned, **told)
        except AttributeError:  # no request; the manager will say so
            return cls(name, None, arguments, is_about_no_request=True, about=request)

    def make(self, make: Callable[[], Any]) -> None:
        """Make the call, and keep what it returned or raised."""
        try:
            self.result = make()
        except Exception as error:  # of any kind: it must have changed nothing
            self.error = error

    def look(self, manager: KVCacheManager) -> None:
        """Keep the manager's figures after the call."""
        self.num_free_blocks, self.usage = manager.num_free_blocks, manager.usage

    def told(self) -> Any:
        """Return what the call returned, or raise what it raised."""
        if self.error is not None:
            raise self.error
        return self.result

    @property
    def is_refused(self) -> bool:
        """Whether the result reports lack of room, or something still in use."""
        if self.error is not None:
            return False
        return self.result is False or (self.name == "allocate_slots" and self.result is None)

    @property
    def outcome(self) -> str:
        if self.error is not None:
            return "error"
        return "refused" if self.is_refused else "done"

    def describe(self) -> str:
        """Return a name for messages: `allocate_slots of r1`."""
        return self.name if self.request is None else f"{self.name} of {self.request.request_id}"


@dataclass(slots=True)
class Noted:
    """A call in the form of records. `raises` and `message`: the error it ended with."""

    name: str
    request: Request | None
    num_tokens: int
    arguments: dict[str, Any]
    result: Any
    raises: str | None
    message: str | None
    num_free_blocks: int
    usage: float

    @property
    def size_bytes(self) -> int:
        return 1500 + 8 * (_num_values(self.arguments) + _num_values(self.result))


def note(call: Call) -> Noted | None:
    """Return the call as a record shows it; None if records lack it and it changes nothing."""
    if call.name not in ARGUMENTS or call.is_about_no_request:
        return None
    name = "get_block_ids" if call.name in LISTS else call.name
    raises = None
    if call.error is not None:
        raises = next((n for n, cls in BUILTIN_ERRORS.items() if isinstance(call.error, cls)), None)
        if raises is None:
            return None
    result = None
    if raises is None:  # that of `LISTS` already has its recorded form: see `with_lists`
        result = call.result if call.name in LISTS else plain(call.name, call.result)
    return Noted(
        name=name,
        request=call.request,
        num_tokens=call.num_tokens,
        arguments=ARGUMENTS[call.name](call),
        result=result,
        raises=raises,
        message=None if raises is None else str(call.error),
        num_free_blocks=index(call.num_free_blocks),
        usage=float(call.usage),
    )


def with_lists(call: Call, manager: KVCacheManager) -> Call:
    """Return a query for the lists of a request as in records, with both results in one."""
    if call.name not in LISTS or call.request is None or call.error is not None:
        return call
    blocks = manager.get_blocks(call.request).to_lists()
    unhashed: list[list[int]] = [[] for _ in blocks]
    with suppress(UnsupportedError):  # without Feature.UNHASHED_BLOCKS, empty lists are recorded
        unhashed = [ints(ids) for ids in manager.get_unhashed_block_ids(call.request)]
    return replace(call, result={"blocks": blocks, "unhashed": unhashed})


def _allocate(call: Call) -> dict[str, Any]:
    given = call.arguments
    asked: dict[str, Any] = {
        "num_computed_tokens": call.num_computed_tokens,
        "status": call.status,
        "num_new_tokens": given["num_new_tokens"],
        **_told(call, *TOLD),
    }
    for name, default in DEFAULTS[call.name].items():
        if name != "new_computed_blocks" and given[name] != default:
            asked[name] = given[name]
    hit = given["new_computed_blocks"]
    if hit is not None:
        asked["new_computed_blocks"] = hit.to_lists()
    return asked


def _told(call: Call, *names: str) -> dict[str, Any]:
    return {name: getattr(call, name) for name in names if getattr(call, name)}


def _need(call: Call) -> dict[str, Any]:
    defaults = DEFAULTS[call.name]
    given = call.arguments
    return {name: value for name, value in given.items() if defaults.get(name, ...) != value}


def _ids(call: Call) -> dict[str, Any]:
    return {"block_ids": ints(call.arguments["block_ids"])}


LISTS = frozenset({"get_blocks", "get_unhashed_block_ids"})
"""Questions that records ask as one, `get_block_ids`."""

ARGUMENTS: Mapping[str, Callable[[Call], dict[str, Any]]] = {
    **dict.fromkeys((*OPERATIONS, *LISTS), lambda call: dict(call.arguments)),
    "get_computed_blocks": lambda call: (
        {"num_preemptions": call.num_preemptions} if call.num_preemptions else {}
    ),
    "find_longest_cache_hit_per_group": lambda call: {
        "max_cache_hit_length": call.arguments["max_hit_length_tokens"]
    },
    "allocate_slots": _allocate,
    "cache_blocks": lambda call: {**call.arguments, **_told(call, "junction_tokens")},
    "free_blocks": _ids,
    "evict_blocks": _ids,
    "get_num_blocks_to_allocate": _need,
    "record_prefix_cache_stats": lambda call: {
        "num_hits": call.arguments["num_hit_tokens"],
        **({"num_preemptions": call.num_preemptions} if call.num_preemptions else {}),
    },
}
"""The arguments of each call that records know. Residency samples are not part of them."""


def _num_values(value: object) -> int:
    if type(value) is dict:
        return sum(map(_num_values, value.values()))
    if type(value) is list:
        is_flat = not value or type(value[0]) is int
        return len(value) if is_flat else sum(map(_num_values, value))
    return 1
