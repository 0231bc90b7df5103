"""Records of the tests: read, with one thing changed, made again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvcheck.discovery import find_implementation
from kvcheck.play.compare import Mismatch
from kvcheck.play.recorder import Recorder
from kvcheck.records.select import shipped_records
from kvspec.record import Header, Operation
from kvspec.record_file import read_trace


@dataclass(frozen=True)
class Tape:
    header: Header
    operations: tuple[Operation, ...]

    @classmethod
    def read(cls, path: Path) -> Tape:
        lines = list(read_trace(path))
        header = lines[0]
        assert isinstance(header, Header)
        return cls(header, tuple(line for line in lines if isinstance(line, Operation)))

    def altered(self, index: int, change: Callable[[Operation], Operation]) -> Tape:
        operations = list(self.operations)
        operations[index] = change(operations[index])
        return replace(self, operations=tuple(operations))


def made_again(path: Path) -> Recorder:
    tape = Tape.read(path)
    again = Recorder(
        find_implementation("kvref"),
        tape.header.config,
        scenario=tape.header.scenario,
        seed=tape.header.seed,
    )
    for operation in tape.operations:
        again.play(operation.name, operation.request_id, **operation.arguments)
    return again


def assert_is_made_again(path: Path) -> None:
    """Make the record again, and compare all but the version that made it."""
    again, tape = made_again(path), Tape.read(path)
    assert replace(again.header, source="") == replace(tape.header, source="")
    assert again.operations == [replace(operation, line=0) for operation in tape.operations]


Lines = list[dict[str, Any]]


def lines_of(path: Path) -> Lines:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, lines: Lines) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def spoil(lines: Lines, change: str) -> None:
    """Do what `change 3 op = "look"`, `remove 4 args status`, `remove 2-5` or `remove all` says."""
    asked, _, value = change.partition(" = ")
    verb, line, *path = asked.split()
    if verb == "repeat":
        lines.append(lines[int(line) - 1])
    elif not path:
        first, _, end = line.partition("-")
        lines[:] = [] if line == "all" else [*lines[: int(first) - 1], *lines[int(end or first) :]]
    else:
        *outer, last = [int(step) if step.isdigit() else step for step in path]
        target: Any = lines[int(line) - 1]
        for step in outer:
            target = target[step]
        if verb == "remove":
            del target[last]
        else:
            target[last] = json.loads(value)


SMALL = shipped_records() / "life_of_blocks.jsonl"
LARGE = shipped_records() / "identities.jsonl"


def fields(mismatch: Mismatch | None) -> list[str]:
    assert mismatch is not None
    return [difference.field for difference in mismatch.differences]


def observed(op: Operation, **changes: Any) -> Operation:
    return replace(op, observed=replace(op.observed, **changes))


def otherwise(value: Any) -> Iterator[Any]:
    """Yield a plain value with one thing changed: a number by as little as can be, an order."""
    if isinstance(value, dict):
        for name in value:
            yield from ({**value, name: other} for other in otherwise(value[name]))
    elif isinstance(value, list):
        others = (value[:-1], value[::-1], [*value, *value[:1]])
        yield from (other for other in others if other != value)
        for place, each in enumerate(value):
            yield from ([*value[:place], one, *value[place + 1 :]] for one in otherwise(each))
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield value + 1
    elif isinstance(value, float):
        yield math.nextafter(value, math.inf)
    else:
        yield 0 if value is None else value[::-1]


def alterations(op: Operation) -> Iterator[tuple[str, Operation]]:
    """Yield an operation with one thing changed, and the field that then differs."""
    seen = op.observed
    if op.raises is not None:
        yield "error", replace(op, raises=None, message=None)
        yield "error", replace(op, raises="NotImplementedError")
    else:
        yield from (("result", replace(op, result=other)) for other in otherwise(op.result))
        if op.name != "new_request":  # which a record needs
            yield "error", replace(op, result=None, raises="ValueError")
    for name in ("num_free_blocks", "usage", "dup_order"):
        if getattr(seen, name) is not None:
            others = otherwise(getattr(seen, name))
            yield from ((name, observed(op, **{name: other})) for other in others)
    for name, value in {"free_queue": [2, 2], **seen.state}.items():
        others = otherwise(value)
        yield from (
            (f"state.{name}", observed(op, state={**seen.state, name: other})) for other in others
        )


PATH = Path(__file__).with_name("planning.jsonl")
HEADER, *RECORDS = [json.loads(line) for line in PATH.read_text("utf-8").splitlines()]
INPUTS: dict[str, Any] = {record["fn"]: record["input"] for record in RECORDS}
"""By function; the last record's, which may be one that fails."""

SPEC, _ = INPUTS["merge"]["specs"]
MEMORY = INPUTS["estimate_max_model_len"]
CONFIG = MEMORY["config"]
CACHE = INPUTS["get_kv_cache_capacity"]["kv_cache_config"]


def written(path: Path, *records: dict[str, Any]) -> Path:
    numbered = [{**record, "id": position} for position, record in enumerate(records)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [HEADER, *numbered]))
    return path
