"""The notation of spec/examples.md: how it is read, what a line judges, and failures."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest
from click.testing import CliRunner

import kvref
from kvcheck.cli.examples import command
from kvcheck.discovery import find_implementation
from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.running import Outcome, blessed, drawn_story, outcomes_of
from kvcheck.rules.notation.shipped import example_of, written_stories
from kvcheck.rules.notation.story import stories_of
from kvcheck.rules.notation.values import Reader, evaluated
from kvcheck.rules.notation.verbs import Verbs
from kvspec.policy import Policy
from tests.cases import Case, cases
from tests.notation.neighbours import survivors
from tests.regenerate import load_table
from tests.source import ROOT

REFERENCE = kvref.implementation()
WINDOW = """== KV-SW-1  a window
pool 10; window 6 of 4
start r 0..15
remove_skipped_blocks r 9
blocks r -> [- 2 3 4]
queue -> [5 6 7 8 9 1]
"""

WITHOUT: Mapping[str, str] = {
    "a device plane, on tensors": "DEV",
    "messages of engines": " ".join(f"KV-FLEET-{n}" for n in (10, 11, 13, 14, 15, 16, 18)),
    "types of values": "KV-REQ-5 KV-CFG-9",
    "files, packages, and what no choice changes": "KV-POL-1 KV-POL-8",
    "threads and memory": "KV-ERR-7 KV-ERR-8",
}
"""Rules whose Example is no text that runs yet, by what the notation does not say."""


def outcome(text: str, name: str = "kvref") -> Outcome:
    (found,) = outcomes_of(stories_of(text, "x.kv"), find_implementation(name), Policy())
    return found


def test_every_rule_has_an_example_that_runs_or_stands_on_the_list() -> None:
    table = load_table()
    shown = {story.rules[0] for story in written_stories() if story.path.endswith(".md")}
    listed = {word for words in WITHOUT.values() for word in words.split()}
    rules = {rule.id for rule in table.find_rules() if not rule.withdrawn}
    lacking = {rule for rule in rules - shown if rule.split("-")[1] not in listed}
    assert lacking == {word for word in listed if word.startswith("KV-")}


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ("blocks r -> [- 2 3 4]", "blocks r -> [- - 3 4]"),
        ("queue -> [5 6 7 8 9 1]", "queue -> [5 6 7 8 1 9]"),
        ("remove_skipped_blocks r 9", "remove_skipped_blocks r 8"),
        ("remove_skipped_blocks r 9", "remove_skipped_blocks r 9 -> unchanged"),
        ("remove_skipped_blocks r 9", "remove_skipped_blocks r 9 -> InvalidArgumentError"),
        ("blocks r -> [- 2 3 4]", "cdiv(6 - 1, 4) = 3"),
        ("start r 0..15", "start r 0..99"),
    ],
)
def test_a_line_that_is_not_so_fails(line: str, changed: str) -> None:
    assert outcome(WINDOW).violation is None
    assert outcome(WINDOW.replace(line, changed)).violation is not None


def test_a_failure_shows_the_line_and_the_state_before() -> None:
    found = outcome(WINDOW, "mistake:SkipsOneTokenMore")
    wrong = outcome(WINDOW.replace("r 9", "r 8").replace("[- 2 3 4]", "[1 2 3 4]"), "kvref")
    assert found.violation is None  # at 9 tokens one more changes nothing
    assert wrong.violation is not None
    assert wrong.place == "x.kv:6: queue -> [5 6 7 8 9 1]"
    assert wrong.state.split("\n") == [
        "r            [1* 2* 3* 4*]   16 of 16 tokens computed",
        "free queue   [5 6 7 8 9]",
    ]


@pytest.mark.parametrize("mistake", ["RunForWTokens", "RunOneTooShort", "NoBlockMoreToDrop"])
def test_an_off_by_one_is_found_by_its_own_rule(mistake: str) -> None:
    result = CliRunner().invoke(
        command, [f"mistake:{mistake}", "--rules", "KV-SW-2"], standalone_mode=False
    )
    assert result.return_value == 1
    assert re.search(r"spec/rules/sliding_window[.]md:\d+: hit again -> ", result.output)
    assert "KV-SW-2 (window longest hit)" in result.output


@pytest.mark.parametrize("case", cases(__file__, "none.txt"), ids=str)
def test_what_is_none_of_the_notation_is_said_so(case: Case) -> None:
    with pytest.raises(NotationError) as caught:
        outcome("\n".join(["== KV-SW-1", *case.given, ""]))
    case.expect([str(caught.value)])


def test_what_is_left_out_has_a_usual_size() -> None:
    text = "== KV-SW-1\npool; window\nnew r\nr.num_tokens -> 80\nallocate_slots r 80\n"
    text += "remove_skipped_blocks r 15\nblocks r -> [- - 3..20]\n"
    assert outcome(text).violation is None
    assert outcome(text.replace("r 15", "r 14")).violation is not None  # a window of 8


def test_a_word_for_a_number_breaks_a_rule() -> None:
    assert outcome("== KV-SW-1\npool 6; full of four\n").violation is not None


def test_words_are_read() -> None:
    assert evaluated("cdiv(6 - 1, 4) + max(1, 2) * 3") == 8
    assert Reader('1..3 [- 2 [repeat(7, 2)]] "a b" -1 none').values() == [
        [1, 2, 3],
        [0, 2, [7, 7]],
        "a b",
        -1,
        None,
    ]


def test_letters_are_blocks_and_dots_are_tokens() -> None:
    text = '== KV-SW-1\npool; full of 8; window 5\nstart a "ab.."\nappend a "."\nnew b "abc"\n'
    text += "a.num_tokens -> 19\nb.num_tokens -> 24\nhit b -> 16 [1 2] [- - - 7]\n"
    assert outcome(text).violation is None
    changed = {each.line: passes for each, passes in survivors(stories_of(text, "x.kv"))}
    assert [line for line, passes in changed.items() if passes] == ["2: pool; full of 8; window 4"]
    assert {'3: start a "ab."', '3: start a "ab..."', '3: start a "db.."'} <= set(changed)


def test_a_table_is_played_for_each_row() -> None:
    text = "== KV-SW-1\nfor C LEFT in 8 [1 2]; 9 [- 2]\npool; window 6 of 4\nstart r 0..7\n"
    text += "remove_skipped_blocks r C\nblocks r -> LEFT\n"
    assert outcome(text).violation is None
    found = outcome(text.replace("9 [- 2]", "9 [1 2]"))
    assert found.place.endswith("(C = 9, LEFT = [1 2])")


def test_open_answers_are_filled_in() -> None:
    text = WINDOW.replace("[5 6 7 8 9 1]", "?").replace("[- 2 3 4]", "?")
    text += "\n== KV-SW-1  a table\nfor C N in 8 ?; 9 ?\npool 10; window 6 of 4\nstart r 0..15\n"
    text += "remove_skipped_blocks r C\nnum_free_blocks -> N\n"
    text += "\n== KV-BATCH-7  a step\npool; full of 4\nnew r 0..5\nstep new=[r] -> ?\n"
    filled = blessed(text, "x.kv", REFERENCE)
    assert not any(
        each.violation for each in outcomes_of(stories_of(filled, "x.kv"), REFERENCE, Policy())
    )
    assert "queue -> [5..9 1]" in filled
    assert "for C N in 8 5; 9 6" in filled
    assert "?" not in filled


def test_what_a_subject_lacks_leaves_out_that_manager_and_no_other() -> None:
    text = "== KV-POL-2\npool; full of 4; usual exact_block_ids\nqueue -> [7]\npool 3; full of 4\n"
    stories = stories_of(text + "num_free_blocks -> 2\n", "x.kv")
    (found,) = outcomes_of(stories, REFERENCE, Policy(exact_block_ids=False))
    assert (found.violation, found.left_out, found.in_part) == (None, "", "exact_block_ids True")
    (found,) = outcomes_of(stories_of(text, "x.kv"), REFERENCE, Policy(exact_block_ids=False))
    assert found.left_out


def test_what_an_example_asks_is_its_level() -> None:
    levels = {
        "queue -> [1]": Level.IDENTITY,
        "num_free_blocks -> 1\nqueue -> [1]": Level.BEHAVIOUR,
        "free_blocks [1] -> BlockReleaseError": Level.SAFETY,
        "new r 1\nhit r -> at_most 0": Level.SAFETY,
    }
    for lines, level in levels.items():
        (story,) = stories_of(f"== KV-SW-1\npool 2; full of 4\n{lines}\n", "x.kv")
        assert example_of(story).level is level


def test_the_state_is_drawn_behind_each_line_that_changed_it() -> None:
    (story,) = stories_of(WINDOW, "x.kv")
    assert list(drawn_story(story, REFERENCE))[2:6] == [
        "start r 0..15",
        "    r            [1* 2* 3* 4*]   16 of 16 tokens computed",
        "    free queue   [5 6 7 8 9]",
        "remove_skipped_blocks r 9",
    ]


def test_an_example_that_an_off_by_one_passes_is_noticed() -> None:
    """Change W = 6, which can't tell cdiv(W - 1, 4) from cdiv(W, 4); W = 5 can."""
    text = "== KV-SW-2\npool; window 6 of 4\nstart a 0..15\nkeep a 1 2\nnew b 0..15\nhit b -> 12\n"
    left = [each.line for each, passes in survivors(stories_of(text, "x.kv")) if passes]
    assert "2: pool; window 7 of 4" in left
    assert not any("hit b" in line for line in left)


def test_every_word_of_the_notation_is_described() -> None:
    page = (ROOT / "spec/examples.md").read_text(encoding="utf-8")
    used = {line.text.split()[0] for story in written_stories() for line in story.lines}
    calls = {"".join(word) for word in re.findall(r"`([a-z_]+)", page)}
    assert used & set(Verbs(Bench(REFERENCE, Policy())).verbs) <= calls
