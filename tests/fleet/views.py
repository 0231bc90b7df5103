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
        index = FastIndex(removed_event_per=removed_event_per)
        made: Any = View("e", "f", max_kept=self.max_kept, index=index)
        return made  # type: ignore[no-any-return]  # a StreamIndex, as it declares


class Watched(Feed):
    """Engines that publish, and a view of them."""

    def __init__(self, *names: str, max_kept: int = 10_000, **options: Any) -> None:
        super().__init__(max_kept=max_kept)
        sources = {name: Source(*self.addresses(name)) for name in names}
        self.view = FleetView(sources, pause_s=0.0, **options)
        for name in names:
            self.await_reader(name)

    def close(self) -> None:
        self.view.close()
        super().close()


class View(Watched):
    """See `kvspec.fleet.StreamIndex`: a view of the sources e and f."""

    def publish(self, engine: str, batch: Batch, num_unknown: int) -> None:
        """Send it behind a damaged copy: a half, or text that is not UTF-8."""
        number, payload = self.frames(engine, batch, num_unknown)
        halves = payload[: len(payload) // 2], payload.replace(b"Block", b"\xfflock") + b"\xc1"
        for each in (halves[batch.number % 2], payload):
            self.send(engine, number, each)

    def prefixes(
        self, hashes: Sequence[EventHash], *, group: int = 0, medium: str = MEDIUM_GPU
    ) -> Mapping[str, int]:
        self.view.poll(0.01)
        return self.view.index.prefixes(hashes, group=group, medium=medium)
