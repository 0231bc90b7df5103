"""docs/fleet.md: its command shows what it says, and its engine and its router meet."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from typing import Any

import pytest

import kvfast
from kvspec.request import RequestInput
from tests.contract.builders import make_config
from tests.source import ROOT
from tests.test_readme import matches

PAGE = (ROOT / "docs/fleet.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("console", [text for kind, text in BLOCKS if kind == "console"])
def test_a_command_prints_what_the_page_says(console: str) -> None:
    command, *output = console.splitlines()
    arguments = command.removeprefix("$ kvspec ").split()
    line = [sys.executable, "-m", "kvcheck.cli", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert matches(tuple(output), done.stdout), done.stdout


def test_the_router_knows_what_the_engine_published(capsys: pytest.CaptureFixture[str]) -> None:
    """Run both in one process, at free ports of this machine."""
    pytest.importorskip("msgspec", reason="needs the extra fleet (msgspec, pyzmq)")
    pytest.importorskip("zmq", reason="needs the extra fleet (msgspec, pyzmq)")
    kv = kvfast.implementation()
    manager = kv.create(make_config(block_size=4, num_blocks=20, enable_events=True))
    request = kv.make_request(manager, RequestInput("r", range(48)))
    manager.allocate_slots(request, 48)
    code = "".join(text for kind, text in BLOCKS if kind == "python")
    for named in ("5557", "5558"):
        code = re.sub(rf"tcp://[^:]+:{named}", f"tcp://127.0.0.1:{free_port()}", code)
    names: dict[str, Any] = {"manager": manager, "request": request}
    try:
        exec(code, names)  # what the page shows
        assert capsys.readouterr().out.splitlines() == re.findall(
            r"^print\(.*\)  # (.*)$", code, re.M
        )
    finally:
        for name in ("view", "publisher"):
            if name in names:
                names[name].close()


def free_port() -> int:
    """Return an unused port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
