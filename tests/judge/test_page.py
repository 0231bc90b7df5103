"""The page of a run: one file, no network, and nothing in it is taken for markup."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import kvref
from kvcheck.judge.applying import rule_outcomes, verdicts
from kvcheck.judge.coverage import FROM_OUTSIDE, exercised
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import BROKEN, NOT_APPLICABLE, NOT_EXERCISED, UNBROKEN, Report
from kvcheck.judge.page import report_html
from kvcheck.judge.suite import Suite
from kvcheck.play.situations import SITUATIONS
from kvcheck.play.verdicts import Level
from kvcheck.rulebook import rule_sentences
from tests.judge.minimal import minimal
from tests.mistakes import mistaken

REFERENCE = kvref.implementation()


@pytest.fixture(scope="module")
def report() -> Report:
    """A run that finds something."""
    budget = Budget(0.0, 0, 0.5)
    options = Options(Level.IDENTITY, budget, rules=("KV-POOL-*",), name="mine:implementation")
    return Suite(mistaken("TakesFromTheBack", audits=True), REFERENCE, options).run()


class Tags(HTMLParser):
    """Whether every element is closed where it must be."""

    VOID = frozenset({"meta", "br", "link", "!doctype"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen[tag] += 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_nothing_else(report: Report) -> None:
    """No script, no link, no image."""
    tags = Tags()
    page = report_html(report, ["kvspec golden x.jsonl"])
    tags.feed(page)
    assert tags.open == []
    assert not {"script", "link", "img", "iframe"} & set(tags.seen)
    assert re.findall(r"https?://", page) == []


def test_every_rule_of_the_run_has_a_row_with_its_sentence_and_verdict(report: Report) -> None:
    """And no other rule has."""
    page = report_html(report)
    rows = re.findall(r"<tr><th>(KV-[A-Z]+-\d+)<br>[^<]+</th><td>", page)
    wanted = [rule for rule in rule_sentences() if rule.startswith("KV-POOL-")]
    assert rows[: len(wanted)] == wanted
    assert Counter(verdicts(report).values()).keys() >= {BROKEN, UNBROKEN}


def test_each_violation_can_be_opened(report: Report) -> None:
    """Its operations, the last one marked; what was expected and observed; the test."""
    page = report_html(report, ["the-record"])
    assert page.count('<li class="last">') == sum(bool(v.operations) for v in report.violations)
    assert page.count("<dt>expected</dt>") == len(report.violations)
    assert "the-record" in page
    assert page.count("def test_kv_") == len(report.violations)


def test_situations_that_never_came_up_say_so(report: Report) -> None:
    """Every situation has its row."""
    page = report_html(report)
    assert page.count('<td class="number') == len(SITUATIONS)
    assert (">never<" in page) is bool(report.missed)


def test_nothing_is_taken_for_markup(report: Report) -> None:
    """A name is text wherever it stands."""
    options = replace(report.options, name="<script>alert(1)</script>")
    page = report_html(replace(report, options=options), ["<b>"])
    assert "<script>" not in page
    assert "<b>" not in page.replace('<b class="', "")


def test_a_rule_that_nothing_was_about_is_not_unbroken() -> None:
    """What was left out for lack of a feature has no verdict."""
    options = Options(Level.SAFETY, Budget(0.0, 0))
    report = Suite(minimal(), None, options).run()
    found = rule_outcomes(report)
    assert found["KV-POOL-15"].verdict == UNBROKEN
    assert found["KV-MAMBA-1"].verdict == NOT_APPLICABLE
    assert found["KV-MAMBA-1"].reason == "needs MambaSpec"
    assert found["KV-POOL-6"].verdict == NOT_EXERCISED
    assert found["KV-POOL-6"].reason == "level safety does not decide about it"
    page = report_html(report)
    assert "does not apply<br>needs MambaSpec" in page
    assert "Not seen, since no snapshot is shown" in page
    assert "Left out" in page


def test_safety_decides_about_few_rules_whatever_programs_are_about() -> None:
    """The levels above decide about all that they are about."""
    can = minimal().capabilities
    assert exercised({"KV-POOL-6"}, Level.SAFETY, can) == FROM_OUTSIDE
    assert exercised({"KV-POOL-6"}, Level.BEHAVIOUR, can) == FROM_OUTSIDE | {"KV-POOL-6"}
    assert exercised({"KV-POOL-11"}, Level.SAFETY, can) == FROM_OUTSIDE | {"KV-POOL-11"}
    assert exercised((), Level.SAFETY, REFERENCE.capabilities) > FROM_OUTSIDE
