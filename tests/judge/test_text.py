"""Reports are short, exact, and end in a test that can be pasted."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from typing import Any

import pytest

import kvcheck.play.steps
import kvref
import kvspec.config
import kvspec.policy
import kvspec.specs
from kvcheck.judge.exchange import to_junit
from kvcheck.judge.happened import happened
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.pasted import example_test, source
from kvcheck.judge.report import (
    calls,
    configuration,
    violation_lines,
)
from kvcheck.judge.telling import told
from kvcheck.play.steps import Program
from kvcheck.play.text import operation_text, shortened
from kvcheck.play.verdicts import Level, first_violation
from kvcheck.remote.client import connect
from kvcheck.rules.directed import EXAMPLES, example_violation, find_example
from kvref.implementation import ReferenceImplementation
from kvspec.errors import UnsupportedError
from kvspec.policy import Policy
from tests.judge.test_reports import ways
from tests.mistakes import mistaken
from tests.programs import SCENARIOS


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
