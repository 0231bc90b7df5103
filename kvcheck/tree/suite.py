"""The lives of a tree, as a game for `kvcheck.play.lives`."""

from __future__ import annotations

from kvcheck.play.lives import Game, simpler
from kvcheck.tree.draw import drawn, plainer
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
        lambda life: simpler(life, plainer),
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
