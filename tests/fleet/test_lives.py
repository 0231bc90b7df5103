"""`kvspec check --index`: both twins keep every rule, and each mistake is found."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import kvfast
from kvcheck.cli import main
from kvcheck.discovery import find_index
from kvcheck.fleet.life import ILLEGAL, OF_TYPES
from kvcheck.fleet.suite import RULES, WEIGHTS, drawn
from kvcheck.fleet.suite import game_of as game_beside
from kvcheck.mistakes import Mistake
from kvcheck.play.lives import broken_by, judged
from kvcheck.remote.client import RemoteImplementation
from kvcheck.rules.directed import EXAMPLES
from kvspec.fleet import Heard, IndexCapabilities
from tests.kills.directed import finds
from tests.planted import INDEX, report_of
from tests.remote.servers import serve

game_of = partial(game_beside, model=find_index())
OF_INDEXES = [each for each in EXAMPLES if each.rules[0].startswith("KV-FLEET-")]
FLEET = [f"KV-FLEET-{number}" for number in (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17)]


@pytest.mark.rule(*FLEET)
@pytest.mark.parametrize(("name", "model"), [("kvref", "kvfast"), ("kvfast", "kvref")])
def test_a_twin_keeps_every_rule_and_all_are_tried(
    name: str, model: str, pytestconfig: pytest.Config
) -> None:
    lives = 20_000 if pytestconfig.getoption("--deep") else 150
    report = judged(game_beside(find_index(name), find_index(model)), num_lives=lives)
    assert report.findings == {}
    assert [rule for rule in RULES if report.tried[rule]] == FLEET


@pytest.mark.parametrize("options", ["", "+json"])
def test_an_index_in_another_process_is_judged_by_the_same_lives(options: str) -> None:
    subject = find_index(serve("kvfast", options=options))
    assert isinstance(subject, RemoteImplementation)
    with closing(subject):
        report = judged(game_of(subject), num_lives=12)
    assert report.findings == {}
    here = judged(game_of(find_index("kvfast")), num_lives=12)
    assert report.tried == here.tried


def test_a_program_without_an_index_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--index", serve("examples.own_manager.first:implementation")]) == 2
    assert "an index of engines" in capsys.readouterr().err


@pytest.mark.rule("KV-FLEET-9", "KV-FLEET-17")
@pytest.mark.parametrize("name", ["kvref", "kvfast"])
def test_lives_draw_every_move_and_see_every_outcome(name: str) -> None:
    game = game_of(find_index(name))
    lives = [game.drawn(seed) for seed in range(120)]
    assert {move.word for life in lives for move in life.moves} == set(WEIGHTS)
    players = [game.begun(life) for life in lives]
    assert {broken_by(game, player) for player in players} == {None}
    results = {line.rpartition("-> ")[2] for player in players for line in player.lines}
    assert {*Heard, "true", "false", "[]"} <= results
    wrong = [line for player in players for line in player.lines if "InvalidArgument" in line]
    assert len({line.partition(" -> ")[0] for line in wrong}) == len(ILLEGAL) + len(OF_TYPES)
    for line in wrong:
        member = line.partition(", ")[2].partition(":")[0]
        assert line.endswith(f'-> InvalidArgumentError field="{member}"')


@pytest.mark.rule(*FLEET)
@pytest.mark.parametrize("mistake", INDEX, ids=lambda each: str(each.id))
def test_examples_and_lives_find_a_mistake_and_name_its_rule_among_three(mistake: Mistake) -> None:
    with mistake.make():
        assert any(finds(check, kvfast.implementation()) for check in OF_INDEXES)
    report = report_of(mistake)
    assert set(report.named[:3]) & set(mistake.rules)
    assert min(len(each.lines) for each in report.findings.values()) <= 8


def test_an_index_without_order_is_given_each_batch_once_and_in_order() -> None:
    can = IndexCapabilities(frozenset(), orders_batches=False, checks_calls=False)
    subject = find_index("kvfast")
    life = replace(drawn(3, can), max_waiting=2)
    game = game_of(Declaring(subject, can))
    player = game.begun(life)
    assert broken_by(game, player) is None
    heard = [line for line in player.lines if line.startswith("hear")]
    assert heard
    assert all(line.endswith("-> applied") for line in heard)


class Declaring:
    """An implementation that declares this of its index."""

    def __init__(self, inner: Any, can: IndexCapabilities) -> None:
        self.inner, self.index_capabilities = inner, can

    def make_prefix_index(self, **options: Any) -> Any:
        return self.inner.make_prefix_index(**options)
