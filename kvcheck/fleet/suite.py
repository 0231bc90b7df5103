"""Draw the lives of a fleet, and make them smaller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType

from kvcheck.fleet.engine import TEXTS, Engine, letter_of
from kvcheck.fleet.life import Life, Move, Player, capabilities_of
from kvcheck.fleet.shadow import rules
from kvcheck.fleet.stream import StreamPlayer
from kvcheck.play.lives import Game, simpler
from kvspec.fleet import MOST_WAITING, FleetImplementation, IndexCapabilities

RULES = rules(1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 17)
"""Rules that lives judge by calls."""
OF_STREAMS = rules(2, 4, 5, 8, 11, 13, 14)
"""Rules that lives judge of an index that reads what engines publish."""

WEIGHTS: Mapping[str, int] = MappingProxyType(
    {
        **{"step": 40, "ask": 14, "lost": 8, "again": 12, "replay": 4, "left_over": 3},
        **{"restart": 3, "hand_over": 4, "skip": 4, "forget": 1, "wrong": 4},
    }
)


def drawn(seed: int, can: IndexCapabilities, *, num_moves: int = 60) -> Life:
    random = Random(f"fleet {seed}")
    policy = random.choice(sorted(can.removed_event_per))
    most = random.choice([1, 2, MOST_WAITING]) if can.orders_batches else MOST_WAITING
    moves = tuple(_moves(random, num_moves, is_set=policy == "last_copy"))
    return Life(policy, most, random.random() < 0.3, moves)


def _moves(random: Random, number: int, *, is_set: bool) -> Iterator[Move]:
    """Draw moves; engines play along, so that removals are mostly of what is there."""
    names = ("e", "e#1", "f")[: random.randint(1, 3)]
    engines = {name: Engine(is_set=is_set) for name in names}
    for word in random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=number):
        who, text = random.choice(names), ""
        if word in ("step", "lost"):
            text = " ".join(_events(random, engines[who]))
        elif word == "restart":
            engines[who].restart()
        elif word == "ask":
            text = _prompt(random)
        yield Move(word, who, text, random.randrange(1000))


def _prompt(random: Random) -> str:
    text = random.choice(TEXTS)
    return text[: random.randint(1, len(text))]


def _events(random: Random, engine: Engine) -> Iterator[str]:
    for _ in range(random.choice([0, 1, 1, 2, 3])):
        word = _event(random, engine)
        engine.step(word, 0.0)
        yield word


def _event(random: Random, engine: Engine) -> str:
    place = random.choice(["", "", "", "/1", "@CPU"])
    text, draw = _prompt(random), random.random()
    if draw < 0.03:
        return random.choice(["*", "*", "*CPU", "*GPU"])
    if draw < 0.06:
        return "?"
    if draw < 0.15:
        return f"={text}{place}"
    there = sorted(engine.keys, key=repr)
    if draw < 0.5 and there:
        medium, group, block_hash = random.choice(there)
        where = f"/{group}" * (group != 0) + f"@{medium}" * (medium != "GPU")
        return f"-{letter_of(block_hash)}{where}"
    if random.random() < 0.3:  # what follows a prefix that is hit
        text = text[random.randrange(len(text)) :]
    return f"+{text}{place}"


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
