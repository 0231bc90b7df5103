"""The lives of an offload manager, as a game for `kvcheck.play.lives`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvcheck.offload.drawing import drawn
from kvcheck.offload.life import Life, Move, Player
from kvcheck.play.lives import Game, simpler
from kvspec.offload import OffloadImplementation

RULES = tuple(f"KV-TIER-{number}" for number in range(9, 34))
"""Rules that lives judge."""


def game_of(subject: OffloadImplementation) -> Game[Life]:
    """Return the lives of the subject's managers; every other one has no lower tiers."""
    offered = subject.offload_capabilities

    def drawn_for(seed: int) -> Life:
        with_lower = offered.has_lower_tiers and seed % 2 == 1
        return drawn(seed, with_lower=with_lower, offered=offered)

    return Game(
        RULES,
        "KV-TIER-24",
        drawn_for,
        lambda life: Player(subject, life),
        _smaller,
        lambda life: {
            "num_chunks": life.num_chunks,
            "num_lower": life.num_lower,
            **dict(life.options),
        },
    )


def _smaller(life: Life) -> Iterator[Life]:
    yield from simpler(life, _plainer)
    if life.num_chunks > 1:
        yield replace(life, num_chunks=life.num_chunks - 1)
    if life.num_lower > 1:
        yield replace(life, num_lower=life.num_lower - 1)
    for option in life.options:
        yield replace(life, options=tuple(each for each in life.options if each != option))


def _plainer(move: Move) -> Iterator[Move]:
    for keys in (move.keys[:-1], move.keys[1:]) if len(move.keys) > 1 else ():
        yield replace(move, keys=keys)
