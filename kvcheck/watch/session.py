"""One watched run: when to look at the state, what to keep for the record, what to do at an end."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, TypeAlias

from kvcheck.hazards.checker import HazardChecker
from kvcheck.hazards.lines import Ended, Given, Line, Place, Pools, Run
from kvcheck.play.state import View
from kvcheck.rulebook import titled
from kvcheck.watch.calls import LISTS, Call, note, with_lists
from kvcheck.watch.history import History
from kvcheck.watch.ownership import Lists, violated
from kvcheck.watch.requests import Describe
from kvcheck.watch.watch import Watch
from kvcheck.watch.writing import UnrecordableError
from kvspec.errors import (
    InvalidArgumentError,
    InvariantViolation,
    MonitorViolation,
    UnsupportedError,
)
from kvspec.interface import KVCacheManager
from kvspec.invariants import check_snapshot
from kvspec.record import Footer
from kvspec.request import Request
from kvspec.snapshot import Snapshot

FOLDER_VARIABLE = "KVSPEC_MONITOR_DIR"
"""The variable that names the default folder of records."""

WEIGHED_EVERY = 64
"""Operations between two estimates of the memory in use, which cost as much as an audit."""

OnViolation: TypeAlias = Callable[[MonitorViolation], object]


class Session:
    def __init__(
        self,
        manager: KVCacheManager,
        *,
        every: int,
        record: Path | None,
        on_violation: OnViolation | None,
        describe: Describe,
        history: int,
    ) -> None:
        self.manager = manager
        self.every = every
        self.record = record
        self.on_violation = on_violation
        self.is_watching = True
        self.violation: MonitorViolation | None = None
        self._operations = self._audits = self._peak_bytes = 0
        self._since_audit = self._since_events = 0
        self._manager_seconds = self._checking_seconds = 0.0
        started = perf_counter()
        self.shows_state = True
        snapshot = self._snapshot()
        if snapshot is not None:
            check_snapshot(manager.config, snapshot)
        self._last: Snapshot | None = snapshot  # the state now, until the next call
        self.watch = Watch(manager, describe, snapshot)
        self.moving: Moving | None = None
        view = None if snapshot is None else self._view(snapshot)
        self.history = History(manager, describe, view, length=history)
        self._checking_seconds += perf_counter() - started

    def perform(self, call: Call, call_manager: Callable[[], Any]) -> Any:
        """Make one call of the manager and check what it did."""
        if not self.is_watching:
            return call_manager()
        began = perf_counter()
        is_due = self._is_due(call.name)
        before = (self._last or self._snapshot()) if is_due else None
        self._last = None
        self._checked(lambda: self.watch.before(call), call)
        asked = perf_counter()
        call.make(call_manager)
        answered = perf_counter()
        try:
            self._checked(lambda: self._look(call, before, is_due=is_due), call)
        finally:
            self._operations += 1
            self._manager_seconds += answered - asked
            self._checking_seconds += perf_counter() - began - (answered - asked)
        return call.told()

    def follow_copies(self, sizes_tokens: Mapping[str, int]) -> None:
        owned = self.watch.ownership
        self.moving = Moving(owned.num_blocks, owned.lists, sizes_tokens)

    def issue(self, line: Line) -> None:
        if self.moving is None:
            raise InvalidArgumentError("line", line, "one after follow_copies")
        moving = self.moving
        self._checked(lambda: moving.issue(line), Call("issue", None, {}))

    def close(self) -> None:
        if not self.is_watching:
            return
        began = perf_counter()
        call = Call("close", None, {})
        self._checked(lambda: self._look(call, None, is_due=True), call)
        self.is_watching = False
        self._checking_seconds += perf_counter() - began

    def report(self) -> MonitorReport:
        return MonitorReport(
            self._operations,
            self._audits,
            self._manager_seconds,
            self._checking_seconds,
            self._peak_bytes,
            self.violation,
        )

    def _is_due(self, name: str) -> bool:
        """Return whether the state is checked after this call.

        Events can be compared with the state only where they are taken.
        """
        self._since_audit += 1
        self._since_events += 1
        due = self._since_audit >= self.every or self.history.is_full
        if name == "take_events" and self.watch.config.enable_events:
            due = due or self._since_events >= self.every or not self.watch.fold_is_exact
            self._since_events = 0 if due else self._since_events
        if due:
            self._since_audit = 0
        return due and self.shows_state

    def _look(self, call: Call, before: Snapshot | None, *, is_due: bool) -> None:
        """Make all checks after a call, and note it for the record."""
        call.look(self.manager)
        after = self._snapshot() if is_due else None
        view = None
        if after is not None and self.history.is_small:
            view = self._view(after, call)
        self._note(call, view)
        if isinstance(call.error, InvariantViolation):
            raise call.error  # the manager found it itself
        if after is not None:
            self.watch.state(call, before, after)
        held, name = self.watch.ownership.lists, getattr(call.request, "request_id", "")
        before_call = held.get(name, ())
        self.watch.after(call)
        if self.moving is not None:
            self.moving.note(call, before_call, held.get(name, ()))
        if after is not None:
            self.watch.agreement(call.name, after)
            self._last = after
            self._audits += 1
            if self.history.is_full:
                self.history.begin_part(view or self._view(after, call))
        if self._operations % WEIGHED_EVERY == 0:
            size = self.watch.size_bytes + self.history.size_bytes
            self._peak_bytes = max(self._peak_bytes, size)

    def _checked(self, check: Callable[[], None], call: Call) -> None:
        """Run a check; what it finds is the end of watching."""
        if not self.is_watching:
            return
        try:
            check()
        except InvariantViolation as found:
            self._end(found, call)

    def _note(self, call: Call, view: View | None) -> None:
        if call.name in LISTS:  # asked too often; see `_note_lists`
            return
        try:
            self.history.add(note(call), view)
        except Exception as error:  # a result of a shape unknown to records, or illegal arguments
            if call.error is None:
                self.history.break_off(f"records cannot say what {call.name} answered: {error!r}")

    def _end(self, found: InvariantViolation, call: Call) -> None:
        self.is_watching = False
        record, hint = self._write(found, call)
        self.violation = MonitorViolation(found, call.describe(), record, hint)
        if self.on_violation is None:
            raise self.violation from (call.error or found)
        self.on_violation(self.violation)

    def _write(self, found: InvariantViolation, call: Call) -> tuple[Path | None, str]:
        """Write the record: its path, and what to do with it; or None, and why there is none."""
        try:
            if call.request is not None and call.error is None:
                self._note_lists(call.request)
            path = self._path(found.rule)
            coverage = {f"violation:{found.rule}": 1}
            self._write_history(path, f"monitor {found.rule}", coverage, self._snapshot())
        except UnrecordableError as error:
            return None, f"no record: {error}"
        except Exception as error:  # a full disk, a manager that cannot be asked any more
            return None, f"no record: {error!r}"
        return path, f"replay it with: kvspec golden {path} --impl IMPL"

    def write_record(self, path: Path) -> int:
        """Write the last calls now; the number of operations. Raises UnrecordableError, OSError."""
        # After watching has ended, later calls are unknown, so the state may be different.
        snapshot = self._snapshot() if self.is_watching else None
        return self._write_history(path, "monitor", {}, snapshot).num_ops

    def _write_history(
        self, path: Path, scenario: str, coverage: Mapping[str, int], snapshot: Snapshot | None
    ) -> Footer:
        last = None if snapshot is None else self._view(snapshot)
        kind = type(self.manager)
        source = f"{kind.__module__}.{kind.__qualname__} under kvcheck.monitor"
        return self.history.write(path, source, scenario, coverage, last)

    def _note_lists(self, request: Request) -> None:
        """Ask for the lists of the request, as the checks did, in the way of records."""
        call = Call.of("get_blocks", request, {})
        call.look(self.manager)
        self.history.add(note(with_lists(call, self.manager)), None)

    def _path(self, rule: str) -> Path:
        """Return the file to write: the given one, or the first free name in a folder."""
        if self.record is not None and not self.record.is_dir():
            return self.record
        folder = self.record or Path(os.environ.get(FOLDER_VARIABLE) or ".")
        folder.mkdir(parents=True, exist_ok=True)
        number, path = 1, folder / f"kvspec-violation-{rule}.jsonl"
        while path.exists():
            number += 1
            path = folder / f"kvspec-violation-{rule}-{number}.jsonl"
        return path

    def _snapshot(self) -> Snapshot | None:
        """Return the state; None from then on if the manager does not show it."""
        if not self.shows_state:
            return None
        try:
            return self.manager.snapshot()
        except UnsupportedError:
            self.shows_state = False
            return None

    def _view(self, snapshot: Snapshot, call: Call | None = None) -> View:
        manager = self.manager
        free = manager.num_free_blocks if call is None else call.num_free_blocks
        usage = manager.usage if call is None else call.usage
        return View(free, usage, snapshot)


@dataclass(frozen=True)
class MonitorReport:
    """Counts so far.

    - `operations`: calls of the manager that were watched; `audits`: those after which the whole
      state was checked.
    - `manager_seconds`: spent in the manager; `checking_seconds`: spent in the monitor.
    - `peak_memory_bytes`: the most that the monitor held, estimated at audits.
    - `violation`: the first, after which nothing is checked any more; None if there is none.
    """

    operations: int
    audits: int
    manager_seconds: float
    checking_seconds: float
    peak_memory_bytes: int
    violation: MonitorViolation | None

    def __str__(self) -> str:
        seconds = self.manager_seconds + self.checking_seconds
        share = self.checking_seconds / seconds if seconds else 0.0
        found = self.violation
        state = "no violation" if found is None else f"violation: {titled(found.rule)}"
        return (
            f"{self.operations} operations, {self.audits} audits, {state};"
            f" {self.checking_seconds:.3f} s of {seconds:.3f} s ({share:.0%}) spent in checking,"
            f" at most about {self.peak_memory_bytes / 2**20:.1f} MiB"
        )


class Moving:
    """The work of an engine, with the owners that the calls of its manager show.

    `sizes_tokens`: of the blocks of each pool; the first pool is the manager's. What is in it at
    the beginning counts as written.
    """

    def __init__(
        self, num_blocks: int, held: Mapping[str, Lists], sizes_tokens: Mapping[str, int]
    ) -> None:
        self.checker, self.num_lines = HazardChecker(), 0
        self.pool, self.size = next(iter(sizes_tokens.items()))
        self.sizes_tokens = dict(sizes_tokens)
        self._awaited: set[str] = set()
        self._pending: list[Given] = []
        self._take(Pools(self.sizes_tokens))
        self._take(Run("before", "before", writes=self._places(range(1, num_blocks))))
        self._take(Ended("before"))
        for name, lists in held.items():
            self._take(Given(name, self._places(chain.from_iterable(lists)), is_hit=True))

    def note(self, call: Call, before: Lists, after: Lists) -> None:
        """Note what a call gives or takes back, from the request's lists before and after it."""
        if call.request is None:
            return
        name, held = call.request.request_id, set(chain.from_iterable(before))
        if call.name == "allocate_slots" and call.result is not None:
            hits = call.arguments["new_computed_blocks"]
            shared = [] if hits is None else list(chain.from_iterable(hits.groups))
            new = set(chain.from_iterable(after)) - held - set(shared)
            new.update(chain.from_iterable(call.result.groups))
            self._pending.append(Given(name, self._places(shared), is_hit=True))
            self._pending.append(Given(name, self._places(sorted(new))))
        elif held and not any(after):
            self._pending.append(Given(name, self._places(sorted(held)), is_back=True))

    def issue(self, line: Line) -> None:
        """Check one line of the engine's. Until a block is written anew its old content is there.

        Raises InvariantViolation with the rule of a hazard, InvalidArgumentError for an unknown id.
        """
        writes = line.writes if isinstance(line, Run) else ()
        is_failure = isinstance(line, Ended) and not line.ok
        if is_failure or any(place.pool == self.pool for place in writes):
            pending, self._pending = self._pending, []
            for each in pending:
                self._take(each)
        if isinstance(line, Run):  # what was forgotten has ended
            line = replace(line, after=tuple(n for n in line.after if n in self.checker.works))
            self._awaited.add(line.id)
        self._take(line)
        if isinstance(line, Ended):
            self._awaited.discard(line.id)
            self.checker.forget(self._awaited)

    def _take(self, line: Line) -> None:
        self.num_lines += 1
        for hazard in self.checker.take(line, self.num_lines):
            what = f"{hazard.place}: {hazard.what}"
            raise violated("copies_are_in_order", hazard.rule, what)

    def _places(self, blocks: Iterable[int]) -> tuple[Place, ...]:
        ids = (block for block in dict.fromkeys(blocks) if block)
        return tuple(Place(self.pool, block, 0, self.size) for block in ids)
