"""mini-sglang's cache manager and radix tree, driven in the order of its scheduler.

PYTHONPATH=mini-sglang/python kvspec check --tree kvcheck.adapters.minisglang:trees

Its own `CacheManager` and `Req` do all that changes state. The adapter does what needs a GPU there:
it compares keys, and writes new pages into the table. A prompt is stored once, when all of it is
computed, and again when the request ends, as `Scheduler` does. Requests are not retracted there:
here a retracted one ends, and arrives again.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

from kvspec.errors import InvalidArgumentError, KVSpecError, UnsupportedError
from kvspec.tree import (
    Evicted,
    Part,
    Row,
    StateCopy,
    TreeCapabilities,
    TreeConfig,
    TreeCounts,
    TreeNode,
)

LONGEST, MOST_REQUESTS = 256, 64


class MiniUnavailableError(KVSpecError, ImportError):
    """mini-sglang, or what its cache needs, cannot be imported."""


@dataclass(frozen=True)
class Library:
    """mini-sglang's modules, and torch, untyped as they are to us."""

    cache: Any
    core: Any
    torch: Any


def load_library() -> Library:
    """Import the cache without scheduler and kernels, which need a GPU."""
    try:
        found = importlib.util.find_spec("minisgl")
        if found is None or found.submodule_search_locations is None:
            raise MiniUnavailableError("mini-sglang's folder python is not on PYTHONPATH")
        scheduler, kernel = ModuleType("minisgl.scheduler"), ModuleType("minisgl.kernel")
        scheduler.__path__ = [f"{found.submodule_search_locations[0]}/scheduler"]
        vars(kernel)["fast_compare_key"] = _num_equal
        sys.modules |= {"minisgl.scheduler": scheduler, "minisgl.kernel": kernel}
        cache = importlib.import_module("minisgl.scheduler.cache")
        core = importlib.import_module("minisgl.core")
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise MiniUnavailableError(f"mini-sglang cannot be imported: {error}") from error
    vars(cache)["_write_page_table"] = _write_page_table
    return Library(cache, core, torch)


def _num_equal(key: Any, other: Any) -> int:
    pairs = zip(key.tolist(), other.tolist(), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(key), len(other)))


def _write_page_table(table: Any, slots: Any, rows: Any, page_size: int) -> None:
    """Write slots, in their order, into (row, first page, last page)."""
    at = 0
    for row, first, last in rows:
        number = (last - first) * page_size
        table[row, first * page_size : last * page_size] = slots[at : at + number]
        at += number


class MiniTrees:
    """See `kvspec.tree.TreeImplementation`."""

    tree_capabilities = TreeCapabilities(
        parts=frozenset(),
        has_salts=False,
        has_evict=False,
        has_reset=False,
        orders=frozenset(),
        admits_any_that_fit=False,
        checks_calls=False,
    )

    def __init__(self, library: Library) -> None:
        self.library = library

    def make_tree(self, config: TreeConfig) -> MiniTree:
        if config.window_tokens or config.num_states or config.num_slots % config.page_size_tokens:
            raise InvalidArgumentError("config", config, "whole pages of full attention")
        return MiniTree(self.library, config)


def trees() -> MiniTrees:
    """Return mini-sglang's trees. MiniUnavailableError if it is not there."""
    return MiniTrees(load_library())


class MiniTree:
    """`tokens`: of each request. `running`: their `Req`s. `unstored`: those not stored yet."""

    def __init__(self, library: Library, config: TreeConfig) -> None:
        self.library, self.page_size = library, config.page_size_tokens
        library.core._GLOBAL_CTX = library.core.Context(self.page_size)
        torch = library.torch
        self.table = torch.zeros((MOST_REQUESTS, LONGEST), dtype=torch.int32)
        num_pages = config.num_slots // self.page_size
        self.cache = library.cache.CacheManager(num_pages, self.page_size, self.table, "radix")
        self.tokens: dict[str, list[int]] = {}
        self.running: dict[str, Any] = {}
        self.unstored: set[str] = set()
        self.rows = list(range(MOST_REQUESTS))

    def arrive(
        self, request_id: str, tokens: Sequence[int], *, salt: str = "", priority: int = 0
    ) -> None:
        self.tokens[request_id] = list(tokens)

    def _found(self, request_id: str) -> Any:
        ids = self.library.torch.tensor(self.tokens[request_id], dtype=self.library.torch.int32)
        return self.cache.match_req(SimpleNamespace(input_ids=ids, input_len=len(ids))).cuda_handle

    def match(self, request_id: str) -> int:
        return int(self._found(request_id).cached_len)

    def admit(self, request_id: str, num_new_tokens: int) -> int | None:
        """Follow `PrefillAdder`: measure, lock, measure again, take a row, allocate."""
        handle, tokens = self._found(request_id), self.tokens[request_id]
        num_cached = handle.cached_len
        needed = len(tokens) - num_cached + self.page_size
        if needed > self.cache.available_size:
            return None
        self.cache.lock(handle)
        if needed > self.cache.available_size:
            self.cache.unlock(handle)
            return None
        row = self.rows.pop()
        if num_cached:
            self.table[row, :num_cached] = handle.get_matched_indices()
        ids = self.library.torch.tensor(tokens[: num_cached + num_new_tokens])
        made = self.library.core.Req(ids.int(), row, num_cached, 0, 0, None, handle)
        self.running[request_id] = made
        self.unstored.add(request_id)
        self.cache.allocate_paged([made])
        return int(num_cached)

    def extend(self, request_id: str, num_new_tokens: int) -> bool:
        """Allocate as for a chunk or a decode step, which the scheduler has reserved."""
        request = self.running[request_id]
        length = request.device_len + num_new_tokens
        if self._whole(length) - self._whole(request.device_len) > self.cache.available_size:
            return False
        request.input_ids = self.library.torch.tensor(self.tokens[request_id][:length]).int()
        request.device_len = length
        self.cache.allocate_paged([request])
        return True

    def append(self, request_id: str, tokens: Sequence[int]) -> None:
        self.tokens[request_id] += tokens

    def run(self) -> None:
        for request in self.running.values():
            request.cached_len = request.device_len

    def checkpoint(self, request_id: str) -> None:
        """Store a prompt of which all is computed, once."""
        request = self.running[request_id]
        if request.cached_len == len(self.tokens[request_id]) and request_id in self.unstored:
            self.unstored.discard(request_id)
            with self.cache.lazy_free_region():
                self.cache.cache_req(request, finished=False)

    def finish(self, request_id: str) -> None:
        self.abort(request_id)

    def abort(self, request_id: str) -> None:
        """End as `_free_req_resources`; what did not run goes back first, for there all has run."""
        request = self.running.pop(request_id, None)
        if request is not None:
            stop = self._whole(request.device_len)
            with self.cache.lazy_free_region():
                unused = self.table[request.table_idx, self._whole(request.cached_len) : stop]
                self.cache._free(unused)
                self.rows.append(request.table_idx)
                self.cache.cache_req(request, finished=True)
        self.tokens.pop(request_id, None)
        self.unstored.discard(request_id)

    def retract(self, request_id: str) -> None:
        tokens = self.tokens[request_id]
        self.abort(request_id)
        self.tokens[request_id] = tokens

    def evict(self, num_slots: int, num_window_slots: int = 0, num_states: int = 0) -> Evicted:
        raise UnsupportedError("evict", "mini-sglang")

    def row(self, request_id: str) -> Row:
        request = self.running[request_id]
        slots = self.table[request.table_idx, : request.device_len].tolist()
        return Row(tuple(slots), num_protected=request.cache_handle.cached_len)

    def counts(self, part: Part) -> TreeCounts:
        sizes = self.cache.prefix_cache.size_info
        owned = sum(
            self._whole(each.device_len) - each.cache_handle.cached_len
            for each in self.running.values()
        )
        free = len(self.cache.free_slots) * self.page_size
        return TreeCounts(free, sizes.evictable_size, sizes.protected_size, owned)

    def take_copies(self) -> tuple[StateCopy, ...]:
        return ()

    def nodes(self) -> tuple[TreeNode, ...]:
        return tuple(self._below(self.cache.prefix_cache.root_node, ()))

    def _below(self, node: Any, tokens: tuple[int, ...]) -> Iterator[TreeNode]:
        for child in node.children.values():
            path = (*tokens, *child._key.tolist())
            yield TreeNode("", path, tuple(child.value.tolist()))
            yield from self._below(child, path)

    def reset(self) -> None:
        raise UnsupportedError("reset", "mini-sglang")

    def _whole(self, length: int) -> int:
        return int(-(-length // self.page_size) * self.page_size)
