"""A manager as a small engine has it: one full-attention group, prefix caching, and no more.

It follows no policy of the rules: least recently used blocks go first, identities are tuples of
tokens, and nothing of its state is shown but block lists and the number of free blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.errors import InvalidArgumentError, StaleHitError, UnknownBlockError, UnsupportedError
from kvspec.events import Event
from kvspec.interface import Capabilities, Feature, Implementation, KVCacheManager
from kvspec.request import Request, RequestInput, RequestStatus
from kvspec.specs import FullAttentionSpec


class MinimalRequest:
    """Tokens and what the scheduler says of them."""

    def __init__(self, request: RequestInput) -> None:
        self.request_id = request.request_id
        self.tokens = list(request.prompt_token_ids)
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.block_hashes: tuple[bytes, ...] = ()

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


class MinimalManager:
    """Blocks with reference counts; a dict from prefix to block."""

    none_hash = b""

    def __init__(self, config: ManagerConfig) -> None:
        self.config = config
        self.size = config.kv_cache.groups[0].spec.block_size
        self.free_ids = list(range(config.kv_cache.num_blocks - 1, 0, -1))
        self.references = dict.fromkeys(self.free_ids, 0)
        self.lists: dict[str, list[int]] = {}
        self.block_of: dict[tuple[int, ...], int] = {}
        self.prefix_of: dict[int, tuple[int, ...]] = {}

    @property
    def num_free_blocks(self) -> int:
        return len(self.free_ids)

    @property
    def usage(self) -> float:
        return 1.0 - len(self.free_ids) / max(len(self.references), 1)

    def prefixes(self, request: MinimalRequest) -> Iterator[tuple[int, ...]]:
        """The tokens up to the end of each full block."""
        for end in range(self.size, request.num_tokens + 1, self.size):
            yield tuple(request.tokens[:end])

    def get_computed_blocks(self, request: MinimalRequest) -> PrefixHit:
        found = []
        if self.config.enable_caching:
            for prefix in self.prefixes(request):
                if prefix not in self.block_of or len(prefix) > self.longest_hit(request):
                    break
                found.append(self.block_of[prefix])
        return PrefixHit(KVCacheBlocks((found,)), len(found) * self.size)

    def longest_hit(self, request: MinimalRequest) -> int:
        """The last token is computed, to have something to sample from."""
        return request.num_tokens - 1

    def allocate_slots(
        self, request: MinimalRequest, num_new_tokens: int, **options: Any
    ) -> KVCacheBlocks | None:
        hits = self.checked_hits(request, options)
        if num_new_tokens < 1:
            raise InvalidArgumentError("num_new_tokens", num_new_tokens, "at least 1")
        total = request.num_computed_tokens + len(hits) * self.size + num_new_tokens
        held = self.lists.get(request.request_id, [])
        missing = max(-(-total // self.size) - len(held) - len(hits), 0)
        revived = [block for block in hits if not self.references[block]]
        if missing + len(revived) > len(self.free_ids):
            return None
        self.free_ids = [block for block in self.free_ids if block not in revived]
        new = [self.take() for _ in range(missing)]
        for block in hits + new:
            self.references[block] += 1
        blocks = self.lists.setdefault(request.request_id, [])
        blocks += hits + new
        self.register(request, min(total, request.num_tokens))
        return KVCacheBlocks((new,))

    def checked_hits(self, request: MinimalRequest, options: dict[str, Any]) -> list[int]:
        """The blocks of the hit, refused unless they are what a look-up answers now."""
        given = options.get("new_computed_blocks")
        hits = [] if given is None else list(given.groups[0])
        for index, (block, prefix) in enumerate(zip(hits, self.prefixes(request), strict=False)):
            if block not in self.references and block != 0:
                raise UnknownBlockError(block, len(self.references) + 1)
            if self.prefix_of.get(block) != prefix:
                raise StaleHitError(0, index, block)
        if options.get("num_new_computed_tokens", 0) != len(hits) * self.size:
            raise InvalidArgumentError("new_computed_blocks", hits, "one block per full block")
        return hits

    def take(self) -> int:
        """The block that has been free for longest, without its identity."""
        block = self.free_ids.pop()
        prefix = self.prefix_of.pop(block, None)
        if prefix is not None:
            del self.block_of[prefix]
        return block

    def register(self, request: MinimalRequest, num_tokens: int) -> None:
        """Make full blocks findable; a prefix that has a block keeps it."""
        if not self.config.enable_caching:
            return
        blocks = self.lists[request.request_id]
        for block, prefix in zip(blocks, self.prefixes(request), strict=False):
            if len(prefix) <= num_tokens and prefix not in self.block_of:
                self.block_of[prefix] = block
                self.prefix_of[block] = prefix

    def free(self, request: MinimalRequest) -> None:
        for block in reversed(self.lists.pop(request.request_id, [])):
            self.references[block] -= 1
            if not self.references[block]:
                self.free_ids.insert(0, block)

    def get_blocks(self, request: MinimalRequest) -> KVCacheBlocks:
        return KVCacheBlocks((tuple(self.lists.get(request.request_id, ())),))

    def take_events(self) -> tuple[Event, ...]:
        return ()

    def make_prefix_cache_stats(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(name, "minimal")


class MinimalImplementation:
    """`capabilities` name prefix caching and nothing else."""

    def __init__(self, manager_class: type[MinimalManager] = MinimalManager) -> None:
        self.manager_class = manager_class
        self.capabilities = Capabilities(
            name="minimal",
            version="1",
            spec_types=frozenset({FullAttentionSpec}),
            hash_functions=frozenset(),
            features=frozenset({Feature.PREFIX_CACHING}),
        )
        self.planner = None

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        return cast(KVCacheManager, self.manager_class(config))

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        return cast(Request, MinimalRequest(request))

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        cast(MinimalRequest, request).tokens.extend(token_ids)


def minimal(manager_class: type[MinimalManager] = MinimalManager) -> Implementation:
    """The implementation, for type checkers too."""
    return cast(Implementation, MinimalImplementation(manager_class))
