"""The lives of a fleet, as a game for `kvcheck.play.lives`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvcheck.fleet.draw import drawn
from kvcheck.fleet.life import Life, Move, Player, capabilities_of
from kvcheck.fleet.shadow import rules
from kvcheck.fleet.stream import StreamPlayer
from kvcheck.play.lives import Game, simpler
from kvspec.fleet import FleetImplementation

RULES = rules(1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17)
"""Rules that lives judge by calls."""
OF_STREAMS = rules(2, 4, 5, 8, 11, 13, 14)
"""Rules that lives judge of an index that reads what engines publish."""


def game_of(subject: FleetImplementation, model: FleetImplementation) -> Game[Life]:
    """Return the lives of the subject's index, beside one that is right."""
    can = capabilities_of(subject)
    player = StreamPlayer if can.is_stream else Player
    return Game(
        OF_STREAMS if can.is_stream else RULES,
        "KV-FLEET-9",
        lambda seed: drawn(seed, can, num_moves=30 if can.is_stream else 60),
        lambda life: player(subject, model, life),
        lambda life: simpler(life, _plainer),
        lambda life: {"hashes": "ints" if life.is_int else "bytes"},
        100.0 if can.is_stream else 20.0,
    )


def _plainer(move: Move) -> Iterator[Move]:
    words = move.text.split()
    if move.word == "ask" and len(move.text) > 1:
        yield replace(move, text=move.text[:-1])
    elif move.word in ("step", "lost"):
        for place, word in enumerate(words):
            shorter = [word[:-1]] if word[1:].isalpha() and len(word) > 2 else []
            for kept in ([], shorter):
                yield replace(move, text=" ".join((*words[:place], *kept, *words[place + 1 :])))
    if move.number % 1000 > 2:
        yield replace(move, number=0)
