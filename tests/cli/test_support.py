"""Parts that commands share: extras, consoles, and files written whole or not at all."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import pytest

from kvcheck.cli import _support
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


def test_json_goes_to_stdout_without_a_path_or_with_a_dash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _support.write_json({"a": "é"})
    _support.write_json({"a": "é"}, Path("-"))
    assert capsys.readouterr().out == '{\n  "a": "é"\n}\n' * 2


def test_a_number_that_json_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        _support.write_json({"a": float("nan")})


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
