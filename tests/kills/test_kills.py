"""Mistakes are what they say, every one is found, and the matrix is about them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

import pytest

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.mistakes import Mistake, MistakeError, about_rule, find
from kvcheck.mistakes.text import Change, changed, entries
from kvcheck.mistakes.twin import sources, twin
from kvcheck.rules.example import Example
from kvspec.errors import UnknownImplementationError
from tests.kills import matrix
from tests.kills.directed import directed_checks, finds
from tests.kills.layers import LAYERS
from tests.kills.matrix import KILLED
from tests.kills.page import everybody
from tests.mistakes import in_both, mistaken, mistakes, of_kvfast
from tests.source import ROOT

CELLS = matrix.read()
RULES = ROOT / "kvcheck" / "data" / "rules.json"
COMMON = [of_kvref for of_kvref, _ in in_both()]
REAL = [mistake for mistake in mistakes() if not mistake.equivalent]


def test_each_has_an_id_of_its_own_and_breaks_rules_that_there_are() -> None:
    assert len({mistake.id for mistake in everybody()}) == len(everybody())
    rules = set(json.loads(RULES.read_text(encoding="utf-8")))
    for mistake in everybody():
        assert set(mistake.rules) <= rules, mistake.id
        assert mistake.about.endswith((".", "…")), mistake.id


def killers_first(mistake: Mistake) -> Sequence[Example]:
    """Return the check that the matrix names, those on its rules, and the others."""
    cell = CELLS.get((mistake.id, "directed"))
    checks = directed_checks(mistake.kind)

    def order(check: Example) -> tuple[bool, bool]:
        is_named = cell is not None and check.name == cell.by
        return not is_named, set(check.rules).isdisjoint(mistake.rules)

    return sorted(checks, key=order)


EIGHTHS = pytest.mark.parametrize(
    "start", [pytest.param(n, marks=pytest.mark.deep if n else ()) for n in range(8)]
)


@EIGHTHS
def test_the_directed_suite_finds_each_that_no_other_layer_has_to_find(start: int) -> None:
    """Run an eighth at a time, the known killer first; one eighth without --deep."""
    unseen = {m for (m, of), c in CELLS.items() if of == "directed" and c.outcome != KILLED}
    survived = [
        mistake.id
        for mistake in REAL[start::8]
        if mistake.id not in unseen
        and not any(finds(check, mistake.make()) for check in killers_first(mistake))
    ]
    assert not survived


@EIGHTHS
@pytest.mark.parametrize("layer", sorted(LAYERS.keys() - {"directed", "production"}))
def test_another_layer_finds_again_what_it_found(layer: str, start: int) -> None:
    LAYERS[layer].prepare()
    named = {mistake.id: mistake for mistake in everybody()}
    found = [name for (name, of), cell in CELLS.items() if (of, cell.outcome) == (layer, KILLED)]
    assert not [name for name in found[start::8] if LAYERS[layer].find(named[name]) is None]


def test_each_is_killed_by_some_layer() -> None:
    """Leave mistakes written since the last run to the test above.

    The page would list one that nothing finds.
    """
    tried = {mistake for mistake, _ in CELLS}
    dead = {cell.mistake for cell in CELLS.values() if cell.outcome == KILLED}
    assert {mistake.id for mistake in (*REAL, *of_kvfast())} & tried <= dead
    assert {mistake.id for mistake in COMMON} <= dead  # by what compares with none of the twins


def test_what_mistakes_are_made_from_is_not_broken() -> None:
    subject = twin("kvref", ())
    assert type(subject.create).__name__
    for check in directed_checks()[::12]:
        assert not finds(check, subject), check.name


def test_the_reference_beside_a_mistake_stays_as_it_is() -> None:
    before = {name: module for name, module in sys.modules.items() if name.startswith("kvref")}
    broken = mistaken("PromisesOneTokenTooFew"), mistaken("ForgetsLookahead")
    assert {n: m for n, m in sys.modules.items() if n.startswith("kvref")} == before
    assert callable(kvref.implementation)
    assert not isinstance(broken[0], kvref.ReferenceImplementation)


def test_one_is_found_by_name_as_any_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcheck.mistakes.registry.installed", mistakes)
    assert find_implementation("mistake:TakesFromTheBack").capabilities.name == "kvref"
    assert find_implementation("tests.mistakes:TakesFromTheBack").capabilities.name == "kvref"
    with pytest.raises(UnknownImplementationError, match="no mistake is called Nobody"):
        find_implementation("mistake:Nobody")


def test_those_whose_first_rule_it_is_come_first() -> None:
    found = about_rule("KV-POOL-15", mistakes())
    firsts = [mistake.rules[0] == "KV-POOL-15" for mistake in found]
    assert found
    assert firsts == sorted(firsts, reverse=True)


SOURCE = '''
class Pool:
    """A pool."""

    size = 3

    @property
    def half(self) -> int:
        """Half of it."""
        return self.size // 2

    def take(self, n: int, *, last: bool = False) -> int:
        """Some."""
        if last:
            return n
        return n + 1


def double(n: int) -> int:
    return 2 * n
'''


def played(text: str, call: str) -> object:
    (entry,) = entries(f"Wrong KV-POOL-1: it.\n{text}")
    space: dict[str, object] = {}
    exec(changed(SOURCE, entry.changes), space)
    return eval(call, space)


@pytest.mark.parametrize(
    ("text", "call", "answer"),
    [
        ("@ m:Pool.take\n- return n + 1\n+ if n:\n+     return n + 2", "Pool().take(1)", 3),
        ("@ m:Pool.take\n+ return right(n, last=last) + 5", "Pool().take(1)", 7),
        ("@ m:Pool.take\n+ return right(**given | {'last': True})", "Pool().take(1)", 1),
        ("@ m:Pool.half\n+ return right + 1", "Pool().half", 2),
        ("@ m:Pool\n+ size = 9", "Pool().half", 4),
        ("@ m:double\n+ return right(n) + 1", "double(2)", 5),
        ("@ m\n+ def double(n):\n+     return n", "double(2)", 2),
        ("@ m:Pool.take\n- if last:\n-     return n", "Pool().take(1, last=True)", 2),
    ],
)
def test_a_change_is_what_it_says(text: str, call: str, answer: object) -> None:
    assert played(text, call) == answer


@pytest.mark.parametrize(
    "change",
    [
        Change("m", "Pool.take", ["return n"], ["return 0"]),  # it is there, but not as a line once
        Change("m", "Pool.take", ["return 3"], []),
        Change("m", "Pool.give", [], ["return 0"]),
        Change("m", "", ["size = 4"], []),
    ],
)
def test_a_change_that_does_not_fit_is_an_error(change: Change) -> None:
    source = SOURCE.replace("return n + 1", "return n") if "return n" in change.old else SOURCE
    with pytest.raises(MistakeError):
        changed(source, [change])


def test_nobody_and_what_is_no_mistake_are_errors() -> None:
    with pytest.raises(MistakeError, match="Nobody"):
        find("Nobody", mistakes())
    with pytest.raises(MistakeError, match="line 1"):
        list(entries("what is this?"))
    with pytest.raises(MistakeError, match=r"no module kvref\.nothing"):
        sources([Change("kvref.nothing", "", [], ["pass"])])
    with pytest.raises(MistakeError, match="undefined: unheard_of"):
        sources([Change("kvref.hashing", "encode", [], ["return unheard_of(value)"])])


@pytest.mark.parametrize(
    "mistake", [m for m in mistakes() if m.equivalent], ids=lambda m: str(m.id)
)
def test_the_change_of_one_that_nobody_sees_is_run(mistake: Mistake) -> None:
    """Reach it: it is equivalent because no caller sees the difference."""
    change = mistake.make.args[1][0]  # type: ignore[attr-defined]  # a partial of `twin`
    lines = sources([change])[change.module].splitlines()
    number = lines.index(next(line for line in lines if line.strip() == change.new[-1])) + 1
    reached = False

    def watch(frame: FrameType, event: str, argument: object) -> object:
        nonlocal reached
        reached = reached or frame.f_lineno == number
        return watch if frame.f_code.co_filename.endswith("mamba.py") else None

    subject = mistake.make()
    for check in directed_checks():
        if not set(mistake.rules).isdisjoint(check.rules):
            sys.settrace(watch)  # type: ignore[arg-type]  # it returns a trace function
            try:
                found = finds(check, subject)
            finally:
                sys.settrace(None)
            assert not found, check.name
    assert reached


def test_the_matrix_knows_only_layers_and_mistakes_that_there_are() -> None:
    assert {layer for _, layer in CELLS} <= LAYERS.keys()
    assert {mistake for mistake, _ in CELLS} <= {mistake.id for mistake in everybody()}


def test_a_mistake_whose_lines_are_gone_is_no_kill() -> None:
    """Raise an error: such a cell once counted as killed, as the process had ended."""
    gone = Change("kvref.block_pool", "BlockPool.touch", ["a line of long ago"], ["pass"])
    stale = replace(find("HandsOutBackwards", mistakes()), make=lambda: sources([gone]))
    with pytest.raises(MistakeError, match="0 times"):
        matrix.cell(stale, "directed", 60.0)


def test_a_layer_is_shown_what_it_is_about() -> None:
    about = {mistake.id: mistake for mistake in everybody()}
    for mistake, layer in CELLS:
        assert LAYERS[layer].is_about(about[mistake]), f"{mistake}, {layer}"
