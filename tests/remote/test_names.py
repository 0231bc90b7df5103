"""`cmd:…` as the name of an implementation: its options, and what can't be started."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.discovery import find_implementation
from kvcheck.remote.client import parse_name
from kvspec.errors import RemoteError, UnknownImplementationError
from tests.cases import Case, cases
from tests.remote.servers import serve


@pytest.mark.parametrize("case", cases(__file__, "names.txt"), ids=str)
def test_a_name_is_a_command_and_its_options_or_says_why_not(case: Case) -> None:
    try:
        options = parse_name(case.name)
    except UnknownImplementationError as error:
        case.expect([error.reason])
        with pytest.raises(UnknownImplementationError):
            find_implementation(case.name)
    else:
        case.expect(
            [" ".join(map(repr, options.command)), f"{options.framing} {options.timeout_s}"]
        )


def test_a_program_that_is_not_there_or_no_program_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    for path, words in ((tmp_path / "nowhere", "No such file"), (tmp_path / "text", "Permission")):
        with pytest.raises(RemoteError, match=f"can't be started: {words}"):
            find_implementation(f"cmd:{shlex.quote(str(path))}")


def test_an_implementation_that_serve_does_not_find_is_told_with_its_words() -> None:
    with pytest.raises(RemoteError, match=r"exit status 2.*unknown implementation 'nowhere'"):
        find_implementation(serve("nowhere"))


def test_golden_passes_over_either_framing(capsys: pytest.CaptureFixture[str]) -> None:
    for options in ("", "+json"):
        assert main(["golden", "--impl", serve("kvref", options=options)]) == 0
        assert "0 failed" in capsys.readouterr().out


def test_a_server_that_dies_in_a_replay_is_a_failed_trace_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text(
        "import os\n"
        "from kvref.manager import ReferenceManager\n"
        "from kvcheck.cli import main\n"
        "ReferenceManager.free = lambda *_: os._exit(7)\n"
        "raise SystemExit(main(['serve', 'kvref']))\n"
    )
    name = f"cmd:{shlex.join((sys.executable, str(broken)))}"
    assert main(["golden", "--impl", name]) == 1
    shown = capsys.readouterr()
    assert "ended with exit status 7" in shown.out.replace("\n", " ")
    assert "Traceback" not in shown.out + shown.err
