"""`python -m tests.picture`: docs/images/verdict.svg, a verdict of `kvspec check` in a terminal."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys

from rich.console import Console
from rich.text import Text

from tests.source import ROOT

COMMAND = ("check", "mistake:FreesFirstToLast", "--rules", "KV-POOL-8")
PICTURE = "docs/images/verdict.svg"
COLUMNS = 82


def verdict() -> str:
    """Return what the command prints, up to its first finding's end."""
    arguments = [sys.executable, "-m", "kvcheck.cli", *COMMAND, "--color", "always"]
    environment = {**os.environ, "COLUMNS": f"{COLUMNS}"}
    done = subprocess.run(
        arguments, env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    end = done.stdout.index("repeat ")
    return done.stdout[: done.stdout.index("\n", end)]


if __name__ == "__main__":
    console = Console(record=True, width=COLUMNS + 20, file=io.StringIO())
    console.print(Text.from_ansi(verdict()))
    title = " ".join(("kvspec", *COMMAND))
    drawn = console.export_svg(title=title, unique_id="verdict")
    drawn = re.sub(r"@font-face \{.*?\n    \}\n", "", drawn, flags=re.DOTALL)  # from elsewhere
    (ROOT / PICTURE).write_text(drawn, encoding="utf-8")
