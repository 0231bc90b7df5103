"""Draw the lives of an offload manager, and make them smaller."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from kvcheck.offload.life import Life, Move, Player
from kvcheck.play.lives import Game, simpler
from kvspec.offload import CALLS, OffloadCapabilities, OffloadImplementation

RULES = tuple(f"KV-TIER-{number}" for number in range(9, 34))
"""Rules that lives judge."""

WEIGHTS: Mapping[str, int] = {
    **{"ask": 24, "store": 16, "stored": 16, "end_step": 12, "moved": 16, "loaded": 10},
    **{"arrive": 10, "finish": 8, "touch": 3, "gain": 4, "lose": 1, "late": 1, "reset": 1},
    "wrong": 6,
}

WEIGHTS_WHEN_FULL: Mapping[str, int] = {
    **{"ask": 20, "store": 30, "stored": 40, "touch": 20, "arrive": 6, "loaded": 12},
    **{"end_step": 8, "finish": 2, "wrong": 2},
}
"""Where the order of eviction is at stake."""

TEXTS = (b"abcdef", b"abxyz", b"mnop")
"""Prompts are beginnings of these, a key for each letter."""

QUOTAS = ({"x": 1}, {"x": 2, "y": 1}, {"x": 3, "y": 2, "": 1}, {"y": 0})
"""Quotas of the tenants of `kvcheck.offload.life.TENANTS`."""


def drawn(
    seed: int,
    *,
    with_lower: bool,
    num_moves: int = 100,
    offered: OffloadCapabilities | None = None,
) -> Life:
    """Draw a life; equal arguments draw equal lives. `offered`: options to draw from, in half."""
    random = Random(f"offload {seed}")
    options: tuple[tuple[str, Any], ...] = ()
    if offered is not None and seed // 2 % 2:
        options = tuple(_options(Random(f"options {seed}"), offered, with_lower=with_lower))
    is_full = any(name == "order" for name, _ in options) and not with_lower
    weights = WEIGHTS_WHEN_FULL if is_full else WEIGHTS
    moves = tuple(_moves(random, num_moves * (3 if is_full else 1), weights))
    if options and offered is not None:
        moves = tuple(_with_calls(Random(f"calls {seed}"), moves, offered.options))
    num_chunks = random.randint(1, 5)
    num_lower = random.randint(bool(options), 2) if with_lower else 0
    return Life(num_chunks, num_lower, moves, options)


def _options(
    random: Random, offered: OffloadCapabilities, *, with_lower: bool
) -> Iterator[tuple[str, Any]]:
    values: Mapping[str, tuple[Any, ...]] = {
        "order": tuple(sorted(offered.orders - {"lru"})),
        "store_after": (2, 3),
        "quotas": QUOTAS,
        "write_back": (True,) if with_lower else (),
        "ttl_steps": (1, 2, 4),
    }
    able = [name for name in values if values[name] and name in ("order", *offered.options)]
    number = min(len(able), random.choice((1, 1, 1, 2, 3)))
    for name in sorted(random.sample(able, number)):
        yield name, random.choice(values[name])


def _with_calls(random: Random, moves: Sequence[Move], options: Collection[str]) -> Iterator[Move]:
    """Yield the moves, and calls that a manager may do without behind some of them."""
    names = [name for name in CALLS if name in options]
    for move in moves:
        yield move
        if names and random.random() < 0.05:
            yield replace(move, word=random.choice(names))


def _moves(random: Random, number: int, weights: Mapping[str, int]) -> Iterator[Move]:
    names = [f"r{n}" for n in range(random.randint(1, 4))]
    words = ["arrive"] * len(names)
    words += random.choices(list(weights), list(weights.values()), k=number)
    prompts: dict[str, bytes] = {}
    for word in words:
        who, text = random.choice(names), random.choice(TEXTS)
        text = text[: random.randint(1, len(text))]
        if word == "arrive":
            prompts[who] = text
        elif word in ("store", "gain", "late") and random.random() < 0.8:  # of its own prompt
            text = prompts.get(who, text)
        if word in ("store", "touch", "gain", "lose", "late"):
            text = text[random.randrange(len(text)) if random.random() < 0.5 else 0 :]
        keys = tuple(bytes([letter]) for letter in text)
        yield Move(word, who, keys, random.randrange(12), random.random() < 0.8)


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
