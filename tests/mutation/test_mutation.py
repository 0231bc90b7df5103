"""The tool finds a weak test, changes what it says it changes, and its lists are in order."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation import counts, explained, killers, sampling, table
from tests.mutation.explained import Explained
from tests.mutation.generate import SourceFile, drawn
from tests.mutation.runner import Outcome, Result
from tests.mutation.swap import NotSwappedError
from tests.mutation.targets import ROOT, TARGETS, Target

TOY = ROOT / "tests" / "mutation" / "toy.py"
EQUIVALENT = "tests/mutation/toy.py:Counted.how_many: 0 → 1"
"""`min(…, default=1)` is below zero exactly where `min(…, default=0)` is."""
NO_LISTS = Explained({}, {})

# In a process of its own: pytest within pytest, and functions that are exchanged for good.
WHOLE = """
import sys
from pathlib import Path
from tests.mutation import whole
from tests.mutation.targets import Target
target = Target("toy", "", ("tests/mutation/toy.py",), (sys.argv[1],))
whole.run(target, Path(sys.argv[2]), jobs=2, budget_s=10.0, again=False)
"""
SAMPLE = """
import json, sys
from tests.mutation import sampling
from tests.mutation.explained import Explained
from tests.mutation.targets import Target
target = Target("toy", "", ("tests/mutation/toy.py",), (sys.argv[1],))
alive = dict.fromkeys(json.loads(sys.argv[2]), "")
lists = Explained({}, alive)
sys.exit(sampling.run([target], 5, 1, jobs=2, lists=lists, known={}))
"""


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script at the top of the repository."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def results(folder: Path) -> dict[str, Result]:
    """What a run of the whole toy wrote."""
    target = Target("toy", "", (), ())
    from tests.mutation.whole import known_results

    return known_results(target, folder)


def test_weak_tests_leave_mutants_alive_that_strong_ones_kill(tmp_path: Path) -> None:
    alive = {}
    for name in ("strong", "weak"):
        ran = python(WHOLE, f"tests/mutation/toy_{name}.py", str(tmp_path / name))
        assert ran.returncode == 0, ran.stderr
        found = results(tmp_path / name)
        assert set(found) == {mutant.name for mutant in SourceFile(TOY).mutants()}
        alive[name] = {
            result.name for result in found.values() if result.outcome is Outcome.SURVIVED
        }
    assert alive["strong"] == {EQUIVALENT}
    assert len(alive["weak"]) >= 5


def test_a_sample_fails_for_a_mutant_that_lives_and_is_on_no_list() -> None:
    names = [mutant.name for mutant in drawn(list(SourceFile(TOY).mutants()), 5, seed=1)]
    weak = "tests/mutation/toy_weak.py"
    unexplained = python(SAMPLE, weak, "[]")
    assert unexplained.returncode == 1, unexplained.stderr
    assert any(f"lives unexplained: {name}" in unexplained.stdout for name in names)
    assert python(SAMPLE, weak, json.dumps(names)).returncode == 0
    strong = "tests/mutation/toy_strong.py"
    assert python(SAMPLE, strong, json.dumps([EQUIVALENT])).returncode == 0


def test_a_change_is_in_a_function_and_in_no_text() -> None:
    mutants = list(SourceFile(TOY).mutants())
    changes = {mutant.change for mutant in mutants}
    assert {"> bound → >= bound", "3 → 4", "< 0 → <= 0"} <= changes
    assert {mutant.function for mutant in mutants} == {"Counted.__init__", "Counted.how_many"}
    assert not [change for change in changes if "INTEREST" in change or "sizesXX" in change]


def test_names_of_mutants_are_unique_and_a_draw_stays_when_other_functions_change() -> None:
    mutants = list(SourceFile(ROOT / "kvref" / "block_pool.py").mutants())
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    fewer = [mutant for mutant in mutants if not mutant.function.endswith(".touch")]
    order = [m.name for m in drawn(mutants, len(mutants), seed=7) if m in fewer]
    assert order == [m.name for m in drawn(fewer, len(fewer), seed=7)]


def test_a_change_that_is_none_is_refused() -> None:
    from tests.mutation.swap import put_in_place

    with pytest.raises(NotSwappedError, match="is the same"):
        put_in_place("tests/mutation/toy.py", "Counted.__init__", TOY.read_text(encoding="utf-8"))


def test_the_lists_give_reasons_and_name_files_that_there_are() -> None:
    lists = explained.read()
    for name, reason in [*lists.equivalent.items(), *lists.alive.items()]:
        assert (ROOT / name.partition(":")[0]).is_file(), name
        assert reason.endswith("."), name


def test_a_kind_of_change_may_be_equivalent_wherever_it_stands() -> None:
    lists = Explained({}, {}, (r"f\(\) → g\(\)( #\d+)?",))
    assert lists.explains("a.py:B.c: f() → g()")
    assert lists.explains("d.py:e: f() → g() #2")
    assert not lists.explains("a.py:B.c: 1 + f() → g()")


def test_a_mutant_listed_twice_is_refused(tmp_path: Path) -> None:
    lists = tmp_path / "lists.toml"
    group = 'reason = "Nobody sees it."\nmutants = ["a:b: 1 → 2"]\n'
    lists.write_text(f"[[equivalent]]\n{group}[[alive]]\n{group}", encoding="utf-8")
    with pytest.raises(ValueError, match="listed twice"):
        explained.read(lists)


def test_a_low_score_and_a_list_that_does_not_fit_are_complaints() -> None:
    name = "kvref/block_pool.py:BlockPool.touch: 1 → 2"
    nothing: dict[str, dict[str, Result]] = {target.name: {} for target in TARGETS}
    alive = {**nothing, "kvref": {name: Result(name, Outcome.SURVIVED)}}
    dead = {**nothing, "kvref": {name: Result(name, Outcome.KILLED, "a test")}}
    listed = Explained({name: "A reason."}, {})
    assert table.complaints(dead, NO_LISTS) == []
    assert table.complaints(alive, NO_LISTS) == ["kvref: 0.0 %", f"lives unexplained: {name}"]
    assert table.complaints(alive, listed) == []
    assert table.complaints(dead, listed) == [f"does not live: {name}"]


def test_what_is_equivalent_is_out_of_the_score_and_what_does_not_end_is_dead() -> None:
    kinds = {
        "a": Outcome.KILLED,
        "b": Outcome.TIMEOUT,
        "c": Outcome.SURVIVED,
        "d": Outcome.SURVIVED,
        "e": Outcome.SAME,
    }
    lists = Explained({"x:f: d": "A reason."}, {})
    row = counts.row(7, [Result(f"x:f: {name}", kind) for name, kind in kinds.items()], lists)
    assert row == counts.Row(there=7, killed=1, timeouts=1, equivalent=2, survived=1)
    assert row.tried == 5
    assert row.score == pytest.approx(2 / 3)


def test_the_page_shows_scores_that_are_high_enough() -> None:
    text = table.PAGE.read_text(encoding="utf-8")
    for target in TARGETS:
        line = next(line for line in text.splitlines() if line.startswith(f"| {target.name} |"))
        assert float(line.split("|")[-2].strip(" %")) >= 100 * target.enough


def test_the_page_is_that_of_the_counts(tmp_path: Path) -> None:
    known = counts.read()
    counts.write(known, tmp_path / "counts.json")
    assert counts.read(tmp_path / "counts.json") == known
    assert "\n".join(table.lines(known)) == table.PAGE.read_text(encoding="utf-8")


def test_a_file_without_a_result_is_tried_in_no_part() -> None:
    assert str(counts.Row(4)) == "4 | 0 | 0 | 0 | 0 | 0 | –"
    assert counts.total([counts.Row(4), counts.Row(5, killed=2)]) == counts.Row(9, killed=2)


def test_a_draw_keeps_what_lives_by_name() -> None:
    found = [Result("x:f: a", Outcome.SURVIVED), Result("x:f: b", Outcome.KILLED, "t")]
    drawn_now = counts.Draw.of("x", 3, 9, found)
    assert drawn_now == counts.Draw("x", 3, 9, 2, 1, 0, 0, ("x:f: a",))


def test_what_is_known_to_kill_is_there() -> None:
    """Half of it at least: a test may be renamed, and then the sample is slower."""
    tests = {
        test for found in killers.read().values() for tests in found.values() for test in tests
    }
    files = {test.partition("::")[0] for test in tests}
    assert sum((ROOT / file).is_file() for file in files) >= len(files) / 2


def test_a_draw_takes_from_every_target() -> None:
    shares = {target.name: len(mutants) for target, mutants in sampling.draw(TARGETS, 10, seed=1)}
    assert sum(shares.values()) == 10
    assert set(shares) == {target.name for target in TARGETS}
    assert min(shares.values()) > 0
