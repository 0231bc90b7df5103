"""Dynamo's radix tree of engines with the calls of an index, for `kvspec check --index`.

    kvspec check --index kvcheck.adapters.dynamo:tree

It needs the wheel `ai-dynamo-runtime`, and no GPU. Translation:

- engine `pod#1`: the worker of `pod`, rank 1. `forget` clears the rank; the tree's own
  `remove_worker` is for all ranks.
- a hash: its 64-bit int. The tree is asked by hashes of each block's own tokens, which Stored
  events teach the adapter; a hash that was in none of them is one that no engine has.
- a report: a Stored event. Of two Stored events of a key the tree keeps one.
- an event about a block that the tree does not have: passed over, as the tree says in its error.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from kvspec.errors import KVSpecError, UnsupportedError
from kvspec.events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored, EventHash
from kvspec.fleet import MOST_WAITING, Batch, Heard, IndexCapabilities, PrefixIndex

PASSED_OVER = ("Failed to find parent block", "Failed to find block")
NO_BLOCK = 2**64 - 1
"""The hash of a block's tokens that no engine stores."""


class DynamoUnavailableError(KVSpecError, ImportError):
    """Dynamo's runtime cannot be imported."""


def tree() -> DynamoTrees:
    """Return what makes the trees. Raises DynamoUnavailableError if it cannot be imported."""
    os.environ.setdefault("DYN_LOG", "error")  # it warns of every block that it does not find
    try:
        return DynamoTrees(importlib.import_module("dynamo._core").RadixTree)
    except (ImportError, AttributeError) as error:
        raise DynamoUnavailableError(
            f"Dynamo cannot be imported ({type(error).__name__}: {error}); this adapter needs"
            " ai-dynamo-runtime 1.6: pip install ai-dynamo-runtime==1.6.1"
        ) from None


class DynamoTrees:
    """See `kvspec.fleet.FleetImplementation`. `tree`: the class."""

    index_capabilities = IndexCapabilities(
        calls=frozenset({"forget"}),
        orders_batches=False,
        has_groups=False,
        has_media=False,
        removed_event_per=frozenset({"last_copy"}),
        is_exact=False,
        checks_calls=False,
    )

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def make_prefix_index(
        self, *, removed_event_per: str = "last_copy", max_waiting: int = MOST_WAITING
    ) -> PrefixIndex:
        if removed_event_per != "last_copy":
            raise UnsupportedError(f"removed_event_per {removed_event_per}", "Dynamo's RadixTree")
        return DynamoIndex(self.tree())  # type: ignore[return-value]  # what it lacks is declared


class DynamoIndex:
    """A tree; `workers`: the number of each source, `blocks`: the hash of each block's tokens."""

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.workers: dict[str, int] = {}
        self.blocks: dict[int, int] = {}
        self.count = 0

    def hear(self, engine: str, batch: Batch) -> Heard:
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self._apply(engine, "cleared")
            elif isinstance(event, BlockStored):
                self._apply(engine, {"stored": self._stored(event)})
            elif isinstance(event, BlockRemoved):
                hashes = [number_of(each) for each in event.block_hashes]
                self._apply(engine, {"removed": {"block_hashes": hashes}})
        return Heard.APPLIED

    def forget(self, engine: str) -> None:
        self._apply(engine, "cleared")

    def prefixes(
        self, hashes: Sequence[EventHash], *, group: int = 0, medium: str = MEDIUM_GPU
    ) -> Mapping[str, int]:
        asked = [self.blocks.get(number_of(each), NO_BLOCK) for each in hashes]
        names = {number: name for name, number in self.workers.items()}
        found = self.tree.find_matches(asked).scores.items()
        return {
            names[worker] + (f"#{rank}" if rank else ""): length for (worker, rank), length in found
        }

    def _stored(self, event: BlockStored) -> dict[str, Any]:
        size, parent = event.block_size_tokens, event.parent_block_hash
        for place, each in enumerate(event.block_hashes):
            self.blocks[number_of(each)] = event.token_ids[place * size]
        hashes = [number_of(each) for each in event.block_hashes]
        return {
            "parent_hash": None if parent is None else number_of(parent),
            "start_position": None,
            "blocks": [{"block_hash": each, "tokens_hash": self.blocks[each]} for each in hashes],
        }

    def _apply(self, engine: str, data: object) -> None:
        source, _, rank = engine.partition("#")
        worker = self.workers.setdefault(source, len(self.workers) + 1)
        self.count += 1
        event = {"event_id": self.count, "data": data, "dp_rank": int(rank or 0)}
        try:
            self.tree.apply_event(worker, json.dumps(event).encode())
        except RuntimeError as error:
            if not str(error).endswith(PASSED_OVER):
                raise


def number_of(block_hash: EventHash) -> int:
    """Return a hash as a 64-bit int."""
    if isinstance(block_hash, int):
        return block_hash
    return int.from_bytes(block_hash[-8:], "big")
