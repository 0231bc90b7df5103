"""The report of a replay of several record files, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvcheck.records.planning import PlanningResult
from kvcheck.records.trace import TraceResult
from kvspec.profile import RECORDS_PROFILE

Result: TypeAlias = TraceResult | PlanningResult

SHOWN_MISMATCHES = 10
"""Most mismatches of a planning file that are shown without `--verbose`."""


@dataclass(frozen=True)
class Report:
    """The results of a run. A trace counts as one, a planning file as its records.

    `not_replayed`: number of files not replayed because the run stopped at its first failure.
    `profile`: name of the profile that supplied the policy of records without one.
    """

    implementation: str
    results: tuple[Result, ...]
    not_replayed: int = 0
    profile: str = RECORDS_PROFILE

    @property
    def passed(self) -> int:
        """Number of traces and planning records that matched."""
        return sum(passed for passed, _, _ in map(counts, self.results))

    @property
    def failed(self) -> int:
        """Number of traces and planning records that did not match."""
        return sum(failed for _, failed, _ in map(counts, self.results))

    @property
    def quirky(self) -> int:
        """Number of records not compared, because they or earlier ones are marked with a quirk."""
        return sum(result.num_quirky for result in self.results)

    @property
    def left_out(self) -> int:
        """Number of traces and planning records that need a feature the implementation lacks."""
        return sum(left_out for _, _, left_out in map(counts, self.results))

    @property
    def lacks(self) -> tuple[str, ...]:
        """Missing features because of which records were left out."""
        return tuple(sorted({lack for result in self.results for lack in result.lacks}))

    def closing_lines(self) -> Iterator[str]:
        """Yield what was left out, then the counts."""
        for result in self.results:
            if isinstance(result, TraceResult) and result.quirks:
                records = result.compared + result.num_quirky
                yield (
                    f"{result.path}: {result.num_quirky} of {records} records not compared, from"
                    f" the first with the quirk {', '.join(result.quirks)} on"
                )
        if self.not_replayed:
            yield f"stopped at the first failure: {self.not_replayed} files not replayed"
        if self.quirky:
            yield f"{self.quirky} records not compared, from a known quirk on"
        if self.left_out:
            lacks = ", ".join(self.lacks)
            yield f"{self.left_out} left out: {self.implementation} does not support {lacks}"
        more = f", {self.left_out} left out" if self.left_out else ""
        yield f"{self.passed} passed, {self.failed} failed{more}"

    def to_json(self) -> dict[str, Any]:
        return {
            "implementation": self.implementation,
            "profile": self.profile,
            "passed": self.passed,
            "failed": self.failed,
            "left_out": self.left_out,
            "lacks": list(self.lacks),
            "behind_quirks": self.quirky,
            "not_replayed": self.not_replayed,
            "files": [_result_json(result) for result in self.results],
        }


def counts(result: Result) -> tuple[int, int, int]:
    """Return how many passed, failed, and were left out for lack of a feature."""
    if isinstance(result, TraceResult):
        return int(result.passed), int(result.mismatch is not None), int(bool(result.lacks))
    return result.passed, result.failed, result.lacking


def result_lines(result: Result, *, verbose: bool) -> Iterator[str]:
    """Yield every mismatch of one file, and with `verbose` also what passed or was left out."""
    if result.lacks and verbose:
        yield f"{result.path}: left out, needs {', '.join(result.lacks)}"
    if isinstance(result, TraceResult):
        if result.lacks:
            return
        if result.mismatch is not None:
            yield result.mismatch.render(verbose=verbose)
        elif verbose:
            yield f"{result.path}: passed, {result.compared} operations compared"
        return
    if result.reason:
        yield f"{result.path}: all {result.failed} records fail: {result.reason}"
    shown = result.mismatches if verbose else result.mismatches[:SHOWN_MISMATCHES]
    for mismatch in shown:
        yield mismatch.render(verbose=verbose)
    if len(shown) < len(result.mismatches):
        more = len(result.mismatches) - len(shown)
        yield f"{result.path}: {more} more mismatches (-v shows all)"
    if verbose:
        yield f"{result.path}: {result.passed} records passed, {result.failed} failed"


def _result_json(result: Result) -> dict[str, Any]:
    if isinstance(result, TraceResult):
        return {
            "path": str(result.path),
            "format": "trace",
            "scenario": result.header.scenario,
            "seed": result.header.seed,
            "passed": result.passed,
            "compared": result.compared,
            "lacks": list(result.lacks),
            "behind_quirks": result.num_quirky,
            "quirks": list(result.quirks),
            "mismatch": None if result.mismatch is None else result.mismatch.to_json(),
        }
    return {
        "path": str(result.path),
        "format": "planning",
        "passed": result.passed,
        "failed": result.failed,
        "reason": result.reason,
        "left_out": result.lacking,
        "lacks": list(result.lacks),
        "behind_quirks": result.num_quirky,
        "mismatches": [mismatch.to_json() for mismatch in result.mismatches],
    }
