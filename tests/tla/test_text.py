"""Values, moves and modules as text; nothing here needs the checker."""

from __future__ import annotations

import re

import pytest

from kvspec.invariants import INVARIANTS
from proofs.models._formal._bounds import compared, grown, larger, schedulers
from proofs.models._formal._checker import FOLDER, invariants_of, read, source_of
from proofs.models._formal._twins import GROWN, TWINS, UNFAIR, Twin, small
from proofs.models._formal._values import Move, text_of

MODULES = sorted(path.stem for path in FOLDER.glob("*.tla"))
MACHINES = sorted(path.stem for path in FOLDER.glob("*.cfg"))
RULE = re.compile(r"KV-[A-Z]+-\d+")


def test_a_value_is_written_as_the_checker_prints_it() -> None:
    value = {"b": (1, ()), "a": {(1, 2): (3,), (1,): ()}, "c": "x", "d": {}, "e": -1}
    assert text_of(value) == (
        '[a |-> (<<1>> :> <<>> @@ <<1, 2>> :> <<3>>), b |-> <<1, <<>>>>, c |-> "x", d |-> <<>>,'
        " e |-> -1]"
    )


def test_a_move_is_a_call_and_a_label() -> None:
    move = Move("Admit", (1, (0, 1), 2))
    assert (move.call, move.label) == ("Admit(1, <<0, 1>>, 2)", "Admit_1_x0x1_2")
    assert Move("TouchBlocks", (frozenset({2, 1}),)).call == "TouchBlocks({1, 2})"
    assert Move("ResetPool").call == "ResetPool"


GRAPHS = {**compared(), **grown(), **larger()}


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_no_two_moves_have_one_label(name: str) -> None:
    labels = [move.label for move in GRAPHS[name].moves()]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_the_moves_are_the_actions_of_the_module(name: str) -> None:
    bounds = GRAPHS[name]
    text = read(bounds.module)
    following = text.partition("\nNext ==")[2].partition("\n\n")[0]
    actions = {move.action for move in bounds.moves()}
    assert actions <= set(re.findall(r"\w+", following))


@pytest.mark.parametrize("module", MACHINES)
def test_a_configuration_gives_every_constant_a_value(module: str) -> None:
    config = (FOLDER / f"{module}.cfg").read_text(encoding="utf-8")
    given = set(re.findall(r"^  (\w+) (?:=|<-) ", config, re.MULTILINE))
    everything = {**{each.module: each.constants for each in compared().values()}}
    expected = schedulers()["scheduler"] if module == "Scheduler" else everything[module]
    assert given == set(expected)


@pytest.mark.parametrize("module", MACHINES)
def test_a_configuration_names_invariants_that_there_are(module: str) -> None:
    names = invariants_of(module)
    assert names
    source = source_of(module, {})
    assert all(re.search(rf"^{name} ==", source, re.MULTILINE) for name in names)


def test_the_invariants_of_kvspec_are_those_of_the_model() -> None:
    """Leave out what the model lacks: bytes, no caching, partial entries, sinks, orders."""
    left_out = {
        "keys_are_well_formed",
        "nothing_is_cached_with_caching_off",
        "keys_are_covered",
        "blocks_set_aside_are_alone",
        "ranks_are_in_order",
        "ranks_are_bounded",
    }
    named = {invariant.name for invariant in INVARIANTS}
    assert named - left_out <= set(invariants_of("Manager"))


@pytest.mark.parametrize("module", MODULES)
def test_every_rule_that_a_module_names_exists(module: str) -> None:
    rules = "\n".join(
        path.read_text(encoding="utf-8") for path in (FOLDER.parent / "rules").glob("*.md")
    )
    headings = set(re.findall(r"^### (KV-[A-Z]+-\d+) ", rules, re.MULTILINE))
    assert set(RULE.findall(read(module))) <= headings


@pytest.mark.parametrize("twin", [*TWINS, *UNFAIR, *GROWN], ids=lambda twin: twin.name)
def test_a_mistake_changes_its_module(twin: Twin) -> None:
    assert twin.text() != read(twin.module)
    assert twin.bounds in {*small(), *schedulers(), *grown()}
