"""The command in a process of its own, and a broken implementation that it is shown."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcheck.cli import main
from tests.source import ROOT

LEAKS = "mistake:LeaksUnhashedBlocks"
"""An implementation whose pool does not take back blocks without a key."""


def python(*args: str, folder: Path = ROOT, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run this Python in a process of its own; `options` are further ones of `subprocess.run`."""
    options = {"check": False, **options}
    return subprocess.run(
        [sys.executable, *args], cwd=folder, capture_output=True, text=True, **options
    )


def kvspec(folder: Path, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return python("-m", "kvcheck.cli", *args, folder=folder, **options)


def said_by(command: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    code = main(shlex.split(command))
    shown = capsys.readouterr()
    return [*shown.out.splitlines(), *shown.err.splitlines(), f"exit code {code}"]
