"""Every format: its sample, how it is recognised, what is written in it, and damage."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from kvcheck.cli import main
from kvcheck.tools.replay.file import TraceFile
from kvcheck.tools.replay.formats.choice import FORMATS, reader_of, recognised
from kvcheck.tools.replay.formats.input import json_objects
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import TraceError, TraceRecord
from tests.cases import Case, cases
from tests.replay.records import error_of, lines_of, read
from tests.source import ROOT

FOLDER = ROOT / "kvcheck" / "data" / "traces"
"""Samples of each format, made up, taken from no data set."""
SAMPLES = {path.stem: path.read_text(encoding="utf-8") for path in sorted(FOLDER.iterdir())}


def test_there_is_a_sample_of_each_format() -> None:
    assert SAMPLES.keys() == set(FORMATS)


@pytest.mark.parametrize("form", FORMATS)
def test_a_sample_is_recognised_however_it_is_compressed(form: str, tmp_path: Path) -> None:
    data = SAMPLES[form].encode()
    assert recognised(data) == form
    with open_trace(f"sample:{form}", form=form) as trace:
        expected = list(trace)
    assert len(expected) > 20
    assert len({each.place for each in expected}) == len(expected)
    for packed in (data, gzip.compress(data), zstandard.ZstdCompressor().compress(data)):
        path = tmp_path / "trace"
        path.write_bytes(packed)
        with TraceFile(str(path)) as trace:
            assert list(trace) == expected


@pytest.mark.parametrize("form", FORMATS)
def test_commands_read_a_sample_and_say_what_is_not_exact(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"sample:{form}"
    assert main(["replay", name, "--impl", "kvfast", "--no-check", "--json", "-"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["requests"] == len(read(form, SAMPLES[form]))
    assert report["hit_rate"] > 0
    assert report["notes"]
    assert main(["whatif", name, "--sizes", "2"]) == 0
    shown = capsys.readouterr().out
    assert "endless" in shown
    assert all(f"note: {note}" in " ".join(shown.split()) for note in report["notes"])


def test_the_table_of_the_documentation_has_every_format_and_its_commands_run(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (root / "spec" / "replay.md").read_text(encoding="utf-8")
    table = page.split("| format |")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    assert [row[0] for row in rows] == [f"`{form}`" for form in FORMATS]
    for form, row in zip(FORMATS, rows, strict=True):
        program, *args = row[-1].strip("`").split()
        assert (program, args[1]) == ("kvspec", f"sample:{form}")
        assert main([*args, "--limit", "5"]) == 0
        assert bool(row[3]) == ("note: " in capsys.readouterr().out)


def test_notes_stand_in_the_head_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "sample:mooncake", "--impl", "kvfast", "--limit", "2"]) == 0
    head = " ".join(capsys.readouterr().out.split("requests")[0].split())
    assert "checked note: the trace has no generated tokens" in head


def test_a_file_of_two_formats_is_read_as_the_one_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(lines_of([{"prompt": "abcd", "messages": [{"role": "user", "content": "a"}]}]))
    for form, length in (("prompts", 1), ("messages", 3)):
        with TraceFile(str(path), form=form) as trace:
            assert [each.input_length for each in trace] == [length]


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    pytest.importorskip("tokenizers")
    vocabulary = {word: number for number, word in enumerate(["?", "one", "two", "three"])}
    content = {
        "version": "1.0",
        "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    }
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def test_a_tokenizer_counts(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "t"
    trace.write_text(lines_of([{"prompt": "one two three four five"}]))
    for more, length in (((), 6), (("--tokenizer", str(tokenizer)), 5)):
        args = ["replay", str(trace), "--impl", "kvfast", "--json", "-", *more]
        assert main(args) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["tokens_queried"] == length
        assert any("estimates" in note for note in report["notes"]) == (not more)


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


LOGGED = "DEBUG 06-01 10:00:00 [a.py:1] Request r details: prompt: '', prompt_token_ids: "


@pytest.mark.parametrize("case", cases(__file__, "damaged.txt"), ids=str)
def test_damage_names_its_place_and_what_is_expected(case: Case) -> None:
    form, _, _ = case.name.partition(":")
    case.expect([str(error_of(form, "\n".join(case.given)))])


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_file_has_no_requests(form: str) -> None:
    assert read(form, "") == []


def test_a_session_that_does_not_end_is_not_read_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvcheck.tools.replay.formats.input.MAX_OBJECT_BYTES", 1_000)
    taken = []

    def endless() -> Iterator[bytes]:
        yield b'{"block_size": 16, "requests": ['
        while True:
            taken.append(1)
            yield b"1, " * 100

    with pytest.raises(TraceError, match="more than 1000 bytes"):
        list(reader_of("weka").records(endless(), "t"))
    assert len(taken) < 10


def test_requests_wait_for_their_outputs_but_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvcheck.tools.replay.formats.vllm_log.MOST_WAITING", 2)
    lines = [
        f"{LOGGED.replace('Request r', f'Request r{n}')}[{n}], prompt_embeds\n" for n in range(9)
    ]
    taken = []

    def log() -> Iterator[bytes]:
        for each in lines:
            taken.append(1)
            yield each.encode()

    next(reader_of("vllm-log").records(log(), "t"))
    assert len(taken) < 5
