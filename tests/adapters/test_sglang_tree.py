"""SGLang's trees behind the calls of `PrefixTree`; skipped where SGLang cannot be imported."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvcheck.adapters.sglang import engine, trees
from kvcheck.adapters.sglang.engine import SGLangUnavailableError
from kvcheck.play.lives import judged
from kvcheck.tree.suite import game_of
from kvspec.errors import InvalidArgumentError
from kvspec.tree import Part, StateCopy, TreeConfig
from tests.adapters.sglang_mistakes import FIXES, MISTAKES, found
from tests.adapters.test_reports import says_what_its_page_shows
from tests.source import ROOT

REPORTS = sorted((ROOT / "docs" / "reports").glob("sglang-0.5.23-*.md"))
CHANGES = {**FIXES, **MISTAKES}
SLOW = ("29860", "windows by one less")


@pytest.fixture
def sglang() -> Iterator[None]:
    try:
        engine.load_modules()
    except SGLangUnavailableError as error:
        pytest.skip(str(error))
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_what_cannot_be_imported_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang.version", None)
    with pytest.raises(SGLangUnavailableError, match=r"sglang==0\.5\.23"):
        trees.python_core()


@pytest.mark.usefixtures("sglang")
def test_a_server_refuses_too_few_states_and_pages_without_a_buffer() -> None:
    with pytest.raises(InvalidArgumentError, match="num_states"):
        trees.states().make_tree(TreeConfig(8, num_states=2))
    with pytest.raises(InvalidArgumentError, match="page_size_tokens"):
        trees.states().make_tree(TreeConfig(8, 2, num_states=3))


@pytest.mark.usefixtures("sglang")
def test_a_hit_copies_a_state_before_it_is_used() -> None:
    tree = trees.states().make_tree(TreeConfig(16, num_states=6))
    tree.arrive("a", [1, 2, 3])
    assert (tree.match("a"), tree.admit("a", 3)) == (0, 0)
    tree.run()
    first = tree.row("a").state
    assert tree.take_copies() == (StateCopy(None, first or -1),)
    tree.finish("a")
    tree.arrive("b", [1, 2, 3, 4])
    assert tree.admit("b", 4) == 3
    tree.run()
    assert tree.take_copies() == (StateCopy(first, tree.row("b").state or -1),)
    assert tree.counts(Part.STATE).num_protected == 1


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize(
    "name", ["python_core", "rust_core", "states", "rust_states", "sessions", "host"]
)
def test_lives_find_nothing_in_these(name: str) -> None:
    assert not judged(game_of(getattr(trees, name)()), num_lives=25).findings


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("in_session", {"KV-TREE-20", "KV-TREE-21"}),
        ("kept_in_session", {"KV-TREE-27"}),
        ("extra_buffer", {"KV-TREE-28"}),
    ],
)
def test_lives_find_the_faults(name: str, rules: set[str]) -> None:
    report = judged(game_of(getattr(trees, name)()), num_lives=80, fail_fast=True)
    assert set(report.findings) & rules


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize("name", [name for name in CHANGES if name not in SLOW])
def test_a_mistake_is_found_under_its_rule(name: str) -> None:
    rules, _, _, problem = found(CHANGES[name])
    assert set(rules) & set(CHANGES[name].rules), problem


@pytest.mark.usefixtures("sglang")
@pytest.mark.parametrize("page", REPORTS, ids=lambda page: str(page.stem))
def test_a_script_says_what_its_page_shows(page: Path, tmp_path: Path) -> None:
    says_what_its_page_shows(page, tmp_path)
