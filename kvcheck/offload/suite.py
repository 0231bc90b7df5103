"""The lives of an offload manager, as a game for `kvcheck.play.lives`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvcheck.offload.life import Life, Player, drawn
from kvcheck.play.lives import Game
from kvcheck.play.shrink import without_runs
from kvspec.offload import OffloadImplementation

RULES = tuple(f"KV-TIER-{number}" for number in range(9, 25))
"""Rules that lives judge."""


def game_of(subject: OffloadImplementation) -> Game[Life]:
    """Return the lives of the subject's managers; every other one has no lower tiers."""
    has_lower = subject.offload_capabilities.has_lower_tiers
    return Game(
        RULES,
        "KV-TIER-24",
        lambda seed: drawn(seed, with_lower=has_lower and seed % 2 == 1),
        lambda life: Player(subject, life),
        _smaller,
        lambda life: {"num_chunks": life.num_chunks, "num_lower": life.num_lower},
    )


def _smaller(life: Life) -> Iterator[Life]:
    for moves in without_runs(life.moves):
        yield replace(life, moves=moves)
    for number, move in enumerate(life.moves):
        if len(move.keys) > 1:
            for keys in (move.keys[:-1], move.keys[1:]):
                changed = replace(move, keys=keys)
                yield replace(
                    life, moves=(*life.moves[:number], changed, *life.moves[number + 1 :])
                )
    if life.num_chunks > 1:
        yield replace(life, num_chunks=life.num_chunks - 1)
    if life.num_lower > 1:
        yield replace(life, num_lower=life.num_lower - 1)
