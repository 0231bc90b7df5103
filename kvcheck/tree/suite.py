"""Draw the lives of an engine with a tree, and make them smaller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from types import MappingProxyType

from kvcheck.play.lives import Game, simpler
from kvcheck.tree.life import Life, Move, Player
from kvspec.tree import Part, TreeCapabilities, TreeConfig, TreeImplementation

RULES = tuple(f"KV-TREE-{number}" for number in range(1, 42))
"""Rules that lives judge."""

WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        **{"arrive": 14, "serve": 14, "match": 6, "admit": 20, "extend": 14, "run": 16},
        **{"checkpoint": 10, "finish": 8, "abort": 3, "retract": 3, "evict": 3, "wrong": 1},
        "reset": 0.3,
    }
)

TEXTS = (
    (1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3),
    (1, 2, 3, 4, 8, 8, 1, 2, 1, 1),
    (1, 2, 2, 1, 2, 2),
    (5,) * 9,
)
"""Prompts are beginnings of these."""


def drawn(seed: int, can: TreeCapabilities, *, num_moves: int = 100) -> Life:
    """Draw a life; equal seeds draw equal lives."""
    random = Random(f"tree {seed}")
    config, moves = _config(random, can), _moves(random, num_moves, can)
    later = Random(f"later {seed}")  # of what few subjects have: others keep their lives
    config = replace(config, tail_tokens=later.randint(0, 6) * (config.order == "tlru"))
    is_plain = not config.window_tokens and not config.num_states
    if can.has_host and can.has_nodes and is_plain and later.random() < 0.5:
        slots = config.page_size_tokens * later.choice([1, 2, 3, 4, 6, 12])
        config = replace(config, num_host_slots=slots)
    return Life(config, tuple(_with_more(moves, later, can)))


def _with_more(moves: Iterator[Move], random: Random, can: TreeCapabilities) -> Iterator[Move]:
    """Let requests be of sessions, and add moves that few subjects have."""
    words = [*["close"] * can.has_sessions, *["complete"] * can.has_host * 4]
    for move in moves:
        yield replace(move, session=random.choice(["", "s", "t"]) if can.has_sessions else "")
        if words and random.random() < 0.12:
            numbers, session = (random.randint(0, 3), 0, 0), random.choice("st")
            yield Move(random.choice(words), numbers=numbers, session=session)


def _config(random: Random, can: TreeCapabilities) -> TreeConfig:
    page = random.choice(can.page_sizes or (1, 1, 2, 2, 3))
    has_window = Part.WINDOW in can.parts and random.random() < 0.5
    has_state = Part.STATE in can.parts and random.random() < 0.5
    window_slots = page * random.randint(3, 14) if has_window else 0
    order = random.choice(sorted(can.orders)) if can.orders else "lru"
    return TreeConfig(
        page * random.randint(4, 16),
        page,
        random.randint(1, 5) if has_window else 0,
        window_slots,
        can.states_per_request * random.randint(2, 8) if has_state else 0,
        order,
        check_invariants=False,
    )


def _moves(random: Random, number: int, can: TreeCapabilities) -> Iterator[Move]:
    names = [f"r{n}" for n in range(random.randint(2, 4))]
    words = ["arrive"] * len(names)
    words += random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=number)
    for word in words:
        text = random.choice(TEXTS)
        numbers = (random.choice([1, 2, 3, 4, 12, 12]), random.randint(0, 3), random.randint(0, 1))
        if word == "evict":
            numbers = (random.choice([0, 1, 2, 3, 5]), *numbers[1:])
        salt = random.choice(["", "", "", "s" if can.has_salts else ""])
        length = random.choice([2, 4, 6, 6, 7, 12, random.randint(1, len(text))])
        yield Move(word, random.choice(names), text[:length], numbers, salt)


def plainer(move: Move) -> Iterator[Move]:
    """Yield the move with a shorter prompt, or with fewer tokens allocated."""
    if move.word == "arrive" and len(move.tokens) > 1:
        yield replace(move, tokens=move.tokens[:-1])
    if move.salt:
        yield replace(move, salt="")
    if move.session:
        yield replace(move, session="")


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
