"""The lines of record files: from JSON to the values of `kvspec.record`, and back.

Decoding checks every member; a problem is a FormatError that names file, line and field.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from kvspec.codec import decode_manager_config, encode_manager_config
from kvspec.event_codec import decode_event
from kvspec.files.objects import (
    Check,
    Where,
    anything,
    checked_members,
    count,
    hex_bytes,
    hex_text,
    integer,
    list_of,
    null,
    object_of,
    optional,
    real,
    shown,
    structure,
    text,
)
from kvspec.files.shapes import Form, Shape, as_it_is
from kvspec.operations import OPERATIONS, check_arguments
from kvspec.record import (
    LATER_VERSION,
    NEWEST_VERSION,
    PLANNING_FORMAT,
    START_VERSION,
    STATE_FIELDS,
    TRACE_FORMAT,
    UNCOMPARED,
    VERSION,
    Finding,
    Footer,
    Header,
    Observed,
    Operation,
    PlanningHeader,
    PlanningRecord,
)
from kvspec.snapshot_codec import decode_snapshot, encode_snapshot

TRACE_ERRORS = ("ValueError", "KeyError", "LookupError", "NotImplementedError")
MOST_BLOCKS = 2**20
"""Limit on the blocks of a record's pool: a manager allocates memory for each."""

PLANNING_ERRORS = ("ValueError", "NotImplementedError", "AssertionError")

_STATE_CHECKS: Mapping[str, Check[Any]] = {
    "free_queue": list_of(count),
    "ref_cnt": list_of(count),
    "block_hash": list_of(optional(hex_text)),
    "req_blocks": object_of(list_of(list_of(count))),
    "num_cached_block": object_of(list_of(optional(count))),
    "hash_tokens": list_of(optional(count)),
    "more_keys": object_of(list_of(hex_text)),
}


def decode_header(value: object, where: Where) -> Header | PlanningHeader:
    """Decode the header of either format, after checking format and version."""
    if not isinstance(value, dict) or value.get("type") != "header":
        raise where.error('the first line must be a header: an object with "type": "header"')
    kind = value.get("format")
    if kind not in (TRACE_FORMAT, PLANNING_FORMAT):
        raise where.member("format").error(
            f"{shown(kind)} is not {TRACE_FORMAT!r} or {PLANNING_FORMAT!r}"
        )
    of_traces = (VERSION, START_VERSION, LATER_VERSION, NEWEST_VERSION)
    versions = of_traces if kind == TRACE_FORMAT else (VERSION,)
    if value.get("version") not in versions or type(value["version"]) is not int:
        known = ", ".join(map(str, versions))
        raise where.member("version").error(
            f"{shown(value.get('version'))}: this kvspec reads version {known};"
            " convert the file or install a kvspec that reads it"
        )
    common: dict[str, Check[Any]] = {"type": text, "format": text, "version": integer}
    if kind == PLANNING_FORMAT:
        found = checked_members(
            value, where, {**common, "source": text}, {"seed": integer, "num_records": count}
        )
        return PlanningHeader(found["source"], found.get("seed", 0))
    return _decode_trace_header(value, where, common)


def _decode_trace_header(
    value: Mapping[str, Any], where: Where, common: Mapping[str, Check[Any]]
) -> Header:
    later: dict[str, Check[Any]] = {}
    if value["version"] >= START_VERSION:
        later = {"start": decode_snapshot}
    found = checked_members(
        value,
        where,
        {
            **common,
            "source": text,
            "scenario": text,
            "seed": integer,
            "config": decode_manager_config,
            "none_hash": hex_bytes,
            "initial": anything,
        },
        {"quirks": list_of(text), "raises": _one_of(TRACE_ERRORS), "message": text, **later},
    )
    told = {name: member for name, member in found.items() if name not in ("type", "format")}
    quirks = tuple(found.get("quirks", ()))
    header = Header(**{**told, "initial": None, "quirks": quirks})
    at = where.member("initial")
    if header.raises is not None:
        if header.start is not None:
            raise where.member("start").error("a state, although building the manager must fail")
        null(found["initial"], at)
        return header
    blocks = found["config"].kv_cache.num_blocks
    if blocks > MOST_BLOCKS:
        raise where.member("config.num_blocks").error(f"{blocks}: must be at most {MOST_BLOCKS}")
    if found["initial"] is None and header.start is None and header.version >= START_VERSION:
        return header
    if not isinstance(found["initial"], dict):
        raise at.error(f"{shown(found['initial'])} is not an object")
    initial = _decode_observed(found["initial"], at, header)
    complete = STATE_FIELDS if header.version > LATER_VERSION else header.state_fields
    missing = [name for name in complete if header.is_small and name not in initial.state]
    if missing:
        raise at.member(f"state.{missing[0]}").error("missing; the initial state is complete")
    return replace(header, initial=initial)


def decode_operation(value: object, where: Where, header: Header, index: int) -> Operation:
    if header.raises is not None:
        raise where.error("an operation, although building the manager must fail")
    if not isinstance(value, dict):
        raise where.error(f"{shown(value)} is not an object")
    name = text(value.get("op"), where.member("op"))
    if name not in OPERATIONS or OPERATIONS[name].since > header.version:
        raise where.member("op").error(f"unknown operation {name!r}")
    shape = OPERATIONS[name]
    uncompared: list[str] = []
    if header.version >= START_VERSION and "uncompared" in value:
        uncompared = list_of(_one_of(UNCOMPARED))(value["uncompared"], where.member("uncompared"))
    if header.is_stateless and "state" not in uncompared:
        raise where.member("uncompared").error("no 'state', although the header shows none")
    finding = None
    if header.version >= START_VERSION and "finding" in value:
        finding = Finding(**_FINDING(value["finding"], where.member("finding")))
    observed = {key: item for key, item in value.items() if key in _OBSERVED_MEMBERS}
    required: dict[str, Check[Any]] = {"i": integer, "op": text, "args": anything}
    if shape.on_request:
        required["req"] = text
    not_here = _OBSERVED_MEMBERS if header.version < START_VERSION else _OBSERVED_OR_NOT
    rest = {key: item for key, item in value.items() if key not in not_here}
    found = _with_outcome(rest, where, required, {"result": shape.result}, TRACE_ERRORS)
    if found["i"] != index:
        raise where.member("i").error(f"{found['i']} where {index} is due")
    result = value.get("result")  # as it is written
    if name == "take_events" and result is not None:
        for position, event in enumerate(result):
            decode_event(
                event,
                where.member("result").item(position),
                int_hashes=header.config.int_event_hashes,
            )
    return Operation(
        index=index,
        name=name,
        request_id=found.get("req"),
        arguments=check_arguments(shape, found["args"], where.member("args")),
        observed=_decode_observed(observed, where, header, has_state="state" not in uncompared),
        result=result,
        raises=found.get("raises"),
        message=found.get("message"),
        quirks=tuple(found.get("quirks", ())),
        line=where.line or 0,
        uncompared=tuple(uncompared),
        finding=finding,
    )


_OBSERVED_MEMBERS = (
    "num_free_blocks",
    "usage",
    "state",
    "dup_order",
    "state_sha256",
    "state_parts",
)
_OBSERVED_OR_NOT = (*_OBSERVED_MEMBERS, "uncompared", "finding")
_FINDING = structure({"rule": text, "expected": text, "observed": text})


def _decode_observed(
    value: Mapping[str, Any], where: Where, header: Header, *, has_state: bool = True
) -> Observed:
    """Decode the recorded state: the state itself or, in large pools, its hash."""
    required: dict[str, Check[Any]] = {"num_free_blocks": count, "usage": real}
    possible: dict[str, Check[Any]] = {}
    if not has_state:
        pass
    elif header.is_small:
        state = structure({}, {name: _STATE_CHECKS[name] for name in header.state_fields})
        possible = {"state": state, "dup_order": object_of(_duplicates)}
    else:
        required["state_sha256"] = hex_text
        possible = {"state_parts": structure({}, dict.fromkeys(header.state_fields, hex_text))}
    found = checked_members(dict(value), where, required, possible)
    return _OBSERVED.made(found, where)


def _duplicates(value: object, where: Where) -> list[int]:
    """Check the blocks under one key."""
    blocks = list_of(count)(value, where)
    if len(blocks) < 2:
        raise where.error(f"{blocks}: a key is listed when at least two blocks carry it")
    return blocks


def decode_footer(value: object, where: Where, operations: int) -> Footer:
    """Decode the footer, whose count must agree with the lines before it."""
    found = checked_members(
        value, where, {"type": text, "num_ops": count, "coverage": object_of(integer)}, {}
    )
    if found["num_ops"] != operations:
        raise where.member("num_ops").error(f"{found['num_ops']}, but {operations} came before")
    return Footer(found["num_ops"], found["coverage"])


def decode_planning_record(value: object, where: Where) -> PlanningRecord:
    """Decode a planning line; the caller of the function checks its input."""
    required: dict[str, Check[Any]] = {"id": integer, "fn": text, "input": object_of(anything)}
    found = _with_outcome(value, where, required, {"output": anything}, PLANNING_ERRORS)
    found["quirks"] = tuple(found.get("quirks", ()))
    return PlanningRecord(function=found.pop("fn"), line=where.line or 0, **found)


def _with_outcome(
    value: object,
    where: Where,
    required: Mapping[str, Check[Any]],
    answer: Mapping[str, Check[Any]],
    errors: tuple[str, ...],
) -> dict[str, Any]:
    """Check the members of a call with its result, or with `raises` instead."""
    marks: dict[str, Check[Any]] = {"quirks": list_of(text)}
    if isinstance(value, dict) and "raises" in value:
        answer = {"raises": _one_of(errors)}
        marks["message"] = text
    return checked_members(value, where, {**required, **answer}, marks)


def _one_of(allowed: tuple[str, ...]) -> Callable[[object, Where], str]:
    """Return a check for one of these words."""

    def inner(value: object, where: Where) -> str:
        if value not in allowed:
            raise where.error(f"{shown(value)} is not one of {', '.join(allowed)}")
        return str(value)

    return inner


def encode_header(header: Header) -> dict[str, Any]:
    line: dict[str, Any] = {
        "type": "header",
        "format": TRACE_FORMAT,
        "version": header.version,
        "source": header.source,
        "scenario": header.scenario,
        "seed": header.seed,
        "config": encode_manager_config(header.config),
        "none_hash": header.none_hash.hex(),
        "initial": None if header.initial is None else _OBSERVED.write(header.initial),
        "quirks": list(header.quirks),
    }
    if header.start is not None:
        line["start"] = encode_snapshot(header.start)
    return {**line, **_encode_error(header.raises, header.message)}


def encode_operation(operation: Operation) -> dict[str, Any]:
    line: dict[str, Any] = {"i": operation.index, "op": operation.name}
    if operation.request_id is not None:
        line["req"] = operation.request_id
    line["args"] = dict(operation.arguments)
    if operation.raises is None:
        line["result"] = operation.result
    line.update(_encode_error(operation.raises, operation.message))
    line.update(_OBSERVED.write(operation.observed))
    if operation.uncompared:
        line["uncompared"] = list(operation.uncompared)
    if operation.finding is not None:
        line["finding"] = asdict(operation.finding)
    if operation.quirks:
        line["quirks"] = list(operation.quirks)
    return line


def _encode_error(raises: str | None, message: str | None) -> dict[str, Any]:
    """Return `raises` and `message`, without those that are None."""
    pairs = {"raises": raises, "message": message}
    return {name: value for name, value in pairs.items() if value is not None}


_PLAIN = Form(anything, dict)
_OBSERVED = Shape(
    Observed,
    forms={
        int: Form(count, as_it_is),
        float: Form(real, float),
        str | None: Form(hex_text, as_it_is),
        **dict.fromkeys(("state", "dup_order", "state_parts"), _PLAIN),
    },
    sometimes=("state", "dup_order", "state_sha256", "state_parts"),
)
"""The members that show the manager's state."""
