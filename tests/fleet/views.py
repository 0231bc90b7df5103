"""Views of kvfast beside engines that publish: a subject of `kvspec check --index`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from examples.index.feed import Feed
from kvfast.fleet.index import FastIndex
from kvfast.fleet.view import FleetView, Source
from kvspec.events import MEDIUM_GPU, EventHash
from kvspec.fleet import MOST_WAITING, Batch, IndexCapabilities, PrefixIndex


class Views:
    """See `kvspec.fleet.FleetImplementation`. `max_kept`: batches that an engine keeps."""

    def __init__(self, max_kept: int = 10_000) -> None:
        self.max_kept = max_kept
        self.index_capabilities = IndexCapabilities(
            calls=frozenset(), is_stream=True, has_replays=max_kept > 99, checks_calls=False
        )

    def make_prefix_index(
        self, *, removed_event_per: str = "copy", max_waiting: int = MOST_WAITING
    ) -> PrefixIndex:
        made: Any = View(self.max_kept, removed_event_per)
        return made  # type: ignore[no-any-return]  # a StreamIndex, as it declares


class View:
    """See `kvspec.fleet.StreamIndex`: a view of the sources e and f."""

    def __init__(self, max_kept: int, removed_event_per: str) -> None:
        self.feed = Feed(max_kept=max_kept)
        sources = {name: Source(*self.feed.addresses(name)) for name in ("e", "f")}
        index = FastIndex(removed_event_per=removed_event_per)
        self.view = FleetView(sources, index=index, pause_s=0.0)
        for name in sources:
            self.feed.await_reader(name)
        self.keep = self.feed.keep

    def publish(self, engine: str, batch: Batch, num_unknown: int) -> None:
        """Send it behind a damaged copy: a half, or text that is not UTF-8."""
        number, payload = self.feed.frames(engine, batch, num_unknown)
        halves = payload[: len(payload) // 2], payload.replace(b"Block", b"\xfflock") + b"\xc1"
        for each in (halves[batch.number % 2], payload):
            self.feed.send(engine, number, each)

    def prefixes(
        self, hashes: Sequence[EventHash], *, group: int = 0, medium: str = MEDIUM_GPU
    ) -> Mapping[str, int]:
        self.view.poll(0.01)
        return self.view.index.prefixes(hashes, group=group, medium=medium)

    def close(self) -> None:
        self.view.close()
        self.feed.close()
