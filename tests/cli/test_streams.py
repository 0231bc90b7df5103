"""Standard streams that are closed, locales that know few characters, Ctrl-C before the start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KVSPEC = (sys.executable, "-m", "kvcheck.cli")
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def shell(line: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line.replace("kvspec", f"{sys.executable} -m kvcheck.cli", 1)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.parametrize("command", ["doctor", "--version", "plan --list", "serve kvref"])
def test_a_closed_standard_output_is_one_line(command: str) -> None:
    done = shell(f"kvspec {command} >&-")
    said = "kvspec: error: standard output is closed; send it to a file, or to /dev/null\n"
    assert (done.returncode, done.stderr) == (2, said)


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_other_closed_streams_are_nobodys_concern(closed: str) -> None:
    done = shell(f"kvspec --version {closed}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("kvspec ")
    assert shell(f"kvspec serve kvref {closed}").returncode == 0
    assert shell(f"kvspec replay - --impl kvref {closed}").returncode in (0, 2)


@pytest.mark.parametrize(
    "command", ["plan llama-3.1-8b", "golden nothing-ü --impl kvref", "check --help"]
)
def test_a_locale_without_a_character_shows_it_otherwise(command: str) -> None:
    done = shell(f"kvspec {command}", **ASCII)
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert done.stdout.isascii()


def test_a_file_name_that_is_no_text_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [*KVSPEC, "golden", b"nothing-\xff", "--impl", "kvref"], capture_output=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == b"kvspec: error: nothing-\\udcff: no such file\n"


def test_an_interrupt_while_modules_are_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    done = shell("kvspec doctor", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (130, "kvspec: error: interrupted\n")
