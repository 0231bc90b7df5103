"""Draw lives of a fleet; equal seeds draw equal lives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from types import MappingProxyType

from kvcheck.fleet.engine import TEXTS, Engine, letter_of
from kvcheck.fleet.life import Life, Move
from kvspec.fleet import MOST_WAITING, IndexCapabilities

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
