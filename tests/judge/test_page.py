"""The page of a run: one file, no network, and nothing in it is taken for markup."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser

import pytest

import kvref
from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.blame import Evidence
from kvcheck.judge.coverage import FROM_OUTSIDE, exercised
from kvcheck.judge.drawing import story
from kvcheck.judge.ledger import Ledger
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import BROKEN, NOT_APPLICABLE, NOT_EXERCISED, UNBROKEN, Report
from kvcheck.judge.page import report_html
from kvcheck.judge.suite import Suite
from kvcheck.judge.telling import told
from kvcheck.play.verdicts import Level, Violation
from kvcheck.rulebook import rule_sentences
from kvcheck.view.model import Recording
from kvcheck.view.page import content
from kvspec.interface import Feature, Implementation
from tests.judge.minimal import minimal
from tests.mistakes import mistaken

REFERENCE = kvref.implementation()


@pytest.fixture(scope="module")
def report() -> Report:
    budget = Budget(0.0, 0, 0.5)
    options = Options(Level.IDENTITY, budget, rules=("KV-POOL-*",), name="mine:implementation")
    return Suite(mistaken("TakesFromTheBack", audits=True), REFERENCE, options).run()


class Tags(HTMLParser):
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
    tags = Tags()
    page = report_html(report, ["kvspec golden x.jsonl"])
    tags.feed(page)
    assert tags.open == []
    assert not {"link", "img", "iframe"} & set(tags.seen)
    assert "default-src 'none'" in page
    assert re.findall(r"<script[^>]* src=", page) == []
    assert re.findall(r"https?://", page) == []


def test_every_rule_of_the_run_has_a_row_with_its_sentence_and_verdict(report: Report) -> None:
    page = report_html(report)
    rows = re.findall(r'<tr id="(KV-[A-Z]+-\d+)"><th>\1<br>[^<]+</th><td>', page)
    wanted = [rule for rule in rule_sentences() if rule.startswith("KV-POOL-")]
    assert rows[: len(wanted)] == wanted
    assert {each.verdict for each in rule_outcomes(report).values()} >= {BROKEN, UNBROKEN}


def test_a_story_is_drawn_on_both_sides_up_to_the_difference(report: Report) -> None:
    subject = mistaken("TakesFromTheBack")
    violation = told(report.violations[0], subject, REFERENCE, report.options)
    shown = content(drawn(violation, subject, report.options))
    assert len(shown["frames"]) == len(shown["other"]) == len(violation.operations) + 1
    assert shown["frames"][:-1] == shown["other"][:-1]
    assert shown["frames"][-1] != shown["other"][-1]
    assert (shown["reference"], shown["replayed_on"]) == ("kvref", "mine:implementation")
    assert "folded" in shown["frames"][-1]
    page = report_html(report, [], [drawn(violation, subject, report.options)])
    assert page.count('<div class="story">') == 1
    assert page.count("@@STORY@@") == 2  # where it is filled in, and who fills it in


def drawn(violation: Violation, subject: Implementation, options: Options) -> Recording:
    found = story(violation, subject, REFERENCE, options)
    assert found is not None
    return found


def test_nothing_is_taken_for_markup(report: Report) -> None:
    options = replace(report.options, name="<script>alert(1)</script>")
    page = report_html(replace(report, options=options), ["<b>"])
    assert "<script>alert" not in page
    assert "record</dt><dd>&lt;b&gt;</dd>" in page


def test_a_rule_that_nothing_was_about_is_not_unbroken() -> None:
    options = Options(Level.SAFETY, Budget(0.0, 0))
    report = Suite(minimal(), None, options).run()
    found = rule_outcomes(report)
    assert found["KV-POOL-15"].verdict == UNBROKEN
    assert found["KV-MAMBA-2"].verdict == NOT_APPLICABLE
    assert found["KV-MAMBA-2"].reason == "needs MambaSpec"
    assert found["KV-POOL-6"].verdict == NOT_EXERCISED
    assert found["KV-POOL-6"].reason == "level safety does not decide it"
    page = report_html(report)
    assert "does not apply<br>needs MambaSpec" in page
    assert "Not checked, since there is no snapshot" in page
    assert "Left out" in page


def test_safety_decides_about_few_rules_whatever_programs_are_about() -> None:
    can = minimal().capabilities
    assert exercised({"KV-POOL-6"}, Level.SAFETY, can) == FROM_OUTSIDE
    assert exercised({"KV-POOL-6"}, Level.BEHAVIOUR, can) == FROM_OUTSIDE | {"KV-POOL-6"}
    assert exercised({"KV-POOL-11"}, Level.SAFETY, can) == FROM_OUTSIDE
    more = replace(can, features=can.features | {Feature.RESET})
    assert exercised({"KV-POOL-11"}, Level.SAFETY, more) == FROM_OUTSIDE | {"KV-POOL-11"}
    assert exercised((), Level.SAFETY, REFERENCE.capabilities) > FROM_OUTSIDE
    ledger = Ledger(about={"KV-STAT-4"}, evidence=[Evidence("a", ("KV-STAT-4", "KV-ERR-2"))])
    assert ledger.exercised(Level.BEHAVIOUR, can, 0) == {"KV-STAT-4"}  # it needs no manager
