"""Views of kvfast for tests and connectors that read vLLM's manager.

A view queries kvfast each time and keeps nothing. Calls that change something are also passed to
kvfast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheBlocks
from vllm.v1.core.kv_cache_utils import KVCacheBlock

from kvfast.engines.vllm.requests import Requests
from kvspec.snapshot import Snapshot


class Block(KVCacheBlock):  # type: ignore[misc]  # vLLM has no types where it is not installed
    """A block as vLLM shows it: one object for each block that was ever asked for."""

    __slots__ = ("pool",)

    def __init__(self, pool: Pool, block_id: int) -> None:
        self.pool = pool
        self.block_id = block_id  # type: ignore[misc]  # a slot of vLLM's
        self.is_null = block_id == 0  # type: ignore[misc]  # the same

    @property
    def ref_cnt(self) -> int:
        return int(self.pool.fast.get_block(self.block_id).references)

    @property
    def block_hash(self) -> bytes | None:
        """The primary key: hash and group."""
        facts: Any = self.pool.fast.get_block(self.block_id)
        return facts.block_hash + facts.group.to_bytes(4, "big") if facts.is_cached else None

    @property
    def is_free(self) -> bool:
        return self.ref_cnt == 0 and not self.is_null

    @property
    def next_free_block(self) -> object:
        """The next block in the free queue; None if it is not in the queue itself."""
        return self.pool.free_block_queue.behind(self.block_id) if self.is_free else None

    @property
    def prev_free_block(self) -> object:
        return self.pool.free_block_queue.before(self.block_id) if self.is_free else None

    @property
    def _block_hash(self) -> bytes | None:
        """The same; vLLM's tests read its slot."""
        return self.block_hash

    @property
    def block_hash_num_tokens(self) -> int | None:
        return self.pool.state().covered_tokens[self.block_id] or None

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return self.block_id

    def __repr__(self) -> str:
        return f"Block({self.block_id}, ref_cnt={self.ref_cnt}, block_hash={self.block_hash!r})"


class Blocks(KVCacheBlocks):  # type: ignore[misc]  # as above
    """A result: ids, and blocks on demand."""

    def __init__(self, ids: tuple[Sequence[int], ...], pool: Pool) -> None:
        self.ids = ids
        self.pool = pool

    @property
    def blocks(self) -> tuple[list[Block], ...]:
        return tuple([self.pool.shown(ids) for ids in self.ids])

    def get_block_ids(
        self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None
    ) -> tuple[list[int], ...] | None:
        """Return the ids per group, or of these groups; with `allow_none`, None for no block."""
        chosen = self.ids if group_ids is None else tuple(self.ids[group] for group in group_ids)
        if allow_none and not any(map(len, chosen)):
            return None
        return tuple([list(ids) for ids in chosen])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KVCacheBlocks):
            return NotImplemented
        same: bool = self.get_block_ids() == other.get_block_ids()
        return same

    __hash__ = None  # type: ignore[assignment]  # as vLLM's

    def __repr__(self) -> str:
        return f"Blocks({self.get_block_ids()})"


class Pool:
    """vLLM's `BlockPool`, as far as its scheduler, connectors and tests know it."""

    def __init__(
        self, fast: Any, batched: Any, stock: Any, queued_events: Callable[[], Sequence[Any]]
    ) -> None:
        self.fast = fast
        self.queued_events = queued_events
        self.num_gpu_blocks: int = stock.num_gpu_blocks
        self.enable_caching: bool = stock.enable_caching
        self.hash_block_size: int = stock.hash_block_size
        self.enable_kv_cache_events: bool = stock.enable_kv_cache_events
        self.metrics_collector = None
        self.made: dict[int, Block] = {}
        self.null_block = self.block(0)
        self.blocks = BlockList(self)
        self.free_block_queue = FreeQueue(self, batched)
        self.cached_block_hash_to_block = KeyView(self)

    @property
    def kv_event_queue(self) -> tuple[Any, ...]:
        """The events not yet taken, as they will be taken."""
        return tuple(self.queued_events())

    @property
    def cached_block_hashes_by_block(self) -> Mapping[int, set[bytes]]:
        """The keys after the first of blocks with several, as they are now."""
        listed = enumerate(self.state().block_keys)
        return MappingProxyType({block: set(keys[1:]) for block, keys in listed if len(keys) > 1})

    def state(self) -> Snapshot:
        state: Snapshot = self.fast.snapshot()
        return state

    def block(self, block_id: int) -> Block:
        found = self.made.get(block_id)
        if found is None:
            found = self.made[block_id] = Block(self, block_id)
        return found

    def shown(self, ids: Iterable[int]) -> list[Block]:
        return [self.block(block) for block in ids]

    def get_num_free_blocks(self) -> int:
        return int(self.fast.num_free_blocks)

    def get_usage(self) -> float:
        return float(self.fast.usage)

    def get_cached_block(self, block_hash: bytes, kv_cache_group_ids: list[int]) -> Any:
        """Return the block of that hash in each group; None if one has none."""
        keys = [block_hash + group.to_bytes(4, "big") for group in kv_cache_group_ids]
        found = [self.cached_block_hash_to_block.get_one_block(key) for key in keys]
        return None if None in found else found

    def free_blocks(self, ordered_blocks: Iterable[Any]) -> None:
        self.fast.free_blocks([block.block_id for block in ordered_blocks])

    def touch(self, blocks: Sequence[Any]) -> None:
        """Take a reference to each, which `free_blocks` returns."""
        self.fast.hold_blocks([block.block_id for block in blocks])

    def evict_blocks(self, block_ids: Iterable[int]) -> None:
        self.fast.evict_blocks(list(block_ids))

    def reset_prefix_cache(self) -> bool:
        return bool(self.fast.reset_prefix_cache())


class BlockList(Sequence[Block]):
    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __len__(self) -> int:
        return self.pool.num_gpu_blocks

    def __getitem__(self, index: Any) -> Any:
        chosen = range(len(self))[index]
        return self.pool.block(chosen) if isinstance(chosen, int) else self.pool.shown(chosen)


class QueueEnd:
    """The end before the first block of the free queue, or after the last."""

    def __init__(self, queue: FreeQueue, *, is_head: bool) -> None:
        self.queue = queue
        self.is_head = is_head

    @property
    def next_free_block(self) -> object:
        return self.queue.behind(None) if self.is_head else None

    @property
    def prev_free_block(self) -> object:
        return None if self.is_head else self.queue.before(None)


class FreeQueue:
    """vLLM's `FreeKVCacheBlockQueue`, to be read and walked along."""

    def __init__(self, pool: Pool, batched: Any) -> None:
        self.pool = pool
        self.batched = batched
        self.fake_free_list_head = QueueEnd(self, is_head=True)
        self.fake_free_list_tail = QueueEnd(self, is_head=False)

    def behind(self, block_id: int | None) -> object:
        """Return the block after this one, the first for None; the tail after the last."""
        found = self.batched.next_free_blocks(1, after=block_id)
        return self.pool.block(found[0]) if found else self.fake_free_list_tail

    def iter_blocks_after(self, cursor: Any) -> Iterator[Any]:
        """Yield the free blocks behind one, from the front on for None."""
        at: Any = self.fake_free_list_head if cursor is None else cursor
        while (at := at.next_free_block) not in (None, self.fake_free_list_tail):
            yield at

    def before(self, block_id: int | None) -> object:
        """Return the block before this one, the last for None; the head before the first."""
        queue = self.pool.state().free_queue
        place = len(queue) if block_id is None else queue.index(block_id)
        return self.pool.block(queue[place - 1]) if place else self.fake_free_list_head

    @property
    def num_free_blocks(self) -> int:
        return self.pool.get_num_free_blocks()

    def get_all_free_blocks(self) -> list[Block]:
        return self.pool.shown(self.pool.state().free_queue)


class KeyView:
    """vLLM's `BlockHashToBlockMap`, to be read."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    @property
    def _cache(self) -> Mapping[bytes, Any]:
        order = self.pool.state().lookup_order
        shown = {
            key: self.pool.block(ids[0]) if len(ids) == 1 else {i: self.pool.block(i) for i in ids}
            for key, ids in order.items()
        }
        return MappingProxyType(shown)  # writing raises an error instead of being ignored

    def get_one_block(self, key: bytes) -> Block | None:
        """Return the block that a look-up of this key would find."""
        ids = self.pool.state().lookup_order.get(key)
        return self.pool.block(ids[0]) if ids else None

    def contain(self, key: bytes, block_id: int) -> bool:
        return block_id in self.pool.state().lookup_order.get(key, ())

    def __len__(self) -> int:
        return len(self.pool.state().lookup_order)


class Computed(Mapping[str, Any]):
    """What is noted of requests, by their names: worked out whenever it is read.

    `names`: of those that have something; `of`: it, KeyError for none.
    """

    def __init__(self, names: Callable[[], Iterable[str]], of: Callable[[str], Any]) -> None:
        self.names = names
        self.of = of

    def __getitem__(self, name: str) -> Any:
        return self.of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len([*self.names()])


class Group:
    """vLLM's manager of one group, to be read."""

    def __init__(self, pool: Pool, requests: Requests, group: int) -> None:
        def blocks(name: str) -> list[Block]:
            return pool.shown(pool.fast.get_blocks(requests.held[name]).groups[group])

        def counts() -> dict[str, int]:
            states = pool.state().requests
            found = {name: state.num_cached_blocks[group] for name, state in states.items()}
            return {name: count for name, count in found.items() if count is not None}

        self.block_pool = pool
        self.req_to_blocks = Computed(lambda: requests.held, blocks)
        self.num_cached_block = Computed(counts, lambda name: counts()[name])


class Coordinator:
    """vLLM's coordinator, as far as its scheduler, connectors and tests know it."""

    num_uncached_common_prefix_tokens = 0

    def __init__(self, pool: Pool, requests: Requests) -> None:
        self.block_pool = pool
        self.requests = requests

    def find_longest_cache_hit(
        self, block_hashes: Sequence[bytes], max_cache_hit_length: int
    ) -> Any:
        """Return the longest hit: blocks per group, tokens, from 0.26 on uncached tokens."""
        mine = self.requests.of_hashes(block_hashes, max_cache_hit_length + 1)
        hit = self.block_pool.fast.get_computed_blocks(mine)
        found = tuple(map(self.block_pool.shown, hit.blocks.groups)), hit.hit_length_tokens
        later = (hit.uncached_common_prefix_tokens or 0,) * self.requests.is_later
        return *found, *later

    def find_longest_cache_hit_per_group(
        self, block_hashes: Sequence[bytes], max_cache_hit_length: int
    ) -> tuple[Any, tuple[int, ...]]:
        """Return the longest hit of each group: blocks, and tokens."""
        mine = self.requests.of_hashes(block_hashes, max_cache_hit_length + 1)
        hits = self.block_pool.fast.find_longest_cache_hit_per_group(mine, max_cache_hit_length)
        return tuple(map(self.block_pool.shown, hits.blocks.groups)), hits.hit_lengths_tokens

    def get_num_blocks_to_allocate(
        self, request_id: str, *, new_computed_blocks: Any, **counts: Any
    ) -> int:
        counts.pop("num_local_computed_tokens", None)  # matter to hits alone,
        counts.pop("prefill_end", None)  # and to states inside a chunk, which kvfast does not serve
        mine = self.requests.held.get(request_id)
        if mine is None:  # its load failed and its blocks went back, and vLLM still counts it
            mine = self.requests.of_hashes([self.block_pool.fast.none_hash], 1)
        return int(self.block_pool.fast.get_num_blocks_to_allocate(mine, **counts))


COORDINATOR = (
    *("kv_cache_config", "max_model_len", "enable_caching", "scheduler_block_size"),
    *("eagle_group_ids", "retention_interval", "drop_eagle_group_ids", "group_block_sizes"),
    *("enable_partial_hash_hits", "num_reprefillable_tokens"),
)
"""The members that a coordinator keeps of vLLM's; they differ between versions."""
GROUP = ("block_size", "kv_cache_spec", "kv_cache_group_id")
"""Those that a group keeps."""


def coordinator_over(pool: Pool, requests: Requests, stock: Any) -> Any:
    """Make a coordinator that is also an instance of the class of vLLM's, as are its groups."""
    found = _shown_as(Coordinator(pool, requests), stock, COORDINATOR)
    found.single_type_managers = tuple(
        _shown_as(Group(pool, requests, index), group, GROUP)
        for index, group in enumerate(stock.single_type_managers)
    )
    return found


def _shown_as(view: Any, stock: Any, kept: Sequence[str]) -> Any:
    """Make the view an instance of the class of `stock`, too, with these members of `stock`."""
    view.__class__ = type(type(stock).__name__, (type(view), type(stock)), {})
    view.__dict__.update((name, getattr(stock, name)) for name in kept if hasattr(stock, name))
    return view
