"""Requests written in a format, and the records that are read of them: `written.txt`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcheck.tools.replay.formats.choice import reader_of, recognised
from kvcheck.tools.replay.formats.input import json_objects
from kvcheck.tools.replay.trace import TraceRecord
from tests.cases import Case, cases
from tests.replay.reading import error_of, lines_of

CHUNK_BYTES = (1, 7, 1_000)


@pytest.mark.parametrize("case", cases(__file__, "written.txt"), ids=str)
def test_requests_are_read_as_they_were_written(case: Case) -> None:
    form, _, _ = case.name.partition(":")
    data = "\n".join(case.given).encode("utf-8", errors="surrogatepass")
    found = []
    for size in CHUNK_BYTES:
        reader = reader_of(form)
        chunks = (data[at : at + size] for at in range(0, len(data), size))
        records = [*map(as_line, reader.records(chunks, "t"))]
        found.append([*records, *(f"note: {note}" for note in reader.notes)])
    assert found[1:] == found[:-1]
    guess = recognised(data)
    case.expect([*found[0], *([] if guess == form else [f"recognised as {guess}"])])


def as_line(record: TraceRecord) -> str:
    """Write the place, milliseconds, tokens in and out, and the ids with the tokens of each.

    Behind them, the ids of the output, if it is known.
    """
    tokens = f"{record.input_length} in, {record.output_length} out"
    ids = " ".join(map(str, record.hash_ids))
    answer = "" if record.output_ids is None else f" +{list(record.output_ids)}"
    return (
        f"{record.place} at {record.timestamp_ms}: {tokens}; {ids}{answer} of {record.run_length}"
    )


values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    st.lists(st.dictionaries(st.text(max_size=4), values, max_size=3), max_size=4),
    st.integers(1, 40),
    st.sampled_from(["list", "indented", "lines", "pretty"]),
    st.booleans(),
)
def test_objects_are_found_however_they_stand(
    objects: list[dict[str, Any]], chunk_bytes: int, layout: str, ascii_only: bool
) -> None:
    def dumped(value: object, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    content = {
        "list": dumped(objects),
        "indented": dumped(objects, 2),
        "lines": "".join(dumped(each) + "\n" for each in objects),
        "pretty": "\n\n".join(dumped(each, 1) for each in objects),
    }[layout]
    data = content.encode()
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    found = list(json_objects(chunks, "t", "a form"))
    assert [each.value for each in found] == objects
    if layout == "lines":
        assert [each.line for each in found] == list(range(1, len(objects) + 1))


def test_runs_of_mooncake_s_form_have_another_length_and_a_cut_one_may_have_no_id() -> None:
    turn = {"output_length": 4, "hash_ids": [1, 2]}
    lines = [{**turn, "input_length": n, "timestamp": at} for n, at in ((96, 0.5), (100, 7.4))]
    reader = reader_of("mooncake", run_length=48)
    found = list(reader.records([lines_of(lines).encode()], "t"))
    assert [each.hash_ids[:2] for each in found] == [(1, 2)] * 2
    assert [(each.timestamp_ms, len(each.hash_ids)) for each in found] == [(1, 2), (7, 3)]
    assert [note for note in reader.notes if "no id: 1;" in note]
    assert "--run-length 64 fits" in error_of("mooncake", lines_of(lines[1:])).problem
