"""Operation records: the calls of a manager, their results, and the states afterwards.

A record file is a header, one line per operation, and a footer; a planning file is a header and one
line per call of a planning function. `spec/records.md` describes both, `kvspec.record_file` reads
and writes them. Values stay in their JSON form; only the configuration is decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvspec.config import ManagerConfig
from kvspec.snapshot import Snapshot

TRACE_FORMAT = "kv-cache-manager-trace"
PLANNING_FORMAT = "kv-cache-planning"
VERSION = 1
"""The version of planning files, and of traces that need nothing of a later one."""

START_VERSION = 2
"""The version of traces that start from a state, leave something uncompared or have a finding."""

LATER_VERSION = 3
"""The version of traces with what later engines say: two more fields of the state."""

NEWEST_VERSION = 4
"""The version of traces with a withdrawal (KV-MGR-23); they need not show those two fields."""

UNCOMPARED = ("result", "state")
"""The parts of an operation that may be left uncompared."""

SMALL_POOL_BLOCKS = 64
"""Up to this many blocks a record shows the state itself; beyond, its SHA-256."""

STATE_FIELDS = ("free_queue", "ref_cnt", "block_hash", "req_blocks", "num_cached_block")
"""The fields of the abstract state in records."""

LATER_FIELDS = ("hash_tokens", "more_keys")
"""Fields that version 3 adds: tokens that the primary key covers, and the other keys."""


@dataclass(frozen=True)
class Observed:
    """The recorded state of a manager after a call.

    `state` holds the state fields that changed (small pools; all five at the start), `dup_order`
    the blocks of each key that several blocks carry, where that changed. Large pools have
    `state_sha256` and `state_parts` instead.
    """

    num_free_blocks: int
    usage: float
    state: Mapping[str, Any] = field(default_factory=dict)
    dup_order: Mapping[str, list[int]] | None = None
    state_sha256: str | None = None
    state_parts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Header:
    """The first line: how the manager was made, and what it looked like.

    With `raises` building the manager must fail with this error, and `initial` is None. With
    `start` the manager is restored from that state, without queued events and statistics. If
    `initial` is None otherwise, the manager showed no state, and no operation compares any. `needs`
    are chapters that the trace is about and the contract does not have.
    """

    config: ManagerConfig
    none_hash: bytes
    initial: Observed | None
    source: str = "kvspec"
    scenario: str = ""
    seed: int = 0
    quirks: tuple[str, ...] = ()
    raises: str | None = None
    message: str | None = None
    start: Snapshot | None = None
    version: int = VERSION
    needs: tuple[str, ...] = ()

    @property
    def is_stateless(self) -> bool:
        """Whether the recorded manager had no snapshot."""
        return self.initial is None and self.raises is None

    @property
    def state_fields(self) -> tuple[str, ...]:
        """State fields that records of this version may show."""
        return STATE_FIELDS + (LATER_FIELDS if self.version >= LATER_VERSION else ())

    @property
    def shows_later_fields(self) -> bool:
        """Whether records show the two fields of version 3."""
        initial = self.initial
        has_them = initial is not None and {*initial.state, *initial.state_parts} >= {*LATER_FIELDS}
        return self.version == LATER_VERSION or has_them

    @property
    def is_small(self) -> bool:
        """Whether records contain the state itself, not only its hash."""
        return self.config.kv_cache.num_blocks <= SMALL_POOL_BLOCKS


@dataclass(frozen=True)
class Finding:
    """A rule that a checker found broken after an operation, in words for people."""

    rule: str
    expected: str
    observed: str


@dataclass(frozen=True)
class Operation:
    """One call and its result, or the error it `raises`.

    `uncompared`: what a replay does not compare, `result` (it includes what was queued before the
    start) or `state` (it was not recorded). `finding`: the violation that a checker found after it.
    `needs`: as in the header. `line` is its line in the file (0: not from a file).
    """

    index: int
    name: str
    request_id: str | None
    arguments: Mapping[str, Any]
    observed: Observed
    result: Any = None
    raises: str | None = None
    message: str | None = None
    quirks: tuple[str, ...] = ()
    line: int = 0
    uncompared: tuple[str, ...] = ()
    finding: Finding | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Footer:
    """The last line: how many operations there were, and informative counters."""

    num_ops: int
    coverage: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PlanningHeader:
    """The first line of a planning file."""

    source: str
    seed: int = 0


@dataclass(frozen=True)
class PlanningRecord:
    """One call of a planning function: its output, or the error it `raises`."""

    id: int
    function: str
    input: Mapping[str, Any]
    output: Any = None
    raises: str | None = None
    message: str | None = None
    quirks: tuple[str, ...] = ()
    line: int = 0
