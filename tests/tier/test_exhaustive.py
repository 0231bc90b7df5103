"""Every state that small lives with a first tier can reach, on both twins, and the end of each."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import pytest

from kvcheck.discovery import find_offload
from kvcheck.offload.life import Life, Move, Player
from kvcheck.play.lives import BrokenRuleError


@dataclass(frozen=True)
class World:
    """Places, lower tiers, and the prompts of the requests that come and go."""

    num_chunks: int
    num_lower: int
    prompts: tuple[tuple[str, bytes], ...]
    below: bytes = b""
    """Keys that lower tiers have at the beginning."""


SMALL = World(1, 1, (("r0", b"ab"), ("r1", b"b")), b"a")
WHOLE = World(2, 1, (("r0", b"abc"), ("r1", b"c")), b"ac")


def keys_of(text: bytes) -> tuple[bytes, ...]:
    return tuple(bytes([letter]) for letter in text)


def moves(world: World) -> Iterator[Move]:
    for who, text in world.prompts:
        keys = keys_of(text)
        yield Move("arrive", who, keys)
        yield Move("ask", who)
        yield Move("store", who, keys)
        yield Move("stored", who)
        yield Move("stored", who, is_good=False)
        yield Move("loaded", who)
        yield Move("finish", who)
    yield Move("end_step")
    for number in range(2):
        yield Move("moved", number=number)
        yield Move("moved", number=number, is_good=False)


def state_of(player: Player) -> Hashable:
    """Return what later calls depend on under LRU; numbers of transfers by their order."""
    manager: Any = player.manager
    chunks = tuple((each.key, each.place, each.storing, each.pins) for each in manager.chunks)
    begun = tuple((tier, who, chunk.key) for tier, who, chunk in manager.begun)
    stored = tuple((each.tier, each.keys) for each in manager.stored)
    asking = {
        who: (frozenset(each.found), each.has_asked, each.must_wait)
        for who, each in manager.requests.items()
        if not each.is_finished
    }
    prompts = {
        who: (each.is_waiting, each.is_finished, tuple(each.loads), tuple(each.stores))
        for who, each in player.prompts.items()
    }
    moving = tuple((each.tier, each.is_promotion, each.keys) for each in player.moving)
    lower = tuple(frozenset(each.keys) for each in player.lower)
    engine = (frozenset(player.asked), frozenset(player.answered), moving, lower)
    return (chunks, begun, stored, frozenset(asking.items()), frozenset(prompts.items()), engine)


def begun(world: World, name: str) -> Player:
    player = Player(find_offload(name), Life(world.num_chunks, world.num_lower, ()))
    player.begin()
    for lower in player.lower:
        lower.keys |= set(keys_of(world.below))
    return player


def copied(players: list[Player]) -> list[Player]:
    """Copy all but the implementations."""
    return deepcopy(players, {id(each.subject): each.subject for each in players})


def explored(world: World, names: tuple[str, str], *, most: int = 10**9) -> tuple[int, int]:
    """Return the numbers of states and of moves; raises for a difference or a broken rule."""
    first = [begun(world, name) for name in names]
    seen, left, num_moves = {state_of(first[0])}, [first], 0
    every = tuple(moves(world))
    while left and len(seen) < most:
        players = left.pop()
        for player in copied(players):
            player.calm()
        for move in every:
            after = copied(players)
            for player in after:
                player.lines.clear()
                getattr(player, move.word)(move)
            if after[0].lines != after[1].lines:
                raise AssertionError(f"{move}: {after[0].lines} and {after[1].lines}")
            num_moves += bool(after[0].lines)
            state = state_of(after[0])
            if state not in seen:
                seen.add(state)
                left.append(after)
    return len(seen), num_moves


def test_the_twins_agree_in_every_state_of_a_small_world() -> None:
    assert explored(SMALL, ("kvref", "kvfast-uncompiled")) == (954, 4782)


@pytest.mark.deep
def test_the_twins_agree_in_every_state_of_three_chunks_two_requests_and_two_tiers() -> None:
    assert explored(WHOLE, ("kvref", "kvfast-uncompiled")) == (2201, 11987)


@pytest.mark.parametrize("name", ["ReadChunksMayLeave", "FailedPromotionsStay", "NobodyIsAwaited"])
def test_a_mistake_is_reached(name: str) -> None:
    with pytest.raises((AssertionError, BrokenRuleError)):
        explored(SMALL, ("kvref", f"mistake:{name}"))
