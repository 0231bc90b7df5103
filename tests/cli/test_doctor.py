"""`kvspec doctor`: it names what is missing and how to get it, and works where much is broken."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, version

import pytest

from kvcheck.cli import doctor, main


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
