"""An index of the prefixes that each engine of a fleet has, built from their events (KV-FLEET-*).

An index is bookkeeping only: it takes batches of events, in any order, and returns how much of a
prompt each engine has. It neither transports batches nor recovers lost ones; `kvfast.fleet` does
both over ZeroMQ. `FleetImplementation.make_prefix_index` makes an index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeAlias, runtime_checkable

from kvspec.errors import KVSpecError
from kvspec.events import MEDIUM_GPU, Event, EventHash

FleetKey: TypeAlias = tuple[str, int, EventHash]
"""Medium, group number and hash: what an engine has, once for each copy (KV-FLEET-4)."""


class WireError(KVSpecError, ValueError):
    """A message that is not a batch of events (KV-FLEET-10); `problem` says what is wrong."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"no batch of events: {problem}")
        self.problem = problem


@dataclass(frozen=True)
class MediumCleared:
    """Report that an engine dropped all keys of one medium (KV-FLEET-12); no manager emits it."""

    medium: str


MOST_WAITING = 1024
"""The default for the number of batches of an engine that may wait for earlier ones."""


@dataclass(frozen=True)
class Batch:
    """Events of one engine that go together (KV-FLEET-1).

    `number`: 0, 1, 2, … from the start of the engine. `time_s`: when, by the engine's clock, in
    seconds; it does not go back from one number to the next.
    """

    number: int
    time_s: float
    events: tuple[Event | MediumCleared, ...]


@dataclass(frozen=True)
class EngineState:
    """The keys that an engine has cached after batch `number`, with time `time_s` (KV-FLEET-6).

    `keys`: the number of copies of each key, above 0. `number` is -1 before the first batch.
    `is_whole`: False if events before the first one received are missing, so that there may be more
    keys (KV-FLEET-7).
    """

    number: int
    time_s: float
    keys: Mapping[FleetKey, int]
    is_whole: bool = True


@dataclass(frozen=True)
class GroupPrefix:
    """A prompt as one group of an engine sees it (KV-FLEET-17).

    `hashes`: of its leading blocks, each of `block_size_tokens`. `num_last_blocks`: how many blocks
    before its end a hit needs: None for full attention, which needs all of them, cdiv(W − 1, B) for
    a window of W tokens, 1 for a state.
    """

    group: int
    hashes: Sequence[EventHash]
    block_size_tokens: int
    num_last_blocks: int | None = None


class Heard(StrEnum):
    """The effect of a batch."""

    APPLIED = "applied"
    """It was the next one (KV-FLEET-1)."""
    WAITING = "waiting"
    """Others are missing before it (KV-FLEET-3)."""
    KNOWN = "known"
    """It changes nothing: received before, or left over from before a restart (KV-FLEET-2)."""
    RESTARTED = "restarted"
    """The engine restarted: its earlier state was dropped, and the batch applied (KV-FLEET-5)."""
    FULL = "full"
    """Too many wait already; it has to be sent again (KV-FLEET-3)."""


class PrefixIndex(Protocol):
    """Engines by name. One caller at a time; errors leave the state as it was (KV-FLEET-9)."""

    @property
    def engines(self) -> tuple[str, ...]:
        """Names of all engines seen and not forgotten, sorted."""

    def hear(self, engine: str, batch: Batch) -> Heard:
        """Take in a batch, and those that waited for it (KV-FLEET-1 … KV-FLEET-5)."""

    def restore(self, engine: str, state: EngineState) -> bool:
        """Replace an engine's state; returns False, unchanged, for an older one (KV-FLEET-6)."""

    def skip(self, engine: str) -> bool:
        """Give up the batches that are missing; False when none is (KV-FLEET-7)."""

    def forget(self, engine: str) -> None:
        """Drop an engine and its state."""

    def missing(self, engine: str) -> tuple[int, int] | None:
        """Return numbers (first, end) of the batches before the lowest that waits (KV-FLEET-3)."""

    def last(self, engine: str) -> tuple[int, float]:
        """Return number and time of the last applied batch; -1, minus infinity before the first."""

    def state(self, engine: str) -> EngineState:
        """Return the state of an engine; InvalidArgumentError if it is unknown."""

    def prefixes(
        self, hashes: Sequence[EventHash], *, group: int = 0, medium: str = MEDIUM_GPU
    ) -> Mapping[str, int]:
        """Return how many leading hashes each engine has, if any (KV-FLEET-8)."""

    def hits(self, groups: Sequence[GroupPrefix], *, medium: str = MEDIUM_GPU) -> Mapping[str, int]:
        """Return the longest hit in tokens of each engine with one in all groups (KV-FLEET-17)."""


@runtime_checkable
class FleetImplementation(Protocol):
    """The additional methods of an implementation that has an index of engines."""

    def make_prefix_index(
        self, *, removed_event_per: str = "copy", max_waiting: int = MOST_WAITING
    ) -> PrefixIndex:
        """Make an empty index.

        `removed_event_per`: the engines' policy (KV-POL-3). `max_waiting`: batches of an engine
        that may wait, 1 or more. InvalidArgumentError for other values.
        """


class StreamIndex(Protocol):
    """An index that reads what engines publish, and asks them for what it lacks (KV-FLEET-11).

    `num_unknown`: events of unknown types behind those of a batch (KV-FLEET-13).
    """

    def keep(self, engine: str, batch: Batch, num_unknown: int) -> None:
        """Keep a batch that the engine has made, for replays; at number 0 it keeps no other."""

    def publish(self, engine: str, batch: Batch, num_unknown: int) -> None:
        """Send a batch to the index; again, or late, if it was sent or made before."""

    def prefixes(
        self, hashes: Sequence[EventHash], *, group: int = 0, medium: str = MEDIUM_GPU
    ) -> Mapping[str, int]:
        """As those of `PrefixIndex`, of the batches that it has read so far."""

    def close(self) -> None:
        """End the engines and the index."""


ALL_CALLS = frozenset({"restore", "skip", "forget", "missing", "last", "state", "hits"})


@dataclass(frozen=True)
class IndexCapabilities:
    """What an index has beside `hear` and `prefixes`, and the choices it declares.

    `calls`: its other calls. `orders_batches`: it takes batches as a network brings them; without,
    each comes once and in order, and a restart is a `forget`. `is_stream`: it is a `StreamIndex`,
    and `has_replays`: its engines keep what they publish; without, it may say less after a loss.
    `has_groups`, `has_media`: it keeps keys of other groups than 0, of other media than the GPU.
    `removed_event_per`: the policies that it serves (KV-POL-3). `is_exact`: without, it may answer
    less than there is, never more, of chains in which a block is missing or was. `checks_calls`:
    illegal calls are InvalidArgumentErrors (KV-FLEET-9); without, none is made. `checks_types`: the
    same of values of wrong types; no message carries such.
    """

    calls: frozenset[str] = ALL_CALLS
    orders_batches: bool = True
    is_stream: bool = False
    has_replays: bool = True
    has_groups: bool = True
    has_media: bool = True
    removed_event_per: frozenset[str] = field(default=frozenset({"copy", "last_copy"}))
    is_exact: bool = True
    checks_calls: bool = True
    checks_types: bool = True
