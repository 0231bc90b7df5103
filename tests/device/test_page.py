"""docs/device.md: its code runs and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.source import ROOT

PAGE = (ROOT / "docs/device.md").read_text(encoding="utf-8")


def test_what_the_page_prints_is_what_it_says(tmp_path: Path) -> None:
    code = "".join(re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert len(expected) == code.count("print(")
    assert done.stdout.splitlines() == expected
