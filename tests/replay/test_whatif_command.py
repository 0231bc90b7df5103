"""`kvspec whatif`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcheck.cli import main


def run(*arguments: str) -> int:
    return main(["whatif", *arguments])


def test_several_traces_and_block_sizes_stand_side_by_side(tmp_path: Path) -> None:
    found, picture = tmp_path / "found.json", tmp_path / "found.svg"
    traces = ("demo", "synth:chat?requests=20&seed=1")
    sizes = ("--block-size", "64", "--block-size", "512", "--sizes", "5")
    assert run(*traces, *sizes, "--json", str(found), "--plot", str(picture)) == 0
    curves = json.loads(found.read_text())["curves"]
    assert [(each["trace"], each["block_size"]) for each in curves] == [
        (trace, size) for trace in ("demo", curves[2]["trace"]) for size in (64, 512)
    ]
    assert all(each["points"][-1]["lru"] <= each["infinite"] + 1e-12 for each in curves)
    assert b"Belady" in picture.read_bytes()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("demo", "--num-blocks", "2", "--block-size", "64"), "the largest request of demo needs"),
        (("demo", "--block-size", "48"), "a divisor or a multiple of 512"),
        (("demo", "--plot", "x.txt"), "must end in .png or .svg"),
        (("/no/such/trace",), "cannot be read"),
    ],
)
def test_what_cannot_be_run_is_said(
    arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    assert says in " ".join(capsys.readouterr().err.split())
