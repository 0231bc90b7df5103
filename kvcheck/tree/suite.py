"""The lives of a tree, as a game for `kvcheck.play.lives`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvcheck.play.lives import Game
from kvcheck.play.shrink import without_runs
from kvcheck.tree.draw import drawn, smaller
from kvcheck.tree.life import Life, Player
from kvspec.tree import TreeImplementation

RULES = tuple(f"KV-TREE-{number}" for number in range(1, 42))
"""Rules that lives judge."""


def game_of(subject: TreeImplementation) -> Game[Life]:
    """Return the lives of the subject's trees."""
    can = subject.tree_capabilities
    return Game(
        RULES,
        "KV-TREE-33",
        lambda seed: drawn(seed, can),
        lambda life: Player(subject, life),
        _smaller,
        lambda life: {
            "slots": life.config.num_slots,
            "page": life.config.page_size_tokens,
            "window": life.config.window_tokens,
            "window slots": life.config.num_window_slots,
            "states": life.config.num_states,
            "host slots": life.config.num_host_slots,
            "order": life.config.order,
        },
    )


def _smaller(life: Life) -> Iterator[Life]:
    for moves in without_runs(life.moves):
        yield replace(life, moves=moves)
    yield from smaller(life)
