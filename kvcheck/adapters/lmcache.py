"""LMCache's L1 manager with the calls of an offload manager, for `kvspec check --tier`.

    kvspec check --tier kvcheck.adapters.lmcache:l1

It needs lmcache 0.5.6 and torch, and no GPU. `L1Manager` keeps the chunks of LMCache's server in
host memory. Translation:

- a place: the address of a chunk's memory, in chunks.
- a key that a writer stages is pending; LMCache's own look-ups pass it over.
- room: LMCache evicts in a thread, once a second, when memory is used above a watermark; until then
  stores fail. Here a store that finds no memory evicts what its policy names first, as many chunks
  as are missing and none that the call names.
- a load touches its keys, as a prefetch does. What a reset drops is not told.
- other tiers are served by threads that look up and load whole prompts: they are left out.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Collection, Sequence
from typing import Any

from kvspec.errors import InvalidArgumentError, KVSpecError, UnsupportedError
from kvspec.offload import (
    Found,
    OffloadCapabilities,
    OffloadConfig,
    OffloadCounts,
    OffloadEvent,
    OffloadManager,
    PreparedStore,
    TierTransfer,
)

VERSION = "0.5.6"
CHUNK_BYTES = 4096  # what its memory is aligned to
TAG = "kvcheck"  # the server has one name for all of its writers, too


class LMCacheUnavailableError(KVSpecError, ImportError):
    """LMCache cannot be imported, or is of another version."""


class LMCacheL1:
    """See `kvspec.offload.OffloadImplementation`. Raises LMCacheUnavailableError."""

    name = "lmcache"
    offload_capabilities = OffloadCapabilities(
        has_lower_tiers=False, checks_calls=False, orders=frozenset()
    )

    def __init__(self) -> None:
        os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
        names = ("api", "config", "error", "eviction", "eviction_policy", "l1_manager")
        try:
            version = importlib.import_module("lmcache").__version__
            if version != VERSION:
                raise ImportError(f"{version} is installed")
            found = (importlib.import_module(f"lmcache.v1.distributed.{name}") for name in names)
            self.library = {name: vars(module) for name, module in zip(names, found, strict=True)}
        except (ImportError, AttributeError) as error:
            raise LMCacheUnavailableError(
                f"LMCache cannot be imported ({error}); this adapter needs lmcache {VERSION} and"
                f" torch: pip install lmcache=={VERSION}"
            ) from None

    def make_offload(self, config: OffloadConfig) -> OffloadManager:
        if config.lower:
            raise UnsupportedError("lower tiers", self.name)
        return LMCacheChunks(self.library, config.num_chunks)


class LMCacheChunks:
    """An `L1Manager` with LMCache's LRU; `events` are those that LMCache publishes."""

    def __init__(self, library: dict[str, dict[str, Any]], num_chunks: int) -> None:
        self.library, config, torch = library, library["config"], importlib.import_module("torch")
        memory = config["L1MemoryManagerConfig"](num_chunks * CHUNK_BYTES, False, shm_name="")
        self.inner = library["l1_manager"]["L1Manager"](config["L1ManagerConfig"](memory))
        create = library["eviction_policy"]["CreateEvictionPolicy"]
        self.policy = create(config["EvictionConfig"]("LRU"))
        self.inner.register_listener(library["eviction"]["L1EvictionPolicy"](self.policy))
        self.inner.register_listener(self)
        shape = torch.Size([CHUNK_BYTES])
        self.layout = library["api"]["MemoryLayoutDesc"]([shape], [torch.uint8])
        self.events: list[OffloadEvent] = []
        self.ready: set[bytes] = set()

    def new_request(self, request_id: str, *, tenant: str = "", priority: int = 0) -> None:
        pass

    finish_request = new_request

    def lookup(self, key: bytes, request_id: str) -> Found:
        ((inner, (error, _)),) = self.inner.unsafe_read(self._keys([key])).items()
        if error != self.library["error"]["L1Error"].KEY_NOT_EXIST:
            return Found.HIT
        return Found.PENDING if inner in self.inner._staging else Found.MISS

    def prepare_load(self, keys: Sequence[bytes], request_id: str) -> tuple[int, ...]:
        found = self.inner.reserve_read(inner := self._keys(keys))
        lost = [key.chunk_hash for key, (_, memory) in found.items() if memory is None]
        if lost:
            raise InvalidArgumentError("keys", lost, "ready")
        self.inner.touch_keys(inner)
        return tuple(_place(found[key]) for key in inner)

    def complete_load(self, keys: Sequence[bytes], request_id: str) -> None:
        self.inner.finish_read(self._keys(keys))

    def prepare_store(self, keys: Sequence[bytes], request_id: str) -> PreparedStore | None:
        inner, number = self._keys(keys), len(self.events)
        found = self._reserved(inner)
        out_of_memory = self.library["error"]["L1Error"].OUT_OF_MEMORY
        short = [key for key, (error, _) in found.items() if error == out_of_memory]
        if short:
            used, total = self.inner.get_memory_usage()
            over = len(short) - (total - used) // CHUNK_BYTES
            leaving = self._evictable(inner)[:over]
            if len(leaving) < over:
                return None
            self.inner.delete(leaving)
            found.update(self._reserved(short))
        made = {key: each for key, each in found.items() if each[1] is not None}
        gone = tuple(key for event in self.events[number:] for key in event.keys)
        stored = tuple(key.chunk_hash for key in made)
        return PreparedStore(stored, tuple(map(_place, made.values())), gone)

    def complete_store(
        self, keys: Sequence[bytes], request_id: str, *, success: bool = True
    ) -> None:
        end = self.inner.finish_write if success else self.inner.finish_write_and_delete
        end(self._keys(keys), tag=TAG)

    def touch(self, keys: Sequence[bytes], request_id: str) -> None:
        self.inner.touch_keys(self._keys(keys))

    def end_step(self) -> tuple[TierTransfer, ...]:
        return ()

    def finish_transfer(self, number: int, failed: Collection[bytes] = ()) -> None:
        raise InvalidArgumentError("number", number, "a transfer under way")

    def reset(self) -> None:
        self.inner.clear()
        self.events = []

    def take_events(self) -> tuple[OffloadEvent, ...]:
        events, self.events = self.events, []
        return tuple(events)

    def counts(self) -> OffloadCounts:
        used, total = (each // CHUNK_BYTES for each in self.inner.get_memory_usage())
        pending = self.inner.get_staging_memory_usage() // CHUNK_BYTES
        idle = sum(map(self.inner.is_key_evictable, self.inner._objects))
        return OffloadCounts(total - used, idle, used - pending - idle, pending)

    # A listener of the manager.

    def on_l1_keys_write_finished(self, keys: Sequence[Any]) -> None:
        self._tell(tuple(key.chunk_hash for key in keys), is_removed=False)

    def on_l1_keys_deleted_by_manager(self, keys: Sequence[Any]) -> None:
        """Tell of those that were readable, as LMCache's published events do."""
        gone = tuple(key.chunk_hash for key in keys if key.chunk_hash in self.ready)
        self._tell(gone, is_removed=True)

    def _heard(self, keys: Sequence[Any]) -> None:
        pass

    on_l1_keys_reserved_read = on_l1_keys_read_finished = on_l1_keys_reserved_write = _heard
    on_l1_keys_accessed = on_l1_keys_finish_write_and_reserve_read = _heard

    def _tell(self, keys: tuple[bytes, ...], *, is_removed: bool) -> None:
        self.ready = self.ready - set(keys) if is_removed else self.ready | set(keys)
        self.events += [OffloadEvent(keys, is_removed=is_removed)] if keys else []

    def _keys(self, keys: Sequence[bytes]) -> list[Any]:
        return [self.library["api"]["ObjectKey"](key, "model", 0) for key in keys]

    def _reserved(self, keys: Sequence[Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = self.inner.reserve_write(
            keys, [False] * len(keys), self.layout, TAG
        )
        return found

    def _evictable(self, kept: Sequence[Any]) -> list[Any]:
        actions = self.policy.get_eviction_actions(
            1.0, lambda key: key not in kept and self.inner.is_key_evictable(key)
        )
        return [key for each in actions for key in each.keys]


def l1() -> LMCacheL1:
    """Return what makes LMCache's L1 managers."""
    return LMCacheL1()


def _place(found: tuple[Any, Any]) -> int:
    """Return the place of the memory of a result."""
    return int(found[1].meta.address) // CHUNK_BYTES
