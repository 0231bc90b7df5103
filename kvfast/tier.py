"""The host tier of kvfast: between two steps it drives `FastOffload` (KV-TIER-1 … KV-TIER-8).

A chunk is one block, and place n is host block n + 1. A hold is a load that is prepared; a copy out
is stored and completed in one call of its own. The chunks belong to one request, the tier's own.

A look-up scans the entries after the hit once. For each group it notes the last missing entry, so
that whether a window is whole takes one comparison, for every total on the way.
"""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from kvfast._core.kinds import FULL, Kind, first_visible
from kvfast.configuration import kind_of, reach_of
from kvfast.eviction import Chunk
from kvfast.offload import FastOffload
from kvspec.blocks import KVCacheBlocks
from kvspec.checks.tier import (
    block_list,
    check_blocks,
    check_request,
    host_chunks,
    listed_entries,
    local_tokens,
    plain,
)
from kvspec.config import ManagerConfig
from kvspec.domains import is_int
from kvspec.errors import InvalidArgumentError
from kvspec.request import Request
from kvspec.specs import LayerSpec
from kvspec.tier import Copies, Key, TierSnapshot

if TYPE_CHECKING:
    from kvfast._core.turn import Turn


@dataclass(frozen=True, slots=True)
class _Group:
    """A group as the tier sees it: tokens and hashes per block, its kind, its window."""

    number: int
    size: int
    hashes: int
    kind: Kind
    reach: int
    suffix: bytes  # of the keys of its chunks

    def first_needed(self, local: int, total: int) -> int:
        """Return the first entry that `total` tokens need from the host."""
        return max(local, first_visible(self.kind, self.reach, total)) // self.size

    def chunk(self, hashes: Sequence[bytes], index: int) -> bytes:
        """Return the key of an entry's chunk; empty if it has no hash (KV-HASH-6)."""
        number = (index + 1) * self.hashes - 1
        return b"".join((hashes[number], self.suffix)) if number < len(hashes) else b""


@dataclass(frozen=True, slots=True)
class _Hold:
    """The chunks held for a request, group by group, and the host blocks where they are."""

    local: int
    total: int
    chunks: tuple[bytes, ...]
    places: tuple[int, ...]


class Book(FastOffload):
    """The chunks on the host, with a short way to store what is taken."""

    def put(self, keys: Iterable[bytes]) -> list[tuple[int, int]]:
        """Store and complete each by itself, and report nothing: in LRU, with no tier below.

        Return the number of each key that was not here, and the place that it was given.
        """
        stored = []
        for number, key in enumerate(keys):
            chunk = self.chunks.get(key)
            if chunk is None:
                gone = [] if self._free else self._ranks.first(1, ())
                if not self._free and not gone:
                    continue
                for each in gone:
                    del self.chunks[each.key]
                    self._ranks.leaves(each, is_evicted=True)
                place = gone[0].place if gone else heapq.heappop(self._free)
                chunk = self.chunks[key] = Chunk(key, place, None, "", 0)
                stored.append((number, place))
            self._ranks.use(chunk, 0)
            self.chunks.move_to_end(key)
        return stored


_P = ParamSpec("_P")
_T = TypeVar("_T")


def _in_turn(
    call: Callable[Concatenate[FastTier, _P], _T],
) -> Callable[Concatenate[FastTier, _P], _T]:
    """Wrap a call so that it takes the turn of the tier's manager (KV-ERR-7)."""

    @functools.wraps(call)
    def guarded(self: FastTier, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        self._turn.take()
        try:
            return call(self, *args, **kwargs)
        finally:
            self._turn.give_back()

    return cast("Callable[Concatenate[FastTier, _P], _T]", guarded)


class FastTier:
    """See `kvspec.tier.Tier`; made by `make_tier`."""

    def __init__(self, config: ManagerConfig, num_blocks: int, turn: Turn) -> None:
        self._config, self._chunks = config, host_chunks(config, num_blocks, "kvfast")
        hashed = config.hash_block_size_tokens or 1
        self._groups = [
            _group(number, spec, hashed) for number, spec in enumerate(config.managed_specs)
        ]
        self._alignment = config.scheduler_block_size_tokens or 1
        self._num_device_blocks = config.kv_cache.num_blocks
        self._num_last = max(1, config.hash_lookahead_tokens)
        self._turn = turn
        self._holds: dict[str, _Hold] = {}
        self._clear()

    def _clear(self) -> None:
        self._device: dict[int, bytes] = {}
        self._host = Book(self._chunks)
        self._host.new_request("")

    @_in_turn
    def lookup(self, request: Request, num_local_tokens: int) -> int:
        """Return the most external tokens that the host can supply (KV-TIER-4)."""
        num_local_tokens = local_tokens(request, num_local_tokens, self._config)
        hashes = request.block_hashes
        most = max(request.num_tokens - self._num_last, 0)  # KV-HASH-15
        last = most // self._alignment * self._alignment
        missing = [num_local_tokens // group.size - 1 for group in self._groups]
        best = num_local_tokens
        for total in range(num_local_tokens + self._alignment, last + 1, self._alignment):
            for place, group in enumerate(self._groups):
                for index in range((total - self._alignment) // group.size, total // group.size):
                    if not self._has(group.chunk(hashes, index)):
                        missing[place] = index
            whole = True
            for place, group in enumerate(self._groups):
                if missing[place] >= group.first_needed(num_local_tokens, total):
                    whole = False
                    if group.kind == FULL:  # what is missing here stays missing
                        return best - num_local_tokens
            if whole:
                best = total
        return best - num_local_tokens

    @_in_turn
    def hold(self, request: Request, num_local_tokens: int, num_external_tokens: int) -> None:
        """Hold the keys that these tokens need (KV-TIER-5)."""
        num_local_tokens = local_tokens(request, num_local_tokens, self._config)
        if request.request_id in self._holds:
            raise InvalidArgumentError("request", request.request_id, "one that holds nothing")
        num_external_tokens = plain(num_external_tokens)
        chunks = self._chunks_to_hold(request, num_local_tokens, num_external_tokens)
        places = self._host.prepare_load(chunks, "")
        total = num_local_tokens + num_external_tokens
        self._holds[request.request_id] = _Hold(num_local_tokens, total, tuple(chunks), places)

    def _has(self, chunk: bytes) -> bool:
        return chunk in self._host.chunks

    def _chunks_to_hold(self, request: Request, local: int, external: int) -> list[bytes]:
        """Return the keys that these tokens need; InvalidArgumentError unless the host has all."""
        chunks = list[bytes]()
        legal = is_int(external) and 0 < external < request.num_tokens - local
        if legal and (local + external) % self._alignment == 0:
            hashes, total = request.block_hashes, local + external
            for group in self._groups:
                for index in range(group.first_needed(local, total), total // group.size):
                    chunks.append(group.chunk(hashes, index))
                    if not legal or not self._has(chunks[-1]):
                        legal = False
                        break
            if legal:
                return chunks
        raise InvalidArgumentError("num_external_tokens", external, "what lookup returned")

    @_in_turn
    def drop(self, request: Request) -> None:
        """Drop the request's hold (KV-TIER-6)."""
        check_request(request)
        hold = self._holds.pop(request.request_id, None)
        if hold is not None:
            self._host.complete_load(hold.chunks, "")

    @_in_turn
    def taken(self, blocks: Sequence[int]) -> Copies:
        """Return the copies that save the content of taken blocks (KV-TIER-2, KV-TIER-3)."""
        blocks = block_list(blocks, self._num_device_blocks)
        known = [block for block in dict.fromkeys(blocks) if block in self._device]
        chunks = [self._device.pop(block) for block in known]
        sources = dict[int, int]()  # of each host block, in the order of the result
        for number, place in self._host.put(chunks):
            sources.pop(place, None)
            sources[place] = known[number]
        return tuple((block, place + 1) for place, block in sources.items())

    @_in_turn
    def load(self, request: Request, blocks: KVCacheBlocks) -> Copies:
        """Return the copies that load the held keys, and end the hold (KV-TIER-6)."""
        check_request(request)
        check_blocks(blocks)
        hold = self._holds.get(request.request_id)
        if hold is None:
            raise InvalidArgumentError("request", request.request_id, "one that holds something")
        wanted = list[int]()
        for group in self._groups:
            ids = blocks.groups[group.number] if group.number < len(blocks.groups) else ()
            first, end = group.first_needed(hold.local, hold.total), hold.total // group.size
            mine = [plain(block) for block in islice(iter(ids), first, end)]
            if len(mine) < end - first or 0 in mine:
                field = f"groups[{group.number}]"
                raise InvalidArgumentError("blocks", field, f"a list with blocks {first} … {end}")
            wanted += mine
        wanted = block_list(wanted, self._num_device_blocks)
        self._device.update(zip(wanted, hold.chunks, strict=True))
        del self._holds[request.request_id]
        self._host.complete_load(hold.chunks, "")
        return tuple((place + 1, block) for place, block in zip(hold.places, wanted, strict=True))

    @_in_turn
    def computed(self, request: Request, group: int, first: int, blocks: Sequence[int]) -> None:
        """Note the content of newly computed blocks (KV-TIER-1)."""
        check_request(request)
        group, first, blocks = listed_entries(group, first, blocks, self._config)
        made, hashes = self._groups[group], request.block_hashes
        if blocks and not made.chunk(hashes, first + len(blocks) - 1):
            raise InvalidArgumentError("blocks", len(blocks), "entries of which there are hashes")
        for index, block in enumerate(blocks, start=first):
            if block:
                self._device[block] = made.chunk(hashes, index)

    @_in_turn
    def forget(self, blocks: Sequence[int]) -> None:
        """Drop the content of these blocks, here and on the device (KV-TIER-7)."""
        blocks = block_list(blocks, self._num_device_blocks)
        chunks = {self._device[block] for block in blocks if block in self._device}
        if any(not chunks.isdisjoint(hold.chunks) for hold in self._holds.values()):
            raise InvalidArgumentError("blocks", list(blocks), "blocks whose copies are not held")
        for block in blocks:
            self._device.pop(block, None)
        self._host.forget(list(chunks))

    @_in_turn
    def reset(self) -> None:
        """Drop everything (KV-TIER-7)."""
        if self._holds:
            raise InvalidArgumentError("held", list(self._holds), "empty: load or drop them first")
        self._clear()

    @_in_turn
    def snapshot(self) -> TierSnapshot:
        device = {block: _key(chunk) for block, chunk in self._device.items()}
        host = tuple((_key(each.key), each.place + 1) for each in self._host.chunks.values())
        free = set(range(1, self._chunks.num_chunks + 1)) - {place for _, place in host}
        held = {name: tuple(map(_key, hold.chunks)) for name, hold in self._holds.items()}
        return TierSnapshot(device, host, tuple(sorted(free)), held)


def _group(number: int, spec: LayerSpec, hashed: int) -> _Group:
    size = spec.block_size
    suffix = number.to_bytes(4, "big")
    return _Group(number, size, size // hashed, kind_of(spec), reach_of(spec), suffix)


def _key(chunk: bytes) -> Key:
    return int.from_bytes(chunk[-4:], "big"), chunk[:-4]
