"""Servers that reply once too often: found at the next message or at the end.

Nothing here depends on how busy the machine is: whatever has to be late waits for a file.
"""

from __future__ import annotations

import re
import select
from pathlib import Path

import pytest

from kvcheck.play.elsewhere import foresee
from kvcheck.remote.client import RemoteImplementation
from kvspec.errors import RemoteError
from tests.remote.configs import config
from tests.remote.servers import connect

AFTER_A_WHILE = """
while not os.path.exists(os.path.join(os.path.dirname(sys.argv[0]), 'go')): time.sleep(0.01)
"""


def go_on(folder: Path) -> None:
    (folder / "go").touch()


def wait_for_output(remote: RemoteImplementation) -> None:
    stdout = remote.connection._child._stdout  # which the client reads as well
    assert select.select([stdout], [], [], 30)[0]


def test_a_server_that_writes_unasked_is_found_at_the_next_message(tmp_path: Path) -> None:
    code = "m = until('get_usage')\nanswer(m, {'num_free_blocks': 1, 'usage': 0.5})\n"
    code += f"{AFTER_A_WHILE}\nprint('by the way', flush=True); read()\n"
    remote = connect(tmp_path, code)
    manager = remote.create(config())
    assert manager.usage == 0.5
    go_on(tmp_path)
    wait_for_output(remote)
    with pytest.raises(RemoteError, match="without being asked: b'by the way"):
        _ = manager.usage


SURPLUS = """
HELLO["pipelining"] = {pipelining}
usage = {{"num_free_blocks": 3, "usage": 0.25}}
first = until("get_usage")
answer(first, usage)
{then}
answer(first, usage)
read()
"""
"""One answer too many to message 2, at another time each."""


@pytest.mark.parametrize("pipelining", [False, True])
@pytest.mark.parametrize(
    ("then", "words"),
    [
        ("{wait}", 'without being asked: b\'{"id": 2'),
        ("read()", "wrote more than one answer to number 2"),
    ],
    ids=["before the next message", "in place of its answer"],
)
def test_an_answer_too_many_is_found_at_the_next_message(
    tmp_path: Path, then: str, words: str, pipelining: bool
) -> None:
    code = SURPLUS.format(pipelining=pipelining, then=then.format(wait=AFTER_A_WHILE))
    remote = connect(tmp_path, code)
    manager = remote.create(config())
    assert manager.num_free_blocks == 3
    if "wait" in then:
        go_on(tmp_path)
        wait_for_output(remote)
    foresee(manager, "get_usage")
    with pytest.raises(RemoteError, match=re.escape(words)):
        manager.new_step_starts()


def test_an_answer_too_many_is_found_at_the_end(tmp_path: Path) -> None:
    code = SURPLUS.format(pipelining=False, then="sys.stdin.read()")
    remote = connect(tmp_path, code)
    assert remote.create(config()).num_free_blocks == 3
    with pytest.raises(RemoteError, match=r"wrote more than its answers: b'\{\"id\": 2"):
        remote.close()
    remote.close()


def test_a_server_that_answers_once_ends_without_a_word(tmp_path: Path) -> None:
    remote = connect(tmp_path, "until('never')\n")
    remote.create(config())
    remote.close()
