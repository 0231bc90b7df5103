"""Whatever is in a file, reading it ends in records or in a FormatError."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcheck.records.select import shipped_records
from kvspec.errors import FormatError
from kvspec.record_file import read_planning, read_trace
from tests.records.planner_tape import ANSWERS, HEADER

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a JSON value."""
    found = [path]
    if isinstance(value, dict):
        for name, item in value.items():
            found += places(item, (*path, name))
    elif isinstance(value, list):
        for position, item in enumerate(value[:3]):
            found += places(item, (*path, position))
    return found


def put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """`value` with one place replaced."""
    if not path:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = put(copy[path[0]], path[1:], new)
    return copy


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("records") / "spoilt.jsonl"


@pytest.mark.parametrize("name", ["life_of_blocks.jsonl", "identities.jsonl"])
@given(data=st.data())
def test_a_spoilt_trace_is_read_or_refused(name: str, file: Path, data: st.DataObject) -> None:
    """Any value, at any place of any line."""
    lines = [json.loads(line) for line in (shipped_records() / name).read_text().splitlines()]
    position = data.draw(st.integers(0, len(lines) - 1))
    place = data.draw(st.sampled_from(places(lines[position])))
    lines[position] = put(lines[position], place, data.draw(values))
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with contextlib.suppress(FormatError):
        assert len(list(read_trace(file))) == len(lines)


@given(data=st.data())
def test_a_spoilt_planning_file_is_read_or_refused(file: Path, data: st.DataObject) -> None:
    """The same for planning records."""
    function = data.draw(st.sampled_from(sorted(ANSWERS)))
    given_input, output, _ = ANSWERS[function]
    record: Any = {"id": 1, "fn": function, "input": given_input, "output": output}
    record = put(record, data.draw(st.sampled_from(places(record))), data.draw(values))
    file.write_text(json.dumps(HEADER) + "\n" + json.dumps(record) + "\n")
    with contextlib.suppress(FormatError):
        assert len(list(read_planning(file))) == 2


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(file: Path, content: bytes) -> None:
    """No bytes this short are a record."""
    file.write_bytes(content)
    with pytest.raises(FormatError):
        list(read_trace(file))
