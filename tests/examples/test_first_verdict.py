"""The commands and outputs in examples/README.md are right."""

from __future__ import annotations

import shutil

import pytest

from tests.examples.first_verdict import MARK, PAGE, run, transcripts

TRANSCRIPTS = transcripts()


def test_each_server_is_built_probed_and_checked() -> None:
    assert list(TRANSCRIPTS) == ["Rust", "C++", "Python"]
    for commands in TRANSCRIPTS.values():
        assert [command.kind for command in commands] == ["build", "probe", "check"]
    table = PAGE.read_text(encoding="utf-8").partition(MARK)[2].partition("\n\n")[0]
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == [
        f"| {name}" for name in TRANSCRIPTS
    ]


@pytest.mark.deep
@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_a_stranger_sees_what_the_page_shows(name: str) -> None:
    program = TRANSCRIPTS[name][0].line.split()[0]
    if shutil.which(program) is None:
        pytest.skip(f"no {program}")
    assert len(list(run(TRANSCRIPTS[name]))) == len(TRANSCRIPTS[name])
