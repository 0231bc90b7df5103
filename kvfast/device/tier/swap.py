"""Blocks to host memory and back, beside the computing, ordered by events (KV-DEV-8).

swap_out:   wait for what was computed  →  copy on a stream of its own  →  event
wait:       later work on the device runs after that event; the host continues

The computing stream is the one that is current on the pools' device at the time of the call.
"""

from __future__ import annotations

from dataclasses import replace

from kvfast.device.base.arguments import check_type
from kvfast.device.base.backend import Backend, chosen, form_of
from kvfast.device.base.layout import with_tensors
from kvfast.device.pages.arguments import Ids, check_disjoint, check_same_length, ids_on
from kvfast.device.pages.pools import KVPools
from kvfast.device.pages.segments import Segments, segments
from kvfast.device.tier.streams import Event, Streams, streams_of
from kvspec.config import KVCacheConfig
from kvspec.errors import InvalidArgumentError


class Transfer:
    """A swap that may not have ended yet. Without a GPU it has when it is handed out."""

    def __init__(self, event: Event | None, streams: Streams | None = None) -> None:
        self._event = event
        self._streams = streams

    def wait(self) -> None:
        """Make all later work of the pools' device run after it. Does not block.

        It applies to the stream that is current there, whichever device is current.
        """
        if self._event is not None and self._streams is not None:
            self._streams.wait(self._event)

    @property
    def is_done(self) -> bool:
        """Whether the transfer has finished; does not wait."""
        return self._event is None or self._event.query()

    def synchronize(self) -> None:
        """Block until it has ended."""
        if self._event is not None:
            self._event.synchronize()


class Swapper:
    """Moves whole blocks between pools on a device and pools in host memory.

    Both have the same layers and layout; their numbers of blocks differ. For a CUDA device the
    host's pools are pinned (`pin_memory=True`). Between a swap and its `wait`, the blocks that it
    reads must not be written, nor those that it writes be used. Swaps of one swapper are made one
    after another, and both pools stay until the last one has ended.
    """

    def __init__(
        self,
        device_pools: KVPools,
        host_pools: KVPools,
        *,
        backend: Backend | None = None,
        streams: Streams | None = None,
    ) -> None:
        """Take the `streams` of another swapper, to be ordered with it; None for new ones."""
        check_type("device_pools", device_pools, KVPools)
        check_type("host_pools", host_pools, KVPools)
        if streams is not None:
            check_type("streams", streams, Streams)
        self.device_pools, self.host_pools = device_pools, host_pools
        device = device_pools.device
        self.backend: Backend = chosen(backend, device)
        self.form = form_of("kvfast.device.pages", self.backend)
        shapes = [[pages.shape[1] for pages in one.pages] for one in (device_pools, host_pools)]
        same = device_pools.cache.groups == host_pools.cache.groups and shapes[0] == shapes[1]
        if not same or device_pools.layout != host_pools.layout:
            raise InvalidArgumentError("host_pools", host_pools.cache, "pools of the same layers")
        is_cuda = device.type == "cuda"
        pinned = not is_cuda or all(pages.is_pinned() for pages in host_pools.pages)
        if host_pools.device.type != "cpu" or not pinned:
            raise InvalidArgumentError("host_pools", str(host_pools.device), "pinned host memory")
        self._device_pages = segments(device_pools, None)
        # Pinned memory has one address on the host and on the device.
        self._host_pages = segments(host_pools, None, device=device)
        self.streams = streams_of(device) if streams is None else streams

    def swap_out(self, blocks: Ids, host_blocks: Ids) -> Transfer:
        """Copy block `blocks[i]` of the device to block `host_blocks[i]` of the host."""
        return self._moved(
            ("blocks", blocks, self._device_pages), ("host_blocks", host_blocks, self._host_pages)
        )

    def swap_in(self, host_blocks: Ids, blocks: Ids) -> Transfer:
        """Copy block `host_blocks[i]` of the host to block `blocks[i]` of the device."""
        return self._moved(
            ("host_blocks", host_blocks, self._host_pages), ("blocks", blocks, self._device_pages)
        )

    def _moved(
        self, source: tuple[str, Ids, Segments], destination: tuple[str, Ids, Segments]
    ) -> Transfer:
        device = self.device_pools.device
        checked = []
        for field, ids, pages in (source, destination):
            checked.append(ids_on(field, ids, device, lowest=1, limit=pages.num_blocks))
        check_same_length(destination[0], checked[1], checked[0])
        check_disjoint(destination[0], destination[1], None)
        event = self.streams.start(
            lambda: self.form.copy_pages(source[2], destination[2], *checked), checked
        )
        return Transfer(event, self.streams)


def resized(cache: KVCacheConfig, num_blocks: int) -> KVCacheConfig:
    """Return the same layers with another number of blocks, for the host's pools."""
    cache = with_tensors(cache)
    tensors = tuple(
        replace(one, size_bytes=one.size_bytes // cache.num_blocks * num_blocks)
        for one in cache.tensors
    )
    return replace(cache, num_blocks=num_blocks, tensors=tensors)
