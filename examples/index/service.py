"""Dynamo's indexer, a process that reads ZeroMQ and answers HTTP, for `kvspec check --index`.

    pip install ai-dynamo-runtime==1.6.1 'kvspec[cli,fleet]'
    kvspec check --index examples.index.service:implementation

Engines are those of `feed.py`; each rank has a publisher of its own, as vLLM's ranks do, and is
registered with its number. The indexer keeps one copy of a key, and each group of a hybrid but the
first is passed over. `without_replays`: engines keep their last batch alone.
"""

from __future__ import annotations

import atexit
import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from examples.index.feed import Feed
from kvcheck.adapters.dynamo import number_of
from kvspec.events import MEDIUM_GPU, BlockRemoved, BlockStored, EventHash
from kvspec.fleet import MOST_WAITING, Batch, IndexCapabilities, PrefixIndex

MODEL, NO_TOKEN = "model", 10**6
START_S = 20.0


class Service:
    """The process, and the calls that it answers; a model of its own for each index."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        command = (sys.executable, "-m", "dynamo.indexer", "--port", str(self.port))
        quiet = {**os.environ, "DYN_LOG": "off"}
        self.process = subprocess.Popen(command, env=quiet, stdout=subprocess.DEVNULL)
        atexit.register(self.process.kill)  # it would outlive this process
        end = time.monotonic() + START_S
        while not self.is_up():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{' '.join(command)} does not start")
            time.sleep(0.05)

    def is_up(self) -> bool:
        try:
            self.call("/workers")
        except OSError:
            return False
        return True

    def call(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            how = "GET" if body is None else "POST"
            link.request(how, path, json.dumps(body), {"content-type": "application/json"})
            return json.loads(link.getresponse().read())
        finally:
            link.close()


class Indexes:
    """See `kvspec.fleet.FleetImplementation`."""

    def __init__(self, *, max_kept: int = 10_000) -> None:
        self.max_kept, self.count = max_kept, 0
        self.index_capabilities = IndexCapabilities(
            calls=frozenset(),
            is_stream=True,
            has_replays=max_kept > 1,
            has_groups=False,
            has_media=False,
            removed_event_per=frozenset({"last_copy"}),
            is_exact=False,
            checks_calls=False,
        )
        self.service: Service | None = None

    def make_prefix_index(
        self, *, removed_event_per: str = "last_copy", max_waiting: int = MOST_WAITING
    ) -> PrefixIndex:
        self.service = self.service or Service()
        self.count += 1
        made: Any = ServiceIndex(self.service, f"{MODEL}{self.count}", self.max_kept)
        return made  # type: ignore[no-any-return]  # a StreamIndex, as it declares


class ServiceIndex:
    """See `kvspec.fleet.StreamIndex`. `blocks`: the tokens of each hash that was published."""

    def __init__(self, service: Service, model: str, max_kept: int) -> None:
        self.service, self.model = service, model
        self.feed = Feed(is_apart=True, max_kept=max_kept)
        self.numbers: dict[str, int] = {}
        self.blocks: dict[EventHash, Sequence[int]] = {}

    def keep(self, engine: str, batch: Batch, num_unknown: int) -> None:
        if engine not in self.feed.sockets:
            self.register(engine)
        for event in batch.events:
            if isinstance(event, BlockStored):
                size = event.block_size_tokens
                for place, each in enumerate(event.block_hashes):
                    self.blocks[each] = event.token_ids[place * size : (place + 1) * size]
        self.feed.keep(engine, _with_ints(batch), num_unknown)

    def register(self, engine: str) -> None:
        source, _, rank = engine.partition("#")
        published, replied = self.feed.addresses(engine)
        worker = {
            "instance_id": self.numbers.setdefault(source, len(self.numbers) + 1),
            "dp_rank": int(rank or 0),
            "model_name": self.model,
            "block_size": 4,
            "endpoint": published,
            "replay_endpoint": replied,
        }
        self.service.call("/register", worker)
        self.feed.await_reader(engine)

    def publish(self, engine: str, batch: Batch, num_unknown: int) -> None:
        self.feed.publish(engine, _with_ints(batch), num_unknown)

    def prefixes(
        self, hashes: Sequence[EventHash], *, group: int = 0, medium: str = MEDIUM_GPU
    ) -> Mapping[str, int]:
        if not self.numbers:
            return {}
        tokens = [t for each in hashes for t in self.blocks.get(each, [NO_TOKEN] * 4)]
        found = self.service.call("/query", {"token_ids": tokens, "model_name": self.model})
        names = {str(number): source for source, number in self.numbers.items()}
        return {
            names[number] + (f"#{rank}" if rank != "0" else ""): length // 4
            for number, ranks in found["scores"].items()
            for rank, length in ranks.items()
        }

    def close(self) -> None:
        """End the engines; the process ends with this one."""
        for number in self.numbers.values():
            self.service.call("/unregister", {"instance_id": number, "model_name": self.model})
        self.feed.close()


def _with_ints(batch: Batch) -> Batch:
    """Return the batch with hashes as ints, which engines send, too; lives have texts of a byte."""
    told: list[Any] = list(batch.events)
    for place, each in enumerate(told):
        if isinstance(each, BlockStored | BlockRemoved):
            told[place] = replace(each, block_hashes=tuple(map(number_of, each.block_hashes)))
        parent = getattr(each, "parent_block_hash", None)
        if parent is not None:
            told[place] = replace(told[place], parent_block_hash=number_of(parent))
    return replace(batch, events=tuple(told))


implementation = Indexes
without_replays = partial(Indexes, max_kept=1)
