"""The installation: extras that are used and complete, package data, and every command runs.

.ci/run does the heavy part: a wheel alone, and an installation without a C compiler.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from kvcheck.cli._commands import COMMANDS
from tests import smoke
from tests.source import PACKAGES, ROOT, package_modules, text_files, tree
from tests.test_imports import imports

# Packages that are imported by another name.
PACKAGE_OF = {"zmq": "pyzmq"}


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def packages_in(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", requirement)[0].lower() for requirement in requirements}


@cache
def imported_by_the_packages() -> set[str]:
    roots = {found.root for _, path in package_modules() for found in imports(tree(path))}
    # torch installs Triton. SGLang is what an adapter finds on the path, never a dependency;
    # pytest is what imports the plugin.
    elsewhere = {"triton", "sglang", "dynamo", "lmcache", "minisgl", "pytest"}
    roots = {PACKAGE_OF.get(root, root) for root in roots}
    return roots - sys.stdlib_module_names - {name for name, _ in PACKAGES} - elsewhere


def test_what_is_imported_is_required_and_what_is_required_is_imported(
    pyproject: dict[str, Any],
) -> None:
    project = pyproject["project"]
    extras = project["optional-dependencies"]
    listed = packages_in(project["dependencies"])
    for name, requirements in extras.items():
        listed |= packages_in(requirements) if name != "dev" else set()
    missing = imported_by_the_packages() - listed
    assert not missing, "imported, but in no extra"
    for name, requirements in extras.items():
        unused = packages_in(requirements) - imported_by_the_packages()
        assert name in ("dev", "docs") or not unused, f"extra {name} lists what nothing imports"


def test_dev_contains_every_other_extra_but_the_large_ones(pyproject: dict[str, Any]) -> None:
    extras = pyproject["project"]["optional-dependencies"]
    included = re.fullmatch(r"kvspec\[(.*)\]", extras["dev"][0])
    assert included is not None
    assert set(included[1].split(",")) == set(extras) - {"dev", "torch", "vllm", "cluster"}


def test_every_extra_named_in_a_message_exists(pyproject: dict[str, Any]) -> None:
    extras = pyproject["project"]["optional-dependencies"]
    named = re.compile(r"kvspec\[([a-z,]+)\]|require_extra\(\"[\w.]+\", \"(\w+)\"\)")
    for path in text_files():
        for first, second in named.findall(path.read_text(encoding="utf-8")):
            assert set((first or second).split(",")) <= set(extras), path


def test_every_package_is_typed_and_has_its_marker() -> None:
    for _, folder in PACKAGES:
        assert (folder / "py.typed").is_file()


def test_every_folder_with_modules_is_a_package() -> None:
    """Require __init__.py, without which a folder is left out of the wheel."""
    for _, path in package_modules():
        assert (path.parent / "__init__.py").is_file(), path


def test_every_compiled_module_has_its_source_and_its_types() -> None:
    sources = {path.stem for path in (ROOT / "kvfast/_core").glob("*.py")} - {"__init__"}
    types = {path.stem for path in (ROOT / "kvfast/_compiled").glob("*.pxd")}
    # Constants can't be declared under the name of the module that has them (see record.py).
    constants = {
        "record",
        "record_fields",
        "hot",
        "hot_fields",
        "kind_fields",
        "probing",
        "probing_fields",
    }
    assert types ^ sources == constants | {"vllm_loops", "vllm_taking"}  # from kvfast/engines/vllm


@pytest.mark.parametrize("is_free_threaded", [False, True])
def test_a_free_threaded_python_is_refused_with_the_reason(is_free_threaded: bool) -> None:
    code = (
        "import runpy, setuptools, sys, sysconfig; setuptools.setup = lambda **_: None;"
        "known = sysconfig.get_config_var;"
        f"sysconfig.get_config_var = lambda name: {is_free_threaded} if name == 'Py_GIL_DISABLED'"
        " else known(name); sys.argv = ['setup.py', '--name', 'sdist', '--dry-run'];"
        "runpy.run_path('setup.py', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ("does not support free-threaded CPython" in done.stderr) == is_free_threaded
    assert (done.returncode != 0) == is_free_threaded, done.stderr


def test_a_release_is_built_with_pinned_versions_that_the_project_allows(
    pyproject: dict[str, Any],
) -> None:
    lines = (ROOT / ".ci/build.txt").read_text(encoding="utf-8").splitlines()
    pinned = dict(line.split("==") for line in lines if not line.startswith("#"))
    asked = [Requirement(each) for each in pyproject["build-system"]["requires"]]
    assert pinned.keys() == {each.name for each in asked}
    assert all(pinned[each.name] in each.specifier for each in asked)


NAMED = re.compile(r"(?<![\w./$-])(?:bench|docs|examples|proofs|spec|tests)/[\w./*\[\]!-]*\w")


@pytest.mark.parametrize("script", sorted((ROOT / ".ci").iterdir()), ids=lambda path: path.name)
def test_what_a_script_names_is_there(script: Path) -> None:
    named = NAMED.findall(script.read_text(encoding="utf-8"))
    assert [name for name in named if not any(ROOT.glob(name))] == []


def test_the_version_is_the_newest_of_the_changelog(pyproject: dict[str, Any]) -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first = re.findall(r"^## (\d\S*) \(\d{4}-\d\d-\d\d\)$", changelog, re.MULTILINE)[0]
    assert pyproject["project"]["version"] == first
    major_minor = first.rpartition(".")[0]
    assert f"conforms to kvspec {major_minor} at" in (ROOT / "docs/stability.md").read_text("utf-8")


def test_entry_points_are_registered_as_declared(pyproject: dict[str, Any]) -> None:
    for group, declared in pyproject["project"]["entry-points"].items():
        installed = {entry.name: entry.value for entry in entry_points(group=group)}
        assert declared.items() <= installed.items(), "install again: pip install -e '.[dev]'"


def test_the_smoke_test_calls_every_command() -> None:
    called = {call.args[0] for call in smoke.CALLS}
    assert {entry.name for entry in COMMANDS} <= called


@pytest.mark.deep
@pytest.mark.parametrize("call", smoke.CALLS, ids=lambda call: " ".join(call.args[:2]))
def test_a_command_runs_in_an_empty_directory(call: smoke.Call, tmp_path: Path) -> None:
    assert smoke.problems(call, tmp_path) == []
