"""Write what commands print into `docs/prompts.md`, from runs beside its traces."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from tests.commands import kvspec, python
from tests.source import ROOT

PAGE = ROOT / "docs" / "prompts.md"


def text() -> str:
    """Return the page: its Python is run first, then each command, in one empty folder."""
    page = PAGE.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        for code in re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
            python("-c", code, folder=Path(folder), check=True)

        def printed(block: re.Match[str]) -> str:
            environment = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
            done = kvspec(Path(folder), *block[1].split(), env=environment)
            lines = [line.rstrip() for line in (done.stdout + done.stderr).splitlines()]
            return "```console\n$ kvspec " + "\n".join([block[1], *lines]) + "\n```\n"

        blocks = r"^```console\n\$ kvspec ([^\n]*)\n.*?^```\n"
        return re.sub(blocks, printed, page, flags=re.MULTILINE | re.DOTALL)
