"""Reports and pages: short, exact, well-formed, and ended by a test that can be pasted."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

import kvcheck.play.steps
import kvref
import kvspec.config
import kvspec.policy
import kvspec.specs
from kvcheck.discovery import find_implementation
from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.blame import Evidence
from kvcheck.judge.coverage import FROM_OUTSIDE, exercised
from kvcheck.judge.drawing import story
from kvcheck.judge.exchange import github_lines, to_junit, to_sarif
from kvcheck.judge.happened import happened
from kvcheck.judge.ledger import Ledger
from kvcheck.judge.options import BUDGETS, Budget, Options, same_code
from kvcheck.judge.outcome import Report, Verdict
from kvcheck.judge.page import report_html
from kvcheck.judge.pasted import example_test, source
from kvcheck.judge.report import calls, configuration, text_lines, to_json, violation_lines
from kvcheck.judge.suite import Suite
from kvcheck.judge.telling import told
from kvcheck.play.situations import SITUATIONS
from kvcheck.play.steps import Program
from kvcheck.play.text import operation_text, shortened
from kvcheck.play.verdicts import Level, Violation, first_violation
from kvcheck.remote.client import connect
from kvcheck.rulebook import rule_sentences
from kvcheck.rules.directed import EXAMPLES, example_violation, find_example
from kvcheck.view.model import Recording
from kvcheck.view.page import content
from kvref import ReferenceImplementation
from kvref.block_pool import BlockPool
from kvspec.errors import UnsupportedError
from kvspec.interface import Feature, Implementation
from kvspec.policy import Policy
from tests.cases import Case, cases
from tests.mistakes import mistaken
from tests.programs import SCENARIOS
from tests.stand_ins import minimal

REFERENCE = kvref.implementation()
DIRECTED = dict(BUDGETS)["directed"]
SEEN = Counter([situation for situation in SITUATIONS if situation != "eviction"])
"""Whatever situations there are, so that a new one changes no report but the JSON."""


def run(subject: str, level: str, *rules: str) -> Report:
    made = {"alone": REFERENCE, "minimal": minimal()}.get(subject) or mistaken(subject)
    options = Options(Level(level), DIRECTED, rules, name=f"mine:{subject}", oracle="kvref")
    options = replace(options, self_checks_only=subject == "alone")
    return Suite(made, None if subject == "minimal" else REFERENCE, options).run()


def ways(*numbers: str) -> Report:
    """Return a run with these violations of one rule, the last of another."""
    made = [
        Violation("KV-POOL-6", "name", "", SCENARIOS[0], (("free", "r0", {}),) * int(number), "1")
        for number in numbers
    ]
    told = (*(replace(each, observed="2") for each in made), replace(made[0], rule="KV-POOL-11"))
    options = Options(Level.IDENTITY, DIRECTED, ("KV-POOL-6", "KV-POOL-11"))
    return Report("mine", options, told, 1, 0, {}, Counter(), 0.0, more={"KV-POOL-6": 2})


def as_lines(form: str, report: Report) -> list[str]:
    if form in ("json", "sarif"):
        content = to_json(report) if form == "json" else to_sarif(report)
        return json.dumps(content, indent=1, ensure_ascii=False).splitlines()
    if form == "github":
        return list(github_lines(report))
    if form == "brief":
        return list(text_lines(report, verbose=False))
    if form == "junit":
        root = ET.fromstring(to_junit(report))
        ET.indent(root)
        return ET.tostring(root, encoding="unicode").splitlines()
    return list(text_lines(report))


@pytest.mark.parametrize("case", cases(__file__, "reports.txt"), ids=str)
def test_a_report_is_as_it_was_read(case: Case) -> None:
    (asked,) = case.given
    form, *words = asked.split()
    report = ways(*words[1:]) if words[0] == "ways" else run(*words)
    case.expect(as_lines(form, replace(report, seconds=0.0, situations=SEEN)))


class OtherPool(BlockPool):
    """Another one by name."""


def test_the_same_code_is_one_class_with_the_same_parts() -> None:
    assert same_code(REFERENCE, kvref.implementation())
    assert not same_code(ReferenceImplementation(OtherPool), REFERENCE)
    assert not same_code(find_implementation("kvfast-uncompiled"), REFERENCE)


@pytest.mark.parametrize(
    ("tokens", "told"),
    [
        ([0, 1, 2, 3], "[0, 1, 2, 3]"),
        ([7] * 9, "[7] * 9"),
        ([*range(60)], "[0 … 59]"),
        ([0, 1, 2, *range(100, 126), 5], "[0, 1, 2, 100 … 125, 5]"),
        ([0, 1, 2, 100, 101, 102, 7, 8], "[0, 1, 2, 100, 101, 102, 7, 8]"),
    ],
)
def test_many_tokens_in_a_row_are_told_by_their_ends(tokens: list[int], told: str) -> None:
    said = operation_text("new_request", "r", {"prompt_token_ids": tokens})
    assert said == f"new_request('r', prompt_token_ids={told})"


def test_what_is_quoted_in_words_is_shortened_too() -> None:
    key = bytes(range(30, 66))
    text = f"block_keys changed from ({key!r}, b'') to {key.hex()}"
    assert shortened(text) == "block_keys changed from (1e1f2021…, b'') to 1e1f2021…"
    assert shortened('a count of 1234567890123456789 and b"it\'s"') == (
        "a count of 1234567890123456789 and 69742773"
    )
    assert shortened("x" * 900).endswith("… (900 characters)")


def namespace() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for module in (kvspec.config, kvcheck.play.steps, kvspec.policy, kvspec.specs):
        found |= vars(module)
    return found


@pytest.mark.parametrize("program", SCENARIOS, ids=lambda program: str(program.name))
def test_a_program_is_written_as_the_python_that_makes_it(program: Program) -> None:
    again = eval(source(program), namespace())
    assert (again.config, again.steps) == (program.config, program.steps)


def test_an_example_is_pasted_by_its_name() -> None:
    example = EXAMPLES[0]
    policy = Policy(unhashed_freed_to="back")
    text = example_test(example.rules[0], example.name, "kvref", policy, "kvref", "behaviour")
    found: dict[str, Any] = {}
    exec(text, found)
    found[f"test_{example.rules[0].lower().replace('-', '_')}"]()


def test_an_example_tells_the_calls_that_it_made() -> None:
    subject = mistaken("SkipsOneTokenMore")
    violation = example_violation(find_example("KV-SW-1"), subject, Policy())
    assert violation is not None
    options = Options(Level.IDENTITY, Budget(0.0, 0))
    whole = told(violation, subject, kvref.implementation(), options)
    assert [call.partition("(")[0] for call in calls(whole)] == [
        "new_request",
        "get_computed_blocks",
        "allocate_slots",
        "record_prefix_cache_stats",
        "remove_skipped_blocks",
    ]
    assert configuration(whole) == (
        "10 blocks; sliding window, 4 tokens per block, window 6; max_model_len_tokens=1000"
    )


class RefusesRequests(ReferenceImplementation):
    def make_request(self, manager: Any, request: Any) -> Any:
        raise UnsupportedError("requests", "picky")


class TakesNoToken(ReferenceImplementation):
    def append_tokens(self, manager: Any, request: Any, token_ids: Any) -> None:
        raise UnsupportedError("tokens", "picky")


@pytest.mark.parametrize(
    ("subject", "rule", "last"),
    [
        (RefusesRequests(), "KV-SW-1", ("new_request", "r")),
        (TakesNoToken(), "KV-REQ-2", ("append_tokens", "r")),
    ],
)
def test_a_refused_call_ends_the_story(
    subject: ReferenceImplementation, rule: str, last: tuple[str, str]
) -> None:
    violation = example_violation(find_example(rule), subject, Policy())
    assert violation is not None
    whole = told(violation, subject, None, Options(Level.IDENTITY, Budget(0.0, 0)))
    assert whole.operations[-1][:2] == last


def test_a_call_about_no_request_is_named() -> None:
    """No record has a place for it, so there is no story."""

    class Careless(ReferenceImplementation):
        def create(self, *given: Any, **options: Any) -> Any:
            manager = super().create(*given, **options)
            manager.free = lambda request: None  # type: ignore[method-assign]
            return manager

    subject = Careless()
    violation = example_violation(find_example("a foreign request is refused"), subject, Policy())
    assert violation is not None
    whole = told(violation, subject, None, Options(Level.IDENTITY, Budget(0.0, 0)))
    assert not whole.operations
    assert whole.expected.startswith("how the call ends, free(request='ForeignRequest'): ")
    assert happened(whole) == "an illegal free is accepted"


def test_a_server_gets_the_messages_that_show_it() -> None:
    subject = connect(f"cmd:{sys.executable} -m kvcheck.cli serve mistake:TakesFromTheBack")
    program = next(each for each in SCENARIOS if "KV-POOL-3" in each.rules)
    violation = first_violation(program, subject, Level.IDENTITY, kvref.implementation())
    assert violation is not None
    options = Options(Level.IDENTITY, Budget(0.0, 0), name="cmd:mine")
    lines = list(violation_lines(options, told(violation, subject, None, options)))
    subject.close()
    assert "  as a test:" not in lines
    messages = [json.loads(line[6:]) for line in lines if line.startswith("    > {")]
    assert [message["id"] for message in messages] == list(range(len(messages)))
    assert [messages[0]["op"], messages[1]["op"]] == ["hello", "create_manager"]
    assert lines[-1].startswith(f'    < {{"id":{messages[-1]["id"]},"result":')


def test_junit_is_xml_whatever_a_subject_is_called() -> None:
    strange = replace(ways("1"), subject="x\x1b[31m\ud800\0é\n")
    suite = ET.fromstring(to_junit(strange))
    assert suite.get("name", "").startswith("kvspec check x\\x1b[31m\\ud800\\x00é")


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
    assert {each.verdict for each in rule_outcomes(report).values()} >= {
        Verdict.BROKEN,
        Verdict.UNBROKEN,
    }


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
    assert found["KV-POOL-15"].verdict == Verdict.UNBROKEN
    assert found["KV-MAMBA-2"].verdict == Verdict.NOT_APPLICABLE
    assert found["KV-MAMBA-2"].reason == "needs MambaSpec"
    assert found["KV-POOL-6"].verdict == Verdict.NOT_EXERCISED
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
