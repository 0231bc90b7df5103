"""A manager just large enough for the driver, written apart from any implementation.

One full-attention group, unhashed freed blocks to the front, least recently used evicted first.
It shows that the driver needs nothing else, and its flaws can be switched on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.events import BlockRemoved
from kvspec.interface import Capabilities, Implementation
from kvspec.request import RequestInput, RequestStatus
from kvspec.specs import FullAttentionSpec


class ToyRequest:
    """Tokens and, per full block, the whole prefix as its key."""

    def __init__(self, request_id: str, tokens: list[int], block_size: int) -> None:
        self.request_id = request_id
        self.tokens = tokens
        self.block_size = block_size
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.keys: list[int] = []
        self.extend_keys()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    def extend_keys(self) -> None:
        while (len(self.keys) + 1) * self.block_size <= len(self.tokens):
            start = len(self.keys) * self.block_size
            parent = self.keys[-1] if self.keys else 0
            self.keys.append(hash((parent, tuple(self.tokens[start : start + self.block_size]))))


class ToyManager:
    """Free queue, cache map and block lists as plain lists and dictionaries."""

    def __init__(self, config: ManagerConfig) -> None:
        self.config = config
        self.size = config.kv_cache.groups[0].spec.block_size
        self.num_blocks = config.kv_cache.num_blocks
        self.free_queue = list(range(1, self.num_blocks))
        self.refs = [0] * self.num_blocks
        self.key_of: dict[int, int] = {}
        self.cached: dict[int, list[int]] = {}
        self.held: dict[str, list[int]] = {}
        self.events: list[BlockRemoved] = []
        self.steps = 0
        self.lookups: list[tuple[str, int]] = []
        self.allocations: list[tuple[str, int, bool]] = []
        self.refuse_all = False
        self.overlong_hit = False

    def new_step_starts(self) -> None:
        self.steps += 1

    @property
    def usage(self) -> float:
        return 1.0 - len(self.free_queue) / (self.num_blocks - 1)

    def get_computed_blocks(self, request: ToyRequest) -> PrefixHit:
        blocks = []
        for key in request.keys[: (request.num_tokens - 1) // self.size]:
            if key not in self.cached:
                break
            blocks.append(self.cached[key][0])
        self.lookups.append((request.request_id, len(blocks) * self.size))
        length = request.num_tokens if self.overlong_hit else len(blocks) * self.size
        return PrefixHit(KVCacheBlocks((blocks,)), length)

    def allocate_slots(
        self,
        request: ToyRequest,
        num_new_tokens: int,
        *,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        has_scheduled_reqs: bool = True,
    ) -> KVCacheBlocks | None:
        hits = list(new_computed_blocks.groups[0]) if new_computed_blocks else []
        mine = self.held.get(request.request_id, [])
        end = request.num_computed_tokens + num_new_computed_tokens + num_new_tokens
        missing = -(-end // self.size) - len(mine) - len(hits)
        revived = sum(self.refs[block] == 0 for block in hits)
        self.allocations.append((request.request_id, num_new_tokens, has_scheduled_reqs))
        if self.refuse_all or missing + revived > len(self.free_queue):
            return None
        for block in hits:
            if self.refs[block] == 0:
                self.free_queue.remove(block)
            self.refs[block] += 1
        new = [self._take() for _ in range(missing)]
        mine = self.held.setdefault(request.request_id, mine)
        mine.extend([*hits, *new])
        for index in range(end // self.size):
            self._register(mine[index], request.keys[index])
        return KVCacheBlocks((new,))

    def _take(self) -> int:
        block = self.free_queue.pop(0)
        self.refs[block] = 1
        key = self.key_of.pop(block, None)
        if key is not None:
            self.cached[key].remove(block)
            if not self.cached[key]:
                del self.cached[key]
            self.events.append(BlockRemoved((b"",), "GPU", 0))
        return block

    def _register(self, block: int, key: int) -> None:
        if block not in self.key_of:
            self.key_of[block] = key
            self.cached.setdefault(key, []).append(block)

    def free(self, request: ToyRequest) -> None:
        freed = self.held.pop(request.request_id)[::-1]
        for block in freed:
            self.refs[block] -= 1
        idle = [block for block in freed if self.refs[block] == 0]
        unhashed = [block for block in idle if block not in self.key_of]
        hashed = [block for block in idle if block in self.key_of]
        self.free_queue = [*unhashed, *self.free_queue, *hashed]

    def take_events(self) -> tuple[BlockRemoved, ...]:
        events, self.events = self.events, []
        return tuple(events)


class ToyImplementation:
    """Makes toy managers and keeps the last one for a test to look at."""

    def __init__(self, *, refuse_all: bool = False, overlong_hit: bool = False) -> None:
        self.refuse_all = refuse_all
        self.overlong_hit = overlong_hit
        self.manager: ToyManager | None = None
        self.capabilities = Capabilities(
            "toy", "0", frozenset({FullAttentionSpec}), frozenset(), frozenset()
        )

    def create(self, config: ManagerConfig, **_options: Any) -> ToyManager:
        self.manager = ToyManager(config)
        self.manager.refuse_all = self.refuse_all
        self.manager.overlong_hit = self.overlong_hit
        return self.manager

    def make_request(self, manager: ToyManager, request: RequestInput) -> ToyRequest:
        return ToyRequest(request.request_id, list(request.prompt_token_ids), manager.size)

    def append_tokens(
        self, _manager: ToyManager, request: ToyRequest, token_ids: Sequence[int]
    ) -> None:
        request.tokens.extend(token_ids)
        request.extend_keys()


def as_implementation(toy: ToyImplementation) -> Implementation:
    """The toy where the full protocol is asked for; the driver uses only what it has."""
    return cast(Implementation, toy)


def refuser() -> Any:
    """A factory for the command line: an implementation that never gives a slot."""
    return _Complete(refuse_all=True)


class _Complete(ToyImplementation):
    """Has every member of the protocol, as the command demands; the driver needs only the toy's."""

    planner = None

    def make_hit_rate_window(self, max_requests: int = 1000) -> None:
        raise NotImplementedError

    def clone(self, manager: ToyManager) -> None:
        raise NotImplementedError

    def restore(self, config: ManagerConfig, snapshot: object) -> None:
        raise NotImplementedError
