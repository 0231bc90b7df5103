"""`kvspec replay` from its arguments to its exit code."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvcheck.cli import main
from kvcheck.tools.replay.formats.mooncake import record_line
from kvcheck.tools.replay.synth import SynthTrace
from tests.cases import Case, cases
from tests.commands import said_by
from tests.replay.records import line

FAST = ["--impl", "kvref", "--no-check"]


def replay_json(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    assert main(["replay", *args, *FAST, "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    content: dict[str, Any] = json.loads(captured.out)
    return content


def failure(capsys: pytest.CaptureFixture[str], *args: str, exit_code: int = 2) -> str:
    assert main(["replay", *args]) == exit_code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize("case", cases(__file__, "refused.txt"), ids=str)
def test_what_cannot_be_done_is_one_line(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    case.expect(said_by(case.name, capsys))


def bad_trace(folder: Path) -> str:
    path = folder / "bad.jsonl"
    path.write_text("\n".join(json.dumps(each) for each in (line(), line(input_length=-4))))
    return str(path)


def test_a_file_a_compressed_file_and_a_pipe_are_one_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "".join(record_line(each) + "\n" for each in SynthTrace("synth:chat?requests=20"))
    plain, zipped = tmp_path / "t.jsonl", tmp_path / "t.jsonl.gz"
    plain.write_text(text)
    zipped.write_bytes(gzip.compress(text.encode()))
    from_pipe = subprocess.run(
        [sys.executable, "-m", "kvcheck.cli", "replay", "-", *FAST, "--json", "-"],
        input=text.encode(),
        capture_output=True,
        check=True,
    )
    reports = [replay_json(capsys, str(path)) for path in (plain, zipped)]
    reports.append(json.loads(from_pipe.stdout))
    reports.append(replay_json(capsys, "synth:chat?requests=20"))
    names = [each.pop("trace") for each in reports]
    assert names[2:] == ["standard input", "synth:chat?seed=0&requests=20"]
    assert all({**each, "seconds": None} == {**reports[0], "seconds": None} for each in reports)


def test_a_limit_takes_as_many_generated_requests_as_it_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    content = replay_json(capsys, "synth:chat", "--limit", "30", "--seed", "4", "--sample", "0.3")
    assert (content["requests"], content["trace"]) == (30, "synth:chat?seed=4")


def test_every_output_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = [str(tmp_path / name) for name in ("r.json", "p.SVG", "h.html")]
    args = [
        flag for pair in zip(("--json", "--plot", "--html"), outputs, strict=True) for flag in pair
    ]
    assert main(["replay", "demo", "--limit", "9", *FAST, *args]) == 0
    assert "tokens hit" in capsys.readouterr().out
    assert json.loads(Path(outputs[0]).read_text())["requests"] == 9
    assert "<svg" in Path(outputs[1]).read_text()
    assert "<svg" in Path(outputs[2]).read_text()
    assert sorted(os.listdir(tmp_path)) == ["h.html", "p.SVG", "r.json"]


def test_bad_input_leaves_nothing_half_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = bad_trace(tmp_path)
    (tmp_path / "r.json").write_text("as before")
    outputs = ["--json", str(tmp_path / "r.json"), "--plot", str(tmp_path / "p.png")]
    error = failure(capsys, trace, *FAST, *outputs)
    assert error.startswith(
        f"kvspec: error: {trace}, line 2, field 'input_length':"
        " must be an integer of at least 1, not -4; a line of mooncake has "
    )
    assert sorted(os.listdir(tmp_path)) == ["bad.jsonl", "r.json"]
    assert (tmp_path / "r.json").read_text() == "as before"


def test_an_implementation_that_breaks_a_rule_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    error = failure(capsys, "demo", "--impl", "tests.replay.noted:refuser", exit_code=1)
    assert error.startswith("kvspec: error: kvref: step 0, request of line 1: was refused")


def test_a_folder_without_permission_is_known_beforehand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write everywhere, so the system's error is simulated.
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    assert "no permission to write in" in failure(
        capsys, "demo", *FAST, "--json", str(tmp_path / "r.json")
    )


@pytest.mark.parametrize("trace", ["demo", "-"], ids=["bar", "spinner"])
def test_a_terminal_sees_progress_and_quiet_does_not(
    trace: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[io.StringIO] = []

    def terminal() -> Console:
        seen.append(io.StringIO())
        return Console(file=seen[-1], force_terminal=True, width=120)

    monkeypatch.setattr("kvcheck.cli._watch.progress_console", terminal)
    for quiet in ([], ["--quiet"]):
        text = "".join(record_line(each) + "\n" for each in SynthTrace("synth:chat?requests=20"))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert main(["replay", trace, *FAST, *quiet]) == 0
    shown, silent = (each.getvalue() for each in seen)
    assert " requests, " in shown
    assert ("━" in shown) == (trace == "demo")
    assert silent == ""
    assert "tokens hit" in capsys.readouterr().out


def test_without_matplotlib_a_picture_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    error = failure(capsys, "demo", *FAST, "--plot", str(tmp_path / "p.png"))
    assert "pip install 'kvspec[plot]'" in error
