"""All calls of a manager by name, in one table for players, servers, monitors and recorders.

Records and the protocol write a call as plain values (spec/records.md, `kvspec.operations`). `make`
makes a call of them, `plain` converts its result. A proxy of a manager is a `Delegating`, which
receives all calls in one method.
"""

# The type of a result follows from the call's name, which a type checker cannot know:
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial, wraps
from inspect import signature
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kvspec.blocks import KVCacheBlocks
from kvspec.errors import UnsupportedError
from kvspec.inside import CopyingManager
from kvspec.interface import KVCacheManager
from kvspec.operations import OPERATIONS
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, Request, RequestInput
from kvspec.snapshot_codec import hexes, ints

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    name: MappingProxyType(dict(getattr(KVCacheManager, name).__kwdefaults__))
    for name in ("allocate_slots", "get_num_blocks_to_allocate")
}
"""The default of each optional argument, by call."""

POSITIONAL: Mapping[str, tuple[str, ...]] = {
    "find_longest_cache_hit_per_group": ("max_cache_hit_length",),
    "allocate_slots": ("num_new_tokens",),
    "free_blocks": ("block_ids",),
    "remove_skipped_blocks": ("total_computed_tokens",),
    "cache_blocks": ("num_computed_tokens",),
    "cache_partial_block": ("group", "num_tokens"),
    "withdraw": ("num_computed_tokens",),
    "record_prefix_cache_stats": ("num_hits",),
    "evict_blocks": ("block_ids",),
}
"""Arguments that implementations may give another name."""


def input_of(
    name: str, arguments: Mapping[str, Any], embeddings: PromptEmbeddings | None = None
) -> RequestInput:
    """Return the content of a request of this name: the arguments of `new_request`."""
    lora = arguments.get("lora")
    return RequestInput(
        request_id=name,
        prompt_token_ids=tuple(arguments["prompt_token_ids"]),
        cache_salt=arguments.get("cache_salt"),
        lora=None if lora is None else LoRA(**lora),
        multimodal=tuple(MultimodalItem(**item) for item in arguments.get("mm_features") or ()),
        prompt_embeddings=embeddings,
        skip_reading_cache=arguments.get("skip_reading_prefix_cache", False),
        reports_hits=arguments.get("reports_hits", False),
        priority=arguments.get("priority", 0),
    )


def content_of(given: RequestInput) -> dict[str, Any]:
    """Return the arguments of `new_request` besides tokens and embeddings, those that are set."""
    lora = given.lora
    path = {} if lora is None or lora.path is None else {"path": lora.path}
    content: dict[str, Any] = {
        "cache_salt": given.cache_salt,
        "lora": None if lora is None else {"name": lora.name, "id": lora.id, **path},
        "mm_features": [asdict(item) for item in given.multimodal] or None,
        "skip_reading_prefix_cache": given.skip_reading_cache or None,
        "reports_hits": given.reports_hits or None,
        "priority": given.priority or None,
    }
    return {name: value for name, value in content.items() if value is not None}


def make(
    manager: KVCacheManager, name: str, request: Request | None, arguments: Mapping[str, Any]
) -> Any:
    """Make the call with plain arguments, those that are the manager's; return its raw result."""
    given = {argument: sequence(value) for argument, value in arguments.items()}
    hit = given.get("new_computed_blocks")
    if isinstance(hit, tuple):
        given["new_computed_blocks"] = KVCacheBlocks(tuple(map(sequence, hit)))
    first = [given.pop(argument) for argument in POSITIONAL.get(name, ())]
    about = [request] if OPERATIONS[name].on_request else []
    return getattr(manager, name)(*about, *first, **given)


def made_answer(request: Request) -> dict[str, Any]:
    """Return the result of `new_request` in plain values."""
    return {"num_tokens": index(request.num_tokens), "block_hashes": hexes(request.block_hashes)}


def grown_answer(request: Request, num_hashes: int) -> dict[str, Any]:
    """Return the result of `append_tokens`, before which there were so many hashes."""
    hashes = request.block_hashes
    return {
        "num_tokens": index(request.num_tokens),
        "num_block_hashes": len(hashes),
        "new_block_hashes": hexes(hashes[num_hashes:]),
    }


def lists_of(manager: KVCacheManager, request: Request, *, has_unhashed: bool) -> dict[str, Any]:
    """Return the result of `get_block_ids`; the unhashed lists are empty where there are none."""
    asked = manager.get_unhashed_block_ids(request) if has_unhashed else None
    blocks = manager.get_blocks(request).to_lists()
    unhashed = [[] for _ in blocks] if asked is None else [ints(ids) for ids in asked]
    return {"blocks": blocks, "unhashed": unhashed}


def sequence(value: Any) -> Any:
    """Return a list as a tuple; anything else is left for the implementation to refuse."""
    return tuple(value) if isinstance(value, list) else value


def plain(name: str, answer: Any) -> Any:
    """Encode a result in plain values; None for a call without one, whatever it returned."""
    return OPERATIONS[name].answer.write(answer)


class Proxy:
    """A manager whose calls, all of them, go to `_made`."""

    def _made(self, name: str, request: Request | None, given: dict[str, Any]) -> Any:
        """Make the call `name`. `given`: its arguments by the interface's names, with defaults."""
        raise NotImplementedError


def asking(
    declared: Callable[..., Any], ask: Callable[[Any, dict[str, Any]], Any]
) -> Callable[..., Any]:
    """Return a method declared like `declared` that passes its arguments, by name, to `ask`."""
    takes = signature(declared)

    @wraps(declared)
    def call(self: Any, *given: Any, **named: Any) -> Any:
        bound = takes.bind(self, *given, **named)
        bound.apply_defaults()
        _, *arguments = bound.arguments.items()
        return ask(self, dict(arguments))

    return call


def give_calls(proxy: type, declared: type, names: Iterable[str]) -> None:
    """Give a class the calls declared there; each is passed to its `_call`, by name."""
    for name in names:
        ask = partial(lambda name, self, given: self._call(name, given), name)
        setattr(proxy, name, asking(getattr(declared, name), ask))


def _passed_on(name: str) -> Callable[..., Any]:
    """Return the method of `Delegating` for one call of the interface."""

    def pass_on(proxy: Proxy, arguments: dict[str, Any]) -> Any:
        if name in NOWHERE:
            raise UnsupportedError(name, type(proxy).__name__)
        return proxy._made(name, arguments.pop("request", None), arguments)

    return asking(getattr(CopyingManager, name), pass_on)


NOWHERE = frozenset({"hold_blocks", "get_block"})
"""Calls that neither records nor messages have."""

CALLS = tuple(
    name
    for name in dir(CopyingManager)
    if not name.startswith("_") and callable(getattr(CopyingManager, name)) and name != "snapshot"
)
"""Every call of a manager, but for its snapshot."""

if TYPE_CHECKING:

    class Delegating(Proxy, CopyingManager):
        """The calls of a `KVCacheManager`; a subclass has `_made`, properties and the snapshot."""
else:
    Delegating = type("Delegating", (Proxy,), {name: _passed_on(name) for name in CALLS})
