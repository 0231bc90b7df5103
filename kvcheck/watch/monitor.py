"""The manager that an engine uses in place of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from kvcheck.hazards.lines import Line
from kvcheck.watch.forwarding import Forwarding
from kvcheck.watch.requests import Describe, described
from kvcheck.watch.session import MonitorReport, Session
from kvspec.audit import unwrapped
from kvspec.errors import InvalidArgumentError, MonitorViolation
from kvspec.interface import KVCacheManager

BASE = (
    *("config", "none_hash", "num_free_blocks", "usage"),
    *("get_computed_blocks", "allocate_slots", "free", "get_blocks"),
)
"""Members of every manager, whatever features it lacks."""


def monitor(
    manager: KVCacheManager,
    every: int = 1,
    *,
    record: str | os.PathLike[str] | None = None,
    on_violation: Literal["raise"] | Callable[[MonitorViolation], object] = "raise",
    describe: Describe = described,
    history: int = 500,
) -> Monitor:
    """Watch `manager`: each call is passed on unchanged, and checked afterwards.

    After every call: the result names blocks of the pool; a newly allocated block has one owner;
    free and held blocks are all blocks; a hit holds its tokens, all of them written; granted tokens
    have slots; an error or a refusal changes no list and no number of free blocks (except for
    blocks that left a window); released and popped blocks are those that were held.

    After each `every`-th call, an audit, O(pool): all of `kvspec.invariants`, all of
    `kvspec.transitions` around that one call, the state agrees with the results, and every running
    request can still read all that it needs. The event stream is compared with the cached keys
    (KV-EVT-7) when events are taken, at most as often. Between audits, what a call does to keys and
    to the order of the free queue is not seen; it is seen at the next audit if it lasts.

    A manager that cannot show a snapshot is never audited, and recorded only from its beginning, as
    long as that is within twice `history` calls. At the first violation a record of the last
    `history` to twice as many calls is written, and a MonitorViolation, which is an
    InvariantViolation with the file, is raised instead of returning the result. From then on calls
    only go through.

    Where hits may end inside a block, content is not followed, and blocks are counted once the
    copies of a step are taken.

    - `record`: the file, or a folder. None: the folder in KVSPEC_MONITOR_DIR, else the current one.
    - `on_violation`: "raise", or a function that is given the MonitorViolation; the engine then
      continues with the result.
    - `describe`: from a request to the `RequestInput` it was made from, None if unknown; without
      it, salts, adapters and items are taken from the member `input` of requests if they have one.
    - `history`: calls; memory grows with it, with the pool and with the tokens of running requests.

    Everything that is called on the manager must be called on the monitor. Audits and monitors
    already around `manager` are taken off. Raises InvalidArgumentError for arguments out of their
    domain, InvariantViolation if the state is broken already.
    """
    if not all(hasattr(manager, name) for name in BASE):  # a wrapper may forward the others
        raise InvalidArgumentError("manager", manager, "a KVCacheManager")
    for name, value in (("every", every), ("history", history)):
        if type(value) is not int or value < 1:
            raise InvalidArgumentError(name, value, "an int of at least 1")
    if on_violation != "raise" and not callable(on_violation):
        raise InvalidArgumentError("on_violation", on_violation, '"raise" or a function')
    session = Session(
        unwrapped(manager),
        every=every,
        record=None if record is None else Path(record),
        on_violation=None if on_violation == "raise" else on_violation,
        describe=describe,
        history=history,
    )
    return Monitor(session)  # type: ignore[abstract]  # made of the interface


class Monitor(Forwarding):
    """A watched `KVCacheManager` with `report`, `write_record`, `close`, and `with`; see `monitor`.

    `inner` is the manager itself. Other members are those of `inner`. A copy of a monitor is a copy
    of `inner`, which is not watched.
    """

    def __init__(self, session: Session) -> None:
        super().__init__(session.manager, session.perform)
        self._session = session

    def report(self) -> MonitorReport:
        return self._session.report()

    def write_record(self, path: str | os.PathLike[str]) -> int:
        """Write the last calls as a record although nothing is wrong; the number of operations.

        `kvspec golden PATH --impl kvref` then says whether the reference does the same. The calls
        are those that a violation would be recorded with now (`history`), or was recorded with.
        Raises UnrecordableError when no record can say what happened, and OSError.
        """
        return self._session.write_record(Path(path))

    def follow_copies(self, **sizes_tokens: int) -> None:
        """Check the engine's copies and steps from now on, by the rules of spec/rules/hazards.md.

        Pools and the tokens of their blocks; the first is the manager's. Which request has which of
        its blocks follows from the calls. The engine issues the rest, and a hazard is a violation.
        """
        self._session.follow_copies(sizes_tokens)

    def issue(self, line: Line) -> None:
        """Note that the engine issued work or learned that it ended (docs/hazards.md)."""
        self._session.issue(line)

    def close(self) -> None:
        """Audit a last time and stop checking; calls go through as before."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:  # what failed already must not be hidden by what an audit finds
            self.close()
