"""`python -m bench.whatif`: that it measures what it names, never how long."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import whatif


def test_it_measures_one_size_all_of_them_and_the_best_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, picture = tmp_path / "page.md", tmp_path / "curve.svg"
    page.write_text("<!-- begin whatif -->\n<!-- end whatif -->\n", encoding="utf-8")
    options = ["--rounds", "2", "--into", str(page), "--plot", str(picture)]
    monkeypatch.setattr(sys, "argv", ["whatif", "sample:mooncake", *options])
    whatif.main()
    text = page.read_text("utf-8")
    assert [line.count("…") for line in text.splitlines() if line.startswith("|")] == [
        0,
        0,
        2,
        2,
        2,
    ]
    assert "<svg" in picture.read_text("utf-8")


@pytest.mark.parametrize(
    ("wrong", "problem"), [("lru_hits", "something else"), ("optimal_hits", "than is possible")]
)
def test_answers_that_do_not_fit_each_other_end_it(
    monkeypatch: pytest.MonkeyPatch, wrong: str, problem: str
) -> None:
    numbers = iter(range(100))
    monkeypatch.setattr(whatif, wrong, lambda *_: next(numbers) if wrong == "lru_hits" else -1)
    monkeypatch.setattr(sys, "argv", ["whatif", "sample:mooncake", "--rounds", "1"])
    with pytest.raises(AssertionError, match=problem):
        whatif.main()
