"""`kvspec check --tree`: kvref keeps every rule, and each mistake is found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from kvcheck.discovery import find_implementation, find_tree
from kvcheck.mistakes import Mistake
from kvcheck.play.lives import broken_by, judged
from kvcheck.rules.notation.running import outcomes_of
from kvcheck.rules.notation.shipped import shipped_stories
from kvcheck.tree.blocks import BlockTrees
from kvcheck.tree.life import Life, Player
from kvcheck.tree.suite import RULES, WEIGHTS, game_of
from kvspec.errors import InvalidArgumentError
from kvspec.policy import Policy
from kvspec.tree import ORDERS, Part, TreeConfig
from tests.planted import TABLES
from tests.remote.servers import serve

LIVES = 150
ALL = [f"KV-TREE-{number}" for number in range(1, 42)]

BY_EXAMPLE_ALONE = {
    "HostDropsTheNewest": "which copy the host drops is not judged",
    "TailIsOneShort": "needs a node that begins where the tail does",
    "SplitMakesOld": "needs a leaf that is locked and older, and a half that is not",
    "WindowFromTheRootOnly": "needs as many live tokens as the window has, and no more",
}


@pytest.mark.rule(*ALL)
def test_kvref_keeps_every_rule_and_all_are_tried(pytestconfig: pytest.Config) -> None:
    lives = 20_000 if pytestconfig.getoption("--deep") else LIVES
    report = judged(game_of(find_tree("kvref")), num_lives=lives)
    assert report.findings == {}
    assert [rule for rule in RULES if report.tried[rule]] == ALL


@pytest.mark.rule("KV-TREE-1", "KV-TREE-4", "KV-TREE-5", "KV-TREE-12", "KV-TREE-25")
def test_kvref_audits_itself_after_each_call_of_a_life() -> None:
    game, subject = game_of(find_tree("kvref")), find_tree("kvref")
    for seed in range(20):
        life = game.drawn(seed)
        checked = replace(life.config, check_invariants=True)
        Player(subject, replace(life, config=checked)).play()


def test_lives_draw_every_move_part_and_order() -> None:
    game = game_of(find_tree("kvref"))
    lives: list[Life] = [game.drawn(seed) for seed in range(80)]
    assert {move.word for life in lives for move in life.moves} == {*WEIGHTS, "close", "complete"}
    assert {life.config.order for life in lives} == set(ORDERS)
    assert {life.config.page_size_tokens for life in lives} == {1, 2, 3}
    for name in ("window_tokens", "num_states", "tail_tokens", "num_host_slots"):
        assert {bool(getattr(life.config, name)) for life in lives} == {True, False}
    results: set[str] = set()
    for life in lives:
        player = Player(find_tree("kvref"), life)
        player.play()
        for line in player.lines:
            call, _, result = line.partition(" -> ")
            results.add(f"{call.split()[0]} {result}".strip())
    assert {"admit refused", "admit 6", "match 6", "extend True", "extend False"} <= results
    assert {"checkpoint", "retract", "reset", "abort", "finish"} <= results
    assert {"join", "close_session", "complete"} <= {each.split()[0] for each in results}


@pytest.mark.parametrize("mistake", TABLES["tree"][0], ids=lambda each: str(each.id))
def test_an_example_and_lives_find_a_mistake_and_name_its_rule_among_three(
    mistake: Mistake,
) -> None:
    subject = find_implementation(f"mistake:{mistake.id}")
    stories = [each for each in shipped_stories() if set(each.rules) & set(mistake.rules)]
    assert any(each.violation for each in outcomes_of(stories, subject, Policy()))
    game, first = game_of(find_tree(f"mistake:{mistake.id}")), list[str]()
    for seed in range(LIVES):
        broken = broken_by(game, game.begun(game.drawn(seed)))
        if broken is not None:
            first += [broken.rule, *broken.others]
        if set(first[:3]) & set(mistake.rules) or len(first) > 40:
            break
    by_lives = mistake.id not in BY_EXAMPLE_ALONE
    assert bool(first) == by_lives
    often = [rule for rule, _ in Counter(first).most_common(3)]
    assert not by_lives or set(often) & set(mistake.rules), first


@pytest.mark.rule("KV-TREE-33")
@pytest.mark.parametrize(
    ("config", "field"),
    [
        (TreeConfig(7, 2), "num_slots"),
        (TreeConfig(0), "num_slots"),
        (TreeConfig(8, 0), "page_size_tokens"),
        (TreeConfig(8, 2, 3, 5), "num_window_slots"),
        (TreeConfig(8, 2, 3), "num_window_slots"),
        (TreeConfig(8, 2, 0, 4), "num_window_slots"),
        (TreeConfig(8, num_states=-1), "num_states"),
        (TreeConfig(8, order="arc"), "order"),
    ],
)
def test_pools_that_cannot_be_made_are_refused(config: TreeConfig, field: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        find_tree("kvref").make_tree(config)
    assert caught.value.field == field


def test_what_a_subject_lacks_is_not_judged() -> None:
    class OfAccounts:
        """kvref's trees, of which only the accounts can be seen."""

        def __init__(self) -> None:
            whole = find_tree("kvref")
            self.make_tree = whole.make_tree
            self.tree_capabilities = replace(
                whole.tree_capabilities, has_nodes=False, has_rows=False, parts=frozenset[Part]()
            )

    report = judged(game_of(OfAccounts()), num_lives=40)
    assert report.findings == {}
    assert report.tried["KV-TREE-12"] > 0
    assert report.tried["KV-TREE-11"] == 0


@pytest.mark.parametrize(
    "name", ["kvref", "kvfast", "examples.own_manager.final:implementation", serve("kvref")]
)
def test_the_accounts_of_a_manager_of_blocks_are_right(name: str) -> None:
    subject = find_implementation(name)
    report = judged(game_of(BlockTrees(subject)), num_lives=6 if name.startswith("cmd") else 40)
    assert report.findings == {}
    assert {"KV-TREE-12", "KV-TREE-13", "KV-TREE-20"} <= set(report.tried)


@pytest.mark.parametrize(
    ("mistake", "rule"),
    [
        ("RefusalTakesABlock", "KV-TREE-21"),
        ("LastTokenMayHit", "KV-TREE-19"),
        ("SharedHitsAreNotCounted", "KV-TREE-12"),
        ("TouchLeavesTheBlockFree", "KV-TREE-12"),
    ],
)
def test_accounts_find_what_a_manager_of_blocks_loses(mistake: str, rule: str) -> None:
    subject = BlockTrees(find_implementation(f"mistake:{mistake}"))
    report = judged(game_of(subject), num_lives=40, fail_fast=True)
    (found,) = report.findings.values()
    assert rule in (found.rule, *found.others)
