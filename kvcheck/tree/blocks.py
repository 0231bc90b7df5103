"""Any KV-cache manager as a tree of which only the accounts are judged: blocks are pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Feature, Implementation, KVCacheManager
from kvspec.request import Request, RequestInput
from kvspec.specs import FullAttentionSpec
from kvspec.tree import (
    Evicted,
    Part,
    PrefixTree,
    Row,
    StateCopy,
    TreeCapabilities,
    TreeConfig,
    TreeCounts,
    TreeNode,
)

LONGEST = 1024


class BlockTrees:
    """Trees over the managers of an implementation, with full attention alone."""

    def __init__(self, implementation: Implementation) -> None:
        self.implementation = implementation
        features = implementation.capabilities.features
        self.tree_capabilities = TreeCapabilities(
            parts=frozenset(),
            has_salts=Feature.CACHE_SALT in features,
            has_reset=Feature.RESET in features,
            page_sizes=(2, 4),
            has_rows=False,
            has_nodes=False,
            has_evict=False,
            orders=frozenset(),
            admits_any_that_fit=False,
            checks_calls=False,
        )

    def make_tree(self, config: TreeConfig) -> PrefixTree:
        return BlockTree(self.implementation, config)


@dataclass
class Admitted:
    """A request of the manager, which the manager holds blocks of while it runs."""

    inner: Request
    is_running: bool = False


class BlockTree:
    """See `kvspec.tree.PrefixTree`. Blocks that no request holds are free, cached or not."""

    def __init__(self, implementation: Implementation, config: TreeConfig) -> None:
        self.implementation, self.block_size = implementation, config.page_size_tokens
        self.manager = self._created(config.num_slots // self.block_size)
        self.requests: dict[str, Admitted] = {}

    def _created(self, num_blocks: int) -> KVCacheManager:
        """Make a manager with so many free blocks; some count the null block, which is none."""
        group = KVCacheGroup(("layer",), FullAttentionSpec(self.block_size, 1, 1, "float16"))
        for size in (num_blocks + 1, num_blocks):
            config = ManagerConfig(KVCacheConfig(size, (group,)), LONGEST)
            manager = self.implementation.create(config)
            if manager.num_free_blocks == num_blocks:
                break
        return manager

    def arrive(
        self, request_id: str, tokens: Sequence[int], *, salt: str = "", priority: int = 0
    ) -> None:
        given = RequestInput(request_id, list(tokens), cache_salt=salt or None)
        made = self.implementation.make_request(self.manager, given)
        self.requests[request_id] = Admitted(made)

    def match(self, request_id: str) -> int:
        request = self.requests[request_id].inner
        return self.manager.get_computed_blocks(request).hit_length_tokens

    def admit(self, request_id: str, num_new_tokens: int) -> int | None:
        admitted = self.requests[request_id]
        hit = self.manager.get_computed_blocks(admitted.inner)
        num_cached = hit.hit_length_tokens
        number = min(num_new_tokens, admitted.inner.num_tokens - num_cached)
        if number < 1:
            return num_cached  # a hit on the whole prompt: nothing is left to allocate
        blocks = self.manager.allocate_slots(
            admitted.inner,
            number,
            num_new_computed_tokens=num_cached,
            new_computed_blocks=hit.blocks,
        )
        if blocks is None:
            return None
        admitted.inner.num_computed_tokens = num_cached + number
        admitted.is_running = True
        return num_cached

    def extend(self, request_id: str, num_new_tokens: int) -> bool:
        request = self.requests[request_id].inner
        if self.manager.allocate_slots(request, num_new_tokens) is None:
            return False
        request.num_computed_tokens += num_new_tokens
        return True

    def append(self, request_id: str, tokens: Sequence[int]) -> None:
        request = self.requests[request_id].inner
        self.implementation.append_tokens(self.manager, request, tokens)

    def run(self) -> None: ...

    def checkpoint(self, request_id: str) -> None: ...

    def finish(self, request_id: str) -> None:
        self.abort(request_id)

    def abort(self, request_id: str) -> None:
        if self.requests[request_id].is_running:
            self.manager.free(self.requests[request_id].inner)
        del self.requests[request_id]

    def retract(self, request_id: str) -> None:
        admitted = self.requests[request_id]
        self.manager.free(admitted.inner)
        admitted.is_running = False
        admitted.inner.num_computed_tokens = 0
        admitted.inner.num_preemptions += 1

    def evict(self, num_slots: int, num_window_slots: int = 0, num_states: int = 0) -> Evicted:
        raise UnsupportedError("evict", self.implementation.capabilities.name)

    def row(self, request_id: str) -> Row:
        raise UnsupportedError("row", self.implementation.capabilities.name)

    def counts(self, part: Part) -> TreeCounts:
        """Count blocks that several rows hold once."""
        running = (each.inner for each in self.requests.values() if each.is_running)
        lists = (self.manager.get_blocks(request).to_lists() for request in running)
        held = {block for (blocks,) in lists for block in blocks}
        num_free = self.manager.num_free_blocks
        return TreeCounts(num_free * self.block_size, 0, 0, len(held) * self.block_size)

    def take_copies(self) -> tuple[StateCopy, ...]:
        return ()

    def nodes(self) -> tuple[TreeNode, ...]:
        return ()

    def reset(self) -> None:
        self.manager.reset_prefix_cache()
