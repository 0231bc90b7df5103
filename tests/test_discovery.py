"""Finding implementations by name and by path, and the reasons when nothing is found."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from kvcheck import discovery
from kvcheck.discovery import find_implementation
from kvcheck.installed import GROUP, installed_implementations
from kvspec.errors import UnknownImplementationError
from kvspec.interface import Implementation


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty current directory; modules imported from it are unloaded afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def reason(name: str) -> str:
    with pytest.raises(UnknownImplementationError) as caught:
        find_implementation(name)
    assert caught.value.name == name
    assert caught.value.known == installed_implementations()
    return caught.value.reason


def test_the_reference_is_found_by_name_and_by_path() -> None:
    assert "kvref" in installed_implementations()
    assert isinstance(find_implementation("kvref"), Implementation)
    assert isinstance(find_implementation("kvref:implementation"), Implementation)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownImplementationError, match="kvref") as caught:
        find_implementation("nope")
    assert caught.value.reason == ""


def test_a_module_in_the_current_directory_is_found(here: Path) -> None:
    (here / "mine.py").write_text("from kvref import implementation as make\n")
    assert isinstance(find_implementation("mine:make"), Implementation)


def test_the_current_directory_does_not_shadow_what_is_installed(here: Path) -> None:
    (here / "json.py").write_text("raise RuntimeError('shadowed')\n")
    assert "returned" in reason("json:JSONDecoder")


def test_a_module_that_is_not_there_is_named(here: Path) -> None:
    assert reason("nowhere.at_all:make") == (
        "no module 'nowhere', neither installed nor in the current directory"
    )


def test_a_module_that_does_not_import_names_the_error_and_its_place(here: Path) -> None:
    (here / "broken.py").write_text("\nimport what_it_needs\n")
    assert reason("broken:make") == (
        "broken:make does not load: ModuleNotFoundError: No module named 'what_it_needs' "
        f"({here / 'broken.py'}, line 2)"
    )


def test_a_module_with_a_syntax_error_names_the_line(here: Path) -> None:
    (here / "unfinished.py").write_text("\ndef make(\n")
    assert "SyntaxError" in reason("unfinished:make")
    assert "line 2" in reason("unfinished:make")


def test_a_factory_that_raises_names_the_error(here: Path) -> None:
    (here / "raising.py").write_text("def make():\n    raise ValueError('no device')\n")
    assert "ValueError: no device" in reason("raising:make")


def test_a_module_that_quits_does_not_end_the_command(here: Path) -> None:
    (here / "quitting.py").write_text("import sys\nsys.exit('no device')\n")
    assert "SystemExit: no device" in reason("quitting:make")


@pytest.mark.parametrize("name", ["kvref:", ":make", "a b:c", "a:b:c", "kvref/x:y"])
def test_a_name_of_another_form_is_refused_before_anything_is_imported(name: str) -> None:
    assert reason(name) == "not of the form package.module:factory"


def test_a_factory_of_something_else_is_refused() -> None:
    assert reason("collections:OrderedDict") == (
        "the factory returned OrderedDict, not an Implementation"
    )


def test_two_registrations_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint(name="two", value=value, group=GROUP) for value in ("a:make", "b:make", "a:make")
    ]
    known = installed_implementations()
    monkeypatch.setattr(discovery, "entry_points", lambda **_: entries)
    monkeypatch.setattr(discovery, "installed_implementations", lambda: known)
    with pytest.raises(UnknownImplementationError, match="registered more than once: a:make, b:m"):
        find_implementation("two")
