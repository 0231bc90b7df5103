"""Every format: its sample, how it is recognised, and what commands say of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from kvcheck.cli import main
from kvcheck.tools.replay.file import TraceFile
from kvcheck.tools.replay.formats.choice import FORMATS, recognised
from kvcheck.tools.replay.source import open_trace
from tests.replay.reading import lines_of, read
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
    assert (report["hit_rate"] == 0) == (form in ("burstgpt", "azure"))
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
    assert main(["replay", "sample:azure", "--impl", "kvfast", "--limit", "2"]) == 0
    head = " ".join(capsys.readouterr().out.split("requests")[0].split())
    assert "checked note: no prefixes in the data, so no hits are possible" in head


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
