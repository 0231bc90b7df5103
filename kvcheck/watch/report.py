"""The report of a monitor."""

from __future__ import annotations

from dataclasses import dataclass

from kvcheck.rulebook import titled
from kvspec.errors import MonitorViolation


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
