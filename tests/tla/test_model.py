"""The checker explores the modules; `proofs.models.formal` does so with larger bounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.explore.bounds import Call, Configuration
from kvcheck.explore.search import Exploration, Pair, explore
from proofs.models._formal import _search
from proofs.models._formal._bounds import SMALL_MANAGER, TWO_TEXTS
from proofs.models._formal._cache import texts
from proofs.models._formal._checker import CheckerMissingError, check, node
from proofs.models._formal._manager import ManagerSide
from proofs.models._formal._search import Bounds
from proofs.models._formal._twins import DIFFERS, UnhashedToTheBack
from proofs.models.formal import check_bounds, verdict

EXPLORED: Mapping[str, str] = {
    "Admit": "admit",
    "Resume": "admit",
    "Compute": "compute",
    "Generate": "compute",
    "FreeRequest": "free",
    "Preempt": "preempt",
    "GiveUp": "give_up",
    "Evict": "evict",
    "EvictAll": "evict",
    "ResetCache": "reset",
}


pytestmark = pytest.mark.usefixtures("checker")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (ManagerSide(TWO_TEXTS), ManagerSide(replace(TWO_TEXTS, pool_class=UnhashedToTheBack))),
    ],
    ids=["manager"],
)
def test_a_mistake_in_kvref_is_found(right: Bounds, wrong: Bounds) -> None:
    assert verdict(check_bounds(right), _search.explore(wrong)) == DIFFERS


def test_next_of_the_module_reaches_the_states_that_its_moves_reach() -> None:
    bounds = ManagerSide(TWO_TEXTS)
    by_next = check(bounds.module, bounds.constants)
    assert by_next.graph.states == check_bounds(bounds).graph.states


def test_kvspec_explore_counts_the_same() -> None:
    bounds = ManagerSide(replace(SMALL_MANAGER, max_prompt=1))
    graph = _search.explore(bounds)
    actions = [label.partition("_")[0] for _, label, _ in graph.edges]
    found = Counter(EXPLORED[action] for action in actions if action != "Skip")
    configuration = Configuration(
        "as the model",
        "",
        bounds.bounds.config(),
        tuple(texts(1, 1, 1)),
        calls=frozenset({Call.PREEMPT, Call.EVICT, Call.RESET}),
        up_to_names=False,
    )
    counts = explore(Exploration(configuration), Pair(find_implementation("kvref"))).counts
    assert counts.states == len(graph.states)
    assert dict(counts.by_move) == dict(found)


def test_without_node_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CheckerMissingError, match="install Node"):
        node()
