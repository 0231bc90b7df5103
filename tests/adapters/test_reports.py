"""The reports' scripts say what their pages show: they need vLLM 0.33 and nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvcheck.adapters.vllm import VLLMUnavailableError, implementation
from tests.source import ROOT

REPORTS = sorted((ROOT / "docs" / "reports").glob("vllm-0.33-*.md"))


def fenced(page: Path, language: str) -> str:
    """Return the first code block in that language."""
    return page.read_text(encoding="utf-8").partition(f"```{language}\n")[2].partition("```\n")[0]


def says_what_its_page_shows(page: Path, folder: Path) -> None:
    """Assert that a page's script writes what stands below it."""
    script = folder / "script.py"
    script.write_text(fenced(page, "python"))
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=folder)
    assert done.stdout == fenced(page, "text")


@pytest.mark.parametrize("page", REPORTS, ids=lambda page: str(page.stem))
def test_a_script_can_be_read(page: Path) -> None:
    compile(fenced(page, "python"), str(page.name), "exec")
    assert fenced(page, "text")


@pytest.mark.deep
@pytest.mark.parametrize("page", REPORTS, ids=lambda page: str(page.stem))
def test_a_script_says_what_its_page_shows(page: Path, tmp_path: Path) -> None:
    try:
        version = implementation().library.release
    except VLLMUnavailableError as error:
        pytest.skip(str(error))
    if version != "0.33.0":
        pytest.skip(f"vLLM {version} is installed, and this is about 0.33.0")
    says_what_its_page_shows(page, tmp_path)
