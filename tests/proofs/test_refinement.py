"""Every assumption and every part of an action is discharged by some check; others are named."""

from __future__ import annotations

from dataclasses import replace

from tests.proofs import refinement
from tests.proofs.refinement import Source, problems, sources
from tests.source import ROOT


def test_every_assumption_is_discharged_or_named() -> None:
    assert problems(sources()) == []


def test_the_page_is_current() -> None:
    assert (ROOT / refinement.PAGE).read_text(encoding="utf-8") == refinement.page()


def test_an_assumption_that_is_not_discharged_is_found() -> None:
    less = [each for each in sources() if each.path != "spec/kvspec/invariants.py"]
    lost = "proofs/code/free_queue.py: not discharged: a block that is put into the queue is not"
    assert any(problem.startswith(lost) for problem in problems(less))


def test_a_part_that_is_not_discharged_is_found() -> None:
    less = [each for each in sources() if each.path != "proofs/code/caching.py"]
    lost = "a part is not discharged: both hand the same blocks to the cache"
    assert lost in problems(less)


def test_who_discharges_itself_and_what_is_trusted_for_nothing_are_found() -> None:
    checks = list(sources())
    checks[0] = replace(checks[0], assumes=("it",), guarantees=("it",))
    checks.append(Source("proofs/gone.py", "proved", (), ()))
    found = problems(checks, {**refinement.TRUSTED, "nothing": "why"})
    assert f"{checks[0].path}: guarantees its own assumption: it" in found
    assert "trusted for nothing: nothing" in found
    assert "no such file: proofs/gone.py" in found
