"""Streams, files and colours of commands, and `kvspec doctor`."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from importlib.metadata import EntryPoint, version
from pathlib import Path

import pytest

from kvcheck.cli import _support, doctor, main
from kvcheck.cli._support import CommandError


def test_a_missing_extra_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(CommandError) as caught:
        _support.require_extra("matplotlib", "plot")
    assert caught.value.exit_code == 2
    assert caught.value.message == (
        "this needs matplotlib; install it with: pip install 'kvspec[plot]'"
    )


def test_an_extra_that_is_there_is_imported() -> None:
    assert _support.require_extra("json", "plot") is json


def test_an_extra_that_is_broken_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_extra.py").write_text("import what_it_needs_is_not_here\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="what_it_needs"):
        _support.require_extra("broken_extra", "plot")


def test_a_file_is_written_with_the_usual_permissions_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    _support.write_json({"b": 1, "a": [0.1]}, path)
    assert path.read_text() == '{\n  "b": 1,\n  "a": [\n    0.1\n  ]\n}\n'
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    path.chmod(0o600)
    _support.write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    path.write_bytes(b"old")

    def fail(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device", source)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        _support.write_whole(path, b"new")
    assert caught.value.filename == str(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "none" / "out.json"
    with pytest.raises(FileNotFoundError) as caught:
        _support.write_whole(path, b"new")
    assert caught.value.filename == str(path)


def test_a_link_stays_a_link_and_a_device_a_device(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    link.symlink_to(target)
    _support.write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    _support.write_whole(Path(os.devnull), b"new")
    assert not Path(os.devnull).is_file()


def test_json_goes_to_stdout_with_a_dash_and_nowhere_without_a_path(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _support.write_json({"a": "é"}, None)
    _support.write_json({"a": "é"}, Path("-"))
    assert capsys.readouterr().out == '{\n  "a": "é"\n}\n'


def test_a_number_that_json_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        _support.write_json({"a": float("nan")}, Path("-"))


@pytest.mark.parametrize("console", [_support.output_console, _support.progress_console])
def test_nothing_is_coloured_where_there_is_no_terminal(
    console: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert callable(console)
    console().print("[red]text[/red]")
    out, err = capsys.readouterr()
    assert (out + err) == "text\n"
    assert bool(err) is (console is _support.progress_console)


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


def test_it_shows_versions_builds_extras_and_implementations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["doctor"]) == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["kvspec"].strip() == version("kvspec")
    for label in ("python", "platform", "kvfast: build", "kvfast: torch", "kvfast: Triton"):
        assert rows[label].strip()
    assert rows["extra cli"].strip() == "installed"
    assert "implementation kvref" in rows


def test_json_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kvspec"] == version("kvspec")
    assert found["extras"]["cli"]["packages"]["click"] == version("click")
    assert set(found["implementations"]["kvref"]) == {"version", "features"}
    assert set(found) == {
        *("kvspec", "python", "platform", "extras", "implementations", "diagnostics")
    }


def test_a_missing_extra_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installed = doctor._version_or_none
    monkeypatch.setattr(
        doctor, "_version_or_none", lambda name: None if name == "xxhash" else installed(name)
    )
    assert main(["doctor"]) == 0
    rows = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert rows["extra xxhash"].strip() == "missing xxhash; pip install 'kvspec[xxhash]'"
    assert rows["extra dev"].strip() == "missing xxhash; pip install 'kvspec[dev]'"


def test_an_extra_of_extras_is_spelled_out() -> None:
    packages = doctor._packages_of("dev")
    assert {"click", "rich", "matplotlib", "hypothesis", "pytest", "mypy"} <= set(packages)
    assert "kvspec" not in packages


@pytest.mark.parametrize(
    ("value", "error"),
    [("kvspec:no_such_thing", "AttributeError"), ("no_such_module:facts", "ModuleNotFoundError")],
)
def test_broken_diagnostics_are_shown_as_such(value: str, error: str) -> None:
    entry = EntryPoint(name="x", value=value, group=doctor.DIAGNOSTICS_GROUP)
    assert doctor._diagnostics(entry)["error"].startswith(error)


def test_an_implementation_that_does_not_load_is_shown_as_such() -> None:
    assert "not of the form" in doctor._implementation("a b:c")["error"]
