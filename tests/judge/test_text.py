"""Reports are short, exact, and end in a test that can be pasted."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import kvcheck.play.steps
import kvref
import kvspec.config
import kvspec.policy
import kvspec.specs
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Report
from kvcheck.judge.pasted import example_test, source
from kvcheck.judge.report import text_lines, to_json, to_junit
from kvcheck.judge.suite import Suite
from kvcheck.play.difference import WrongAnswer, narrowed
from kvcheck.play.shadow import content_check
from kvcheck.play.steps import Arrive, Program
from kvcheck.play.text import operation_text, shortened, shown
from kvcheck.play.verdicts import Level
from kvcheck.rules.directed import EXAMPLES
from kvcheck.rules.scenarios import SCENARIOS
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation
from kvspec.policy import Policy
from tests.source import tree


def test_hashes_are_shown_by_their_first_digits() -> None:
    """As bytes and as text; a longer text that is no hash stays."""
    assert shown(bytes(range(32))) == "00010203…"
    assert shown([b"\x01\x02", "ab" * 32]) == "[0102, abababab…]"
    assert shown("the whole prompt is cached") == "'the whole prompt is cached'"


def test_a_long_value_is_cut_and_says_how_long_it_was() -> None:
    """Nobody reads three hundred characters."""
    text = shown(list(range(200)))
    assert len(text) < 230
    assert text.endswith("… (890 characters)")


def test_members_at_their_defaults_are_not_shown() -> None:
    """Of a value only what it says."""
    arrival = Arrive((1, 2), lora="x")
    assert shown(arrival) == "Arrive(prompt=[1, 2], lora='x')"


@pytest.mark.parametrize(
    ("expected", "observed", "where"),
    [
        ({"blocks": [[1, 2]], "n": 4}, {"blocks": [[1, 2]], "n": 6}, (".n", 4, 6)),
        ({"blocks": [[1], [2]]}, {"blocks": [[1], [3]]}, (".blocks[1]", [2], [3])),
        ([1, 2, 3], [1, 3, 2], ("", [1, 2, 3], [1, 3, 2])),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}, ("", {"a": 1, "b": 2}, {"a": 2, "b": 1})),
        (None, [[1]], ("", None, [[1]])),
    ],
)
def test_a_single_difference_is_shown_alone(
    expected: object, observed: object, where: tuple[object, ...]
) -> None:
    """What is equal on both sides is left out, and the path says where it was."""
    assert narrowed(expected, observed) == where


def test_what_is_quoted_in_words_is_shortened_too() -> None:
    """Bytes as they are written, hashes, and whatever is too long."""
    key = bytes(range(30, 66))
    text = f"block_keys changed from ({key!r}, b'') to {key.hex()}"
    assert shortened(text) == "block_keys changed from (1e1f2021…, b'') to 1e1f2021…"
    assert shortened('a count of 1234567890123456789 and b"it\'s"') == (
        "a count of 1234567890123456789 and 69742773"
    )
    assert shortened("x" * 900).endswith("… (900 characters)")


def test_a_wrong_answer_keeps_both_sides_apart() -> None:
    """For reports; the detail has them in one line."""
    wrong = WrongAnswer("name", "KV-POOL-6", "free queue", [1, 2], [2, 1])
    assert (wrong.expected, wrong.observed) == ("free queue: [1, 2]", "[2, 1]")
    assert wrong.detail == "expected free queue: [1, 2], got [2, 1]"


def test_a_call_is_shown_without_what_says_nothing() -> None:
    """Defaults of the operation, not everything that is false: `has_scheduled_reqs` is not."""
    arguments = {"num_new_tokens": 0, "reserved_blocks": 0, "has_scheduled_reqs": False}
    text = operation_text("allocate_slots", "r0", arguments)
    assert text == "allocate_slots('r0', num_new_tokens=0, has_scheduled_reqs=False)"


def namespace() -> dict[str, Any]:
    """What a pasted test imports."""
    found: dict[str, Any] = {}
    for module in (kvspec.config, kvcheck.play.steps, kvspec.policy, kvspec.specs):
        found |= vars(module)
    return found


@pytest.mark.parametrize("program", SCENARIOS, ids=lambda program: str(program.name))
def test_a_program_is_written_as_the_python_that_makes_it(program: Program) -> None:
    """Name and rules are left out."""
    again = eval(source(program), namespace())
    assert (again.config, again.steps) == (program.config, program.steps)


def test_an_example_is_pasted_by_its_name() -> None:
    """It is no program: the test finds it again."""
    example = EXAMPLES[0]
    policy = Policy(unhashed_freed_to="back")
    text = example_test(example.rules[0], example.name, "kvref", policy, "kvref", "behaviour")
    found: dict[str, Any] = {}
    exec(text, found)
    found[f"test_{example.rules[0].lower().replace('-', '_')}"]()


class WrongWayRound(BlockPool):
    """Releases in the order of the list."""

    def release(self, blocks: Any) -> None:
        super().release(list(reversed(list(blocks))))


@pytest.fixture(scope="module")
def report() -> Report:
    """A run that finds something."""
    options = Options(Level.IDENTITY, Budget(0.0, 0), name="mine:implementation")
    return Suite(ReferenceImplementation(WrongWayRound), kvref.implementation(), options).run()


def test_the_text_marks_the_operation_that_failed(report: Report) -> None:
    """One numbered operation per line, then what was expected and observed, each on its own."""
    lines = list(text_lines(report))
    marked = [number for number, line in enumerate(lines) if line.startswith("  >")]
    assert len(marked) == sum(bool(found.operations) for found in report.violations) > 0
    for number in marked:
        assert lines[number + 1].startswith("  expected  ")
        assert lines[number + 2].startswith("  observed  ")
        assert lines[number - 1].split()[0] in {str(n) for n in range(99)} | {"broken"}
    assert max(map(len, lines)) < 260


def test_json_has_both_sides_as_members(report: Report) -> None:
    """And the test to paste."""
    for violation in to_json(report)["violations"]:
        assert violation["expected"]
        assert violation["observed"]
        compile(violation["test"], "pasted", "exec")


def test_junit_has_them_in_the_message(report: Report) -> None:
    """CI systems show the message first."""
    assert b'message="expected ' in to_junit(report)


def test_every_check_of_content_says_what_it_expects(root: Path) -> None:
    """Not the rule: of a block with stale tokens, what a hash is explains nothing."""
    named = {
        call.args[0].value
        for name in ("content", "content_check")
        for call in ast.walk(tree(root / f"kvcheck/play/shadow/{name}.py"))
        if isinstance(call, ast.Call)
        and ast.unparse(call.func) == "InvariantViolation"
        and isinstance(call.args[0], ast.Constant)
    }
    assert named == set(content_check.SENTENCES)
