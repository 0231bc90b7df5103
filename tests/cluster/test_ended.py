"""Processes end with the command that began them, whatever they are at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from kvcheck.judge.options import BUDGETS, Options
from kvcheck.judge.report import text_lines
from kvcheck.judge.suite import Suite
from kvcheck.play import watchdog
from kvcheck.play.verdicts import Level
from kvcheck.tasks import Workers
from kvref.implementation import ReferenceImplementation
from kvspec.interface import Implementation
from tests.cluster.workers import Shuffling
from tests.commands import python
from tests.judge.test_hangs import NeverTouches

HANGS = """
import pathlib, time
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation


class Hangs(BlockPool):
    def touch(self, blocks):
        pathlib.Path("hangs").touch()
        while True:
            try:
                time.sleep(60)
            except Exception:
                pass


def implementation():
    return ReferenceImplementation(Hangs)
"""
COMMAND = """
import signal, sys
from kvcheck.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no signal like Ctrl-C for a group there")
def test_ctrl_c_ends_processes_that_hang_and_the_report_is_shown(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    asked = ["--budget", "directed", "--level", "safety", "--rules", "KV-POOL-5", "--jobs", "2"]
    command = [sys.executable, "-c", COMMAND, "check", "hangs:implementation", *asked]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    ) as process:
        try:
            deadline = time.monotonic() + 60
            while not (tmp_path / "hangs").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            output, errors = process.communicate(timeout=watchdog.PROGRAM_SECONDS / 2)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted" in output
    assert not errors


ORPHAN = """
import os, signal
from kvcheck.processes import Processes
from kvcheck.tasks import in_order
if __name__ == "__main__":
    with Processes(1) as workers:
        print(*in_order(workers, [(divmod, (7, 2))]), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_processes_end_when_the_command_is_killed(tmp_path: Path) -> None:
    """Wait for the output to close: an orphan would keep it open for ever."""
    (tmp_path / "orphan.py").write_text(ORPHAN)
    done = python(str(tmp_path / "orphan.py"), timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGKILL, "(3, 1)\n", "")


def hanging(name: str) -> Implementation:
    return ReferenceImplementation(NeverTouches)


@pytest.mark.skipif(sys.platform == "win32", reason="no timer of the system there")
@pytest.mark.parametrize("window", [1, 4])
def test_patience_ends_at_the_same_program(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drop later results, which would not have been requested."""
    monkeypatch.setattr(watchdog, "PROGRAM_SECONDS", 0.1)
    monkeypatch.setattr(watchdog, "PATIENCE_SECONDS", 0.15)
    monkeypatch.setattr("kvcheck.judge.parts.SLOW_SECONDS", 0.05)

    def report(workers: Workers | None) -> list[str]:
        options = Options(Level.SAFETY, dict(BUDGETS)["directed"], ("KV-POOL-5", "KV-POOL-6"))
        suite = Suite(hanging(""), None, options, find=hanging)
        suite.workers = workers
        return list(text_lines(replace(suite.run(), seconds=0.0)))

    alone = report(None)
    assert "stopped early" in "\n".join(alone)
    assert report(Shuffling(window)) == alone
