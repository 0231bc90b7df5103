"""The host tier of kvfast: one table of keys in the order of their use (KV-TIER-*).

A look-up scans the entries after the hit once. For each group it notes the last missing entry, so
that whether a window is whole takes one comparison, for every total on the way.
"""

from __future__ import annotations

import functools
from bisect import insort
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

from kvfast._core.kinds import FULL, Kind, first_visible
from kvfast.configuration import kind_of, reach_of
from kvspec.blocks import KVCacheBlocks
from kvspec.checks.tier import block_list, check_blocks, check_request, plain
from kvspec.config import ManagerConfig
from kvspec.domains import COUNT_MAX, is_int
from kvspec.errors import InvalidArgumentError, UnsupportedError
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

    def first_needed(self, local: int, total: int) -> int:
        """Return the first entry that `total` tokens need from the host."""
        return max(local, first_visible(self.kind, self.reach, total)) // self.size


@dataclass(frozen=True, slots=True)
class _Hold:
    """The keys held for a request: those of entries `first` … of each group, group by group."""

    local: int
    total: int
    keys: tuple[Key, ...]


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
        num_blocks = plain(num_blocks)
        if not is_int(num_blocks) or not 1 <= num_blocks <= COUNT_MAX:
            raise InvalidArgumentError("num_blocks", num_blocks, "an int in 1 … 2^53 - 1")
        if config.dcp_world_size * config.pcp_world_size > 1:
            raise UnsupportedError("a host tier under context parallelism", "kvfast")
        if not config.enable_caching:
            raise UnsupportedError("a host tier without prefix caching", "kvfast")
        hashed = config.hash_block_size_tokens or 1
        self._groups = [
            _group(number, spec, hashed) for number, spec in enumerate(config.managed_specs)
        ]
        self._alignment = config.scheduler_block_size_tokens or 1
        self._num_device_blocks = config.kv_cache.num_blocks
        self._num_blocks = num_blocks
        self._num_last = max(1, config.hash_lookahead_tokens)
        self._turn = turn
        self._holds: dict[str, _Hold] = {}
        self._clear()

    def _clear(self) -> None:
        self._device: dict[int, Key] = {}
        self._host: OrderedDict[Key, int] = OrderedDict()
        self._num_holds: Counter[Key] = Counter()
        self._freed: list[int] = []  # ascending, all below `_fresh`
        self._fresh = 1

    @_in_turn
    def lookup(self, request: Request, num_local_tokens: int) -> int:
        """Return the most external tokens that the host can supply (KV-TIER-4)."""
        num_local_tokens = self._checked_local(request, num_local_tokens)
        if not self._host:
            return 0
        hashes = request.block_hashes
        most = max(request.num_tokens - self._num_last, 0)  # KV-HASH-15
        last = most // self._alignment * self._alignment
        missing = [num_local_tokens // group.size - 1 for group in self._groups]
        best = num_local_tokens
        for total in range(num_local_tokens + self._alignment, last + 1, self._alignment):
            for place, group in enumerate(self._groups):
                for index in range((total - self._alignment) // group.size, total // group.size):
                    number = (index + 1) * group.hashes - 1
                    there = number < len(hashes)
                    if not there or (group.number, bytes(hashes[number])) not in self._host:
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
        num_local_tokens = self._checked_local(request, num_local_tokens)
        if request.request_id in self._holds:
            raise InvalidArgumentError("request", request.request_id, "one that holds nothing")
        num_external_tokens = plain(num_external_tokens)
        keys = self._keys_to_hold(request, num_local_tokens, num_external_tokens)
        for key in reversed(keys):
            self._host.move_to_end(key)
        self._num_holds.update(keys)
        total = num_local_tokens + num_external_tokens
        self._holds[request.request_id] = _Hold(num_local_tokens, total, tuple(keys))

    def _keys_to_hold(self, request: Request, local: int, external: int) -> list[Key]:
        """Return the keys that these tokens need; InvalidArgumentError unless the host has all."""
        keys = list[Key]()
        legal = is_int(external) and 0 < external < request.num_tokens - local
        if legal and (local + external) % self._alignment == 0:
            hashes, total = request.block_hashes, local + external
            for group in self._groups:
                for index in range(group.first_needed(local, total), total // group.size):
                    number = (index + 1) * group.hashes - 1
                    legal = legal and number < len(hashes)
                    if not legal or (group.number, bytes(hashes[number])) not in self._host:
                        legal = False
                        break
                    keys.append((group.number, bytes(hashes[number])))
            if legal:
                return keys
        raise InvalidArgumentError("num_external_tokens", external, "what lookup returned")

    @_in_turn
    def drop(self, request: Request) -> None:
        """Drop the request's hold (KV-TIER-6)."""
        check_request(request)
        hold = self._holds.pop(request.request_id, None)
        if hold is not None:
            self._release(hold)

    def _release(self, hold: _Hold) -> None:
        for key in hold.keys:
            self._num_holds[key] -= 1
            if not self._num_holds[key]:
                del self._num_holds[key]

    @_in_turn
    def taken(self, blocks: Sequence[int]) -> Copies:
        """Return the copies that save the content of taken blocks (KV-TIER-2, KV-TIER-3)."""
        blocks = block_list(blocks, self._num_device_blocks)
        sources = dict[int, int]()  # of each host block, in the order of the result
        for block in blocks:
            key = self._device.pop(block, None)
            if key is None:
                continue
            if key in self._host:
                self._host.move_to_end(key)
            elif place := self._place():
                self._host[key] = place
                sources.pop(place, None)
                sources[place] = block
        return tuple((block, place) for place, block in sources.items())

    def _place(self) -> int:
        """Return a host block for new content; 0 if there is none."""
        if self._freed:
            return self._freed.pop(0)
        if self._fresh < self._num_blocks:
            self._fresh += 1
            return self._fresh - 1
        oldest = next((key for key in self._host if key not in self._num_holds), None)
        return 0 if oldest is None else self._host.pop(oldest)

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
        self._device.update(zip(wanted, hold.keys, strict=True))
        del self._holds[request.request_id]
        self._release(hold)
        return tuple((self._host[key], block) for key, block in zip(hold.keys, wanted, strict=True))

    @_in_turn
    def computed(self, request: Request, group: int, first: int, blocks: Sequence[int]) -> None:
        """Note the content of newly computed blocks (KV-TIER-1)."""
        check_request(request)
        group, first = plain(group), plain(first)
        if not is_int(group) or not 0 <= group < len(self._groups):
            raise InvalidArgumentError("group", group, "the number of a group")
        if not is_int(first) or not 0 <= first <= COUNT_MAX:
            raise InvalidArgumentError("first", first, "an int in 0 … 2^53 - 1")
        blocks = block_list(blocks, self._num_device_blocks)
        step, hashes = self._groups[group].hashes, request.block_hashes
        if blocks and (first + len(blocks)) * step > len(hashes):
            raise InvalidArgumentError("blocks", len(blocks), "entries of which there are hashes")
        for number, block in enumerate(blocks, start=first + 1):
            if block:
                self._device[block] = (group, bytes(hashes[number * step - 1]))

    @_in_turn
    def forget(self, blocks: Sequence[int]) -> None:
        """Drop the content of these blocks, here and on the device (KV-TIER-7)."""
        blocks = block_list(blocks, self._num_device_blocks)
        keys = {self._device[block] for block in blocks if block in self._device}
        if not self._num_holds.keys().isdisjoint(keys):
            raise InvalidArgumentError("blocks", list(blocks), "blocks whose copies are not held")
        for block in blocks:
            self._device.pop(block, None)
        for key in keys & self._host.keys():
            insort(self._freed, self._host.pop(key))

    @_in_turn
    def reset(self) -> None:
        """Drop everything (KV-TIER-7)."""
        if self._holds:
            raise InvalidArgumentError("held", list(self._holds), "empty: load or drop them first")
        self._clear()

    @_in_turn
    def snapshot(self) -> TierSnapshot:
        free = (*self._freed, *range(self._fresh, self._num_blocks))
        held = {name: hold.keys for name, hold in self._holds.items()}
        return TierSnapshot(dict(self._device), tuple(self._host.items()), free, held)

    def _checked_local(self, request: Request, local: int) -> int:
        check_request(request)
        local = plain(local)
        if not is_int(local) or not 0 <= local <= request.num_tokens or local % self._alignment:
            allowed = f"a multiple of {self._alignment} in the text"
            raise InvalidArgumentError("num_local_tokens", local, allowed)
        return local


def _group(number: int, spec: LayerSpec, hashed: int) -> _Group:
    is_offered = spec.reads_whole_prefix or (spec.window_tokens and spec.prefix_cacheable)
    if not is_offered or spec.extra_retained_tokens:
        raise UnsupportedError(f"a host tier for {spec.kind} groups", "kvfast")
    size = spec.block_size
    return _Group(number, size, size // hashed, kind_of(spec), reach_of(spec))
