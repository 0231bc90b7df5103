"""The command in a process of its own, and a broken implementation that it is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LEAKS = """
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation


class Leaks(BlockPool):
    def release(self, blocks):
        for block in blocks:
            if block:
                self.ref_counts[block] -= 1


def implementation():
    return ReferenceImplementation(Leaks)
"""
"""A module whose pool gives nothing back."""


def kvspec(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`kvspec ARGS…` in a folder."""
    command = [sys.executable, "-m", "kvcheck.cli", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
