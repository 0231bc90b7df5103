"""The actions of proofs/models/pool.py are those of kvref: the same step on the same state."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import z3

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from proofs.models._pool.actions import ACTIONS
from proofs.models._pool.state import State, any_state, any_world
from tests.proofs.tabled import tabled

NUM_BLOCKS = 6
KEYS = (b"key 0", b"key 1", b"key 2")
NUM_TOKENS = (4, 4, 8)
"""What the keys cover."""

Term = Any


def seen(pool: BlockPool) -> State:
    """The state of a pool of kvref as the proof has it; a block's only claim bears its number."""
    queue, cached = tuple(pool.free_queue), [tuple(keys) for keys in pool.keys]
    place = [queue.index(b) if b in queue else -1 for b in range(NUM_BLOCKS)]

    def carries(block: Term, key: Term) -> Term:
        term: Term = z3.IntVal(0)
        for b, keys in enumerate(cached):
            for k in keys:
                here = z3.And(block == b, key == KEYS.index(k))
                term = z3.If(here, 1, term)
        return term

    return replace(
        any_state(),
        refs=tabled(pool.ref_counts),
        at=tabled(queue),
        pos=tabled(place),
        front=z3.IntVal(0),
        back=z3.IntVal(len(queue)),
        carries=carries,
        listed=carries,
        held=tabled(range(NUM_BLOCKS)),
        covered=tabled(pool.primary_num_tokens),
    )


def shown(state: State, values: Mapping[str, int | bool]) -> dict[str, list[int]]:
    """What a state says of each block and of the queue, with the unknowns of a step put in."""
    known = [
        (z3.Bool(name), z3.BoolVal(value))
        if isinstance(value, bool)
        else (z3.Int(name), z3.IntVal(value))
        for name, value in values.items()
    ]
    known += [
        (z3.Function("key_tokens", z3.IntSort(), z3.IntSort())(z3.IntVal(k)), z3.IntVal(n))
        for k, n in enumerate(NUM_TOKENS)
    ]

    def number(term: Term) -> int:
        found = z3.simplify(z3.substitute(z3.substitute(term, *known), *known))
        value: int = found.as_long()
        return value

    blocks = range(1, NUM_BLOCKS)
    return {
        "refs": [number(state.refs(z3.IntVal(b))) for b in blocks],
        "queue": [
            number(state.at(z3.IntVal(p)))
            for p in range(number(state.front + 0), number(state.back + 0))
        ],
        "keys": [
            number(state.carries(z3.IntVal(b), z3.IntVal(k)))
            for b in blocks
            for k in range(len(KEYS))
        ],
    }


def played(pool: BlockPool, rng: random.Random) -> tuple[str, dict[str, int | bool]] | None:
    """A random action on the pool, and the unknowns of the proof's step that are to be the same."""
    block, key = rng.randrange(1, NUM_BLOCKS), rng.randrange(len(KEYS))
    cached, used = bool(pool.keys[block]), pool.ref_counts[block] > 0
    longer = not cached or pool.primary_num_tokens[block] < NUM_TOKENS[key]
    values: dict[str, int | bool] = {"block": block, "key": key, "claim": block}
    match rng.choice(("allocate", "touch", "release", "register", "register_partial", "evict")):
        case "allocate" if pool.free_queue:
            count = rng.randrange(1, len(pool.free_queue) + 1)
            pool.allocate(count)
            return "allocate", {"count": count}
        case "touch" if cached:
            pool.touch([block])
            return "touch", values
        case "release" if used:
            pool.release([block])
            return "release", {"claim": block, "run": 0, "cached": cached, "to_front": True}
        case "register" if used and longer:
            pool.register(block, KEYS[key], NUM_TOKENS[key])
            return "register", values
        case "register_partial" if used and not longer and KEYS[key] not in pool.keys[block]:
            pool.register_partial(block, KEYS[key], NUM_TOKENS[key])
            return "register_partial", values
        case "evict":
            pool.forget(block)
            return "evict", values
    return None


def differences(pool: BlockPool, seed: int, num_actions: int) -> tuple[list[str], set[str]]:
    """Actions whose step is another one, and all that were played."""
    rng = random.Random(seed)
    differing, names = [], set()
    for _ in range(num_actions):
        before = seen(pool)
        action = played(pool, rng)
        if action is None:
            continue
        name, values = action
        names.add(name)
        step = ACTIONS[name](any_world(), before)
        if shown(step.after, values) != shown(seen(pool), {}):
            differing.append(name)
    return differing, names


@pytest.mark.rule("KV-POOL-3", "KV-POOL-5", "KV-POOL-6", "KV-POOL-10")
def test_each_step_of_the_proof_is_the_action_of_the_reference() -> None:
    """Random actions on a small pool: references, keys and the queue are the same afterwards."""
    pool = BlockPool(NUM_BLOCKS, events=EventLog(enabled=False, int_hashes=False))
    differing, names = differences(pool, 1, 150)
    assert not differing
    assert len(names) == 6


def test_an_action_that_is_another_one_is_seen() -> None:
    """Of older engines: unhashed blocks go to the back."""
    log = EventLog(enabled=False, int_hashes=False)
    pool = BlockPool(NUM_BLOCKS, events=log, unhashed_freed_to="back")
    differing, _ = differences(pool, 1, 150)
    assert set(differing) == {"release"}
