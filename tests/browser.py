"""Chromium without a window, for the tests that look at pages."""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_browser() -> str | None:
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def browse(program: str, folder: Path, address: str, *options: str) -> str:
    """Return the browser's output; it runs without a network, with a profile of its own."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # root may not have one
    done = subprocess.run(
        [
            program,
            *("--headless", "--disable-gpu", "--hide-scrollbars", "--window-size=1300,1500"),
            *("--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder / 'profile'}"),
            *("--virtual-time-budget=5000", *sandbox, *options, address),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout


def text_of(document: str, element: str) -> str:
    """Return the text of the element with this id, which contains none of its own tag."""
    found = re.search(rf'<(\w+)[^>]* id="{element}"[^>]*>(.*?)</\1>|$', document, re.S)
    assert found is not None
    return html.unescape(re.sub(r"<[^>]+>", " ", found[2] or "")).strip()
