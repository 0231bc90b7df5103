"""Replay planning records against an implementation's planner.

Every record is independent. Errors are compared by class, not message: ValueError and
NotImplementedError must be what `except` would catch; where the record has an AssertionError, any
typed error of the contract is right. A record marked with a quirk is left out: it neither passes
nor fails. Inputs are built again from their members, so that a latent's padding follows from its
alignment (KV-PLAN-1), whatever padding the record contains.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from kvcheck.play.compare import Difference, Mismatch, compare_values, describe_error
from kvspec.codec import under_policy
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import KVSpecError
from kvspec.files.objects import Where, checked_members
from kvspec.interface import Feature, Implementation
from kvspec.planning import Planner, PlanningConfig
from kvspec.planning_functions import FUNCTIONS, Input, PlanningFunction
from kvspec.policy import Policy
from kvspec.record import PlanningHeader, PlanningRecord
from kvspec.record_file import read_planning
from kvspec.specs import MLAAttentionSpec, SlidingWindowMLASpec, UniformTypeKVCacheSpecs

_ERRORS: Mapping[str, type[Exception]] = {
    "ValueError": ValueError,
    "NotImplementedError": NotImplementedError,
    "AssertionError": KVSpecError,
}


@dataclass(frozen=True)
class PlanningResult:
    """The result of one file.

    `num_quirky`: number marked with a quirk. `lacking`: number left out, for `lacks`. `reason`: why
    none could be tried although planning is declared.
    """

    path: Path
    passed: int
    failed: int
    num_quirky: int
    lacking: int = 0
    mismatches: tuple[Mismatch, ...] = ()
    reason: str = ""

    @property
    def lacks(self) -> tuple[str, ...]:
        return (Feature.PLANNING.value,) if self.lacking else ()


def replay_planning(
    path: Path,
    implementation: Implementation,
    *,
    policy: Policy | None = None,
    fail_fast: bool = False,
) -> PlanningResult:
    """Call the planner with every record of `path`. Raises FormatError if it is malformed.

    `policy` applies to a record that names none; None: the profile `vllm-0.24`. `fail_fast` stops
    calling at the first mismatch; the rest of the file is still read.
    """
    has_planning = Feature.PLANNING in implementation.capabilities.features
    planner = implementation.planner
    reason = ""
    if has_planning and planner is None:
        reason = f"{implementation.capabilities.name} has no planner"
    passed = failed = num_quirky = lacking = 0
    mismatches: list[Mismatch] = []
    for record in read_planning(path):
        if isinstance(record, PlanningHeader):
            continue
        where = Where(str(path), record.line)
        function, values = _prepare(record, where, policy)
        if record.quirks:
            num_quirky += 1
        elif not has_planning:
            lacking += 1
        elif planner is None:
            failed += 1
        elif not (fail_fast and failed):
            found = _compare(record, where, function, values, planner)
            passed += not found
            failed += bool(found)
            if found:
                mismatches.append(_mismatch(record, where, found))
    return PlanningResult(path, passed, failed, num_quirky, lacking, tuple(mismatches), reason)


def _prepare(
    record: PlanningRecord, where: Where, policy: Policy | None
) -> tuple[PlanningFunction, Input]:
    if record.function not in FUNCTIONS:
        raise where.member("fn").error(f"unknown function {record.function!r}")
    function = FUNCTIONS[record.function]
    given = under_policy(dict(record.input), policy)
    return function, checked_members(given, where.member("input"), function.checks, {})


def _built_anew(value: Any, planner: Planner) -> Any:
    """Return the value with its latents padded for their alignment alone, as the planner does."""
    if isinstance(value, tuple | list):
        return type(value)(_built_anew(item, planner) for item in value)
    if isinstance(value, MLAAttentionSpec | SlidingWindowMLASpec):
        if value.alignment is None or value.page_size_padded is None:
            return value
        given = replace(value, page_size_padded=None)
        return planner.spec_properties(given, PlanningConfig(1, 1)).normalized_spec
    if isinstance(value, KVCacheConfig | KVCacheGroup | UniformTypeKVCacheSpecs):
        parts = {part.name: getattr(value, part.name) for part in fields(value)}
        return replace(value, **{name: _built_anew(part, planner) for name, part in parts.items()})
    return value


def _compare(
    record: PlanningRecord,
    where: Where,
    function: PlanningFunction,
    values: Input,
    planner: Planner,
) -> list[Difference]:
    """Call the planner and compare; returns no differences if the result is as recorded."""
    expected = None
    if record.raises is None:
        expected = function.expected(record.output, where.member("output"))
    try:
        values = {name: _built_anew(value, planner) for name, value in values.items()}
        got = function.recorded.write(function.call(planner, values))
    except Exception as error:  # whatever an implementation raises counts as its result
        if record.raises is not None and isinstance(error, _ERRORS[record.raises]):
            return []
        wanted = "none" if record.raises is None else _describe_expected(record)
        return [Difference("error", wanted, describe_error(error))]
    if record.raises is not None:
        return [Difference("error", _describe_expected(record), f"none, but {got!r}"[:500])]
    return list(compare_values("output", expected, got))


def _describe_expected(record: PlanningRecord) -> str:
    return f"{record.raises} (recorded message: {record.message})"


def _mismatch(record: PlanningRecord, where: Where, found: list[Difference]) -> Mismatch:
    return Mismatch(
        file=where.file,
        line=record.line,
        what=f"record {record.id}",
        call=record.function,
        arguments=record.input,
        differences=tuple(found),
    )
