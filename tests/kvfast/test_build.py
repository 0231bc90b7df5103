"""Choosing the build: what is found, what is said when it is not compiled, and how often."""

from __future__ import annotations

import subprocess
import warnings
from types import ModuleType

import pytest

import kvfast
from kvfast import _build
from tests.commands import python
from tests.source import ROOT

WITHOUT_COMPILED_BUILD = """
import sys
sys.modules["kvfast._compiled.pool"] = None  # as if it were not there
import kvspec, kvref, kvfast
assert kvfast.compiled is False
"""


ALL_THAT_IS_PROBED = """
import sys
from kvfast import _build
assert _build.is_compiled()
print(*(name.rpartition(".")[2] for name in sys.modules if name.startswith("kvfast._compiled.")))
"""


def run_python(code: str) -> subprocess.CompletedProcess[str]:
    return python("-W", "always", "-c", code)


def test_importing_and_asking_says_nothing() -> None:
    done = run_python(WITHOUT_COMPILED_BUILD)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_a_build_without_one_of_its_modules_is_not_the_compiled_one() -> None:
    if not kvfast.compiled:
        pytest.skip("no compiled build of kvfast here")
    probed = run_python(ALL_THAT_IS_PROBED).stdout.split()
    core = {path.stem for path in (ROOT / "kvfast" / "_core").glob("[!_]*.py")}
    assert core <= set(probed)


def test_the_first_use_of_the_uncompiled_core_says_so_once() -> None:
    done = run_python(
        WITHOUT_COMPILED_BUILD
        + """
from kvfast import _build
for _ in range(3):
    core = _build.load("pool")
assert core.__name__ == "kvfast._core.pool"
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("RuntimeWarning") == 1
    assert "C compiler" in done.stderr


def test_a_build_for_another_machine_falls_back_and_names_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> ModuleType:
        raise ImportError("wrong ELF class")

    monkeypatch.setattr("importlib.import_module", refuse)
    assert not _build.is_compiled()
    assert "wrong ELF class" in str(_build.why_not_compiled())


def test_a_compiled_core_is_loaded_without_a_word() -> None:
    if not kvfast.compiled:
        pytest.skip("no compiled build of kvfast here")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _build.load("pool").__name__ == "kvfast._compiled.pool"


def test_an_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = kvfast.no_such_thing


def test_diagnose_answers_text_for_every_label() -> None:
    facts = kvfast.diagnose()
    assert facts["build"].startswith("compiled" if kvfast.compiled else "not compiled")
    assert all(isinstance(text, str) for text in facts.values())
    assert {"torch", "Triton", "CUDA device"} <= set(facts)
