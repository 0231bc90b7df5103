"""docs/monitor.md: its example runs and prints what it says."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.commands import kvspec, python
from tests.source import ROOT

TEXT = (ROOT / "docs/monitor.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_example_prints_what_it_says(tmp_path: Path) -> None:
    environment = {**os.environ, "KVSPEC_MONITOR_DIR": str(tmp_path)}
    done = python("-c", EXAMPLE, folder=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == re.findall(r"^ *print\(.*\)  # (.*)$", EXAMPLE, re.MULTILINE)
    record = tmp_path / "kvspec-violation-KV-POOL-15.jsonl"
    (command,) = re.findall(r"^\$ kvspec (.*)$", TEXT, re.MULTILINE)
    assert record.name in command
    replay = kvspec(tmp_path, *command.split())
    assert replay.returncode == 1, replay.stderr
