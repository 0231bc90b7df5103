"""Who is compared with itself conforms to nothing: the verdict says so everywhere."""

from __future__ import annotations

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.judge.applying import verdicts
from kvcheck.judge.options import BUDGETS, Options, same_code
from kvcheck.judge.outcome import Report
from kvcheck.judge.page import report_html
from kvcheck.judge.report import text_lines, to_json
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvref import ReferenceImplementation
from kvref.block_pool import BlockPool

REFERENCE = kvref.implementation()


class OtherPool(BlockPool):
    """Another one by name."""


def report(*, is_alone: bool) -> Report:
    """Of the reference, with the rules of the pool."""
    options = Options(
        Level.IDENTITY, dict(BUDGETS)["directed"], ("KV-POOL-*",), self_checks_only=is_alone
    )
    return Suite(REFERENCE, kvref.implementation(), options).run()


def test_the_same_code_is_one_class_with_the_same_parts() -> None:
    """A broken part, or another build, is other code."""
    assert same_code(REFERENCE, kvref.implementation())
    assert not same_code(ReferenceImplementation(OtherPool), REFERENCE)
    assert not same_code(find_implementation("kvfast-uncompiled"), REFERENCE)


def test_every_form_of_the_report_says_that_nothing_was_compared() -> None:
    """Rules that only a comparison decides are not exercised."""
    alone, compared = report(is_alone=True), report(is_alone=False)
    assert list(text_lines(alone))[-2] == (
        "kvref breaks no rule at level identity; self-checks only: nothing to compare with"
    )
    assert (to_json(alone)["conforms"], to_json(alone)["self_checks_only"]) == (None, True)
    assert (to_json(compared)["conforms"], to_json(compared)["self_checks_only"]) == (True, False)
    assert "self-checks only: nothing to compare with" in report_html(alone)
    unbroken = [list(verdicts(each).values()).count("unbroken") for each in (alone, compared)]
    assert 0 < unbroken[0] <= unbroken[1]
