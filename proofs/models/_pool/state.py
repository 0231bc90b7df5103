"""The state of a pool as functions of ints.

A *claim* is an owner's hold on a block: a place in a block list, a popped reference, or a block set
aside. "As many references as claims" is said without counting: the claims of a block are numbered
from 0 on, each number below the references is taken once. The free queue is what stands at the
positions front … back - 1. Of copies of a key the one with the smallest stamp was added first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import z3

from proofs._z3 import Range, Term, function

LISTED, POPPED, SET_ASIDE = 0, 1, 2
"""The kinds of claims."""

Function = Callable[..., Term]


@dataclass(frozen=True)
class World:
    """What no action changes. `size`: blocks of a written-out pool; None: any number."""

    size: int | None
    num_blocks: Term
    num_claims: Term
    num_keys: Term
    num_groups: Term
    caching: Term
    request: Function  # of a claim
    group: Function
    index: Function
    key_group: Function  # of a key
    key_index: Function
    key_tokens: Function

    @property
    def blocks(self) -> Range:
        return Range(0, self.num_blocks, self._first(self.size))

    @property
    def claims(self) -> Range:
        return Range(0, self.num_claims, self._first(self.size))

    @property
    def keys(self) -> Range:
        return Range(0, self.num_keys, self._first(2))

    @property
    def numbers(self) -> Range:
        """Numbers of claims; in a written-out pool one more than any block can have."""
        return Range(0, None, self._first((self.size or 0) + 1))

    def positions(self, state: State) -> Range:
        """The positions of the free queue."""
        values = None if self.size is None else range(-2, self.size + 2)
        return Range(state.front, state.back, values)

    def holds(self) -> Term:
        """What is assumed of a world; of a written-out one also its size."""
        anything = z3.And(self.num_blocks >= 1, self.num_claims >= 1, self.num_keys >= 1)
        if self.size is None:
            return anything
        return z3.And(
            self.num_blocks == self.size, self.num_claims == self.size, self.num_keys == 2
        )

    def _first(self, count: int | None) -> range | None:
        return None if self.size is None or count is None else range(count)


@dataclass(frozen=True)
class State:
    """A pool and the claims on it; a member is a function, a successor a function of that."""

    refs: Function
    at: Function  # position -> block
    pos: Function  # and back
    front: Term
    back: Term
    carries: Function  # how often a block carries a key
    listed: Function  # how often a look-up of the key knows the block
    stamp: Function
    clock: Term
    covered: Function  # tokens that the longest key of a block covers
    held: Function  # claim -> block; 0: none, or null
    kind: Function
    number: Function  # claim -> its number among those on its block
    nth: Function  # and back

    def waits(self, block: Term) -> Term:
        """Whether a block is in the free queue."""
        place = self.pos(block)
        return z3.And(self.front <= place, place < self.back, self.at(place) == block)


def any_world(size: int | None = None) -> World:
    """A world of which nothing is known; `size`: blocks and claims, if written out."""
    return World(
        size=size,
        num_blocks=z3.Int("num_blocks"),
        num_claims=z3.Int("num_claims"),
        num_keys=z3.Int("num_keys"),
        num_groups=z3.Int("num_groups"),
        caching=z3.Bool("caching"),
        request=function("request"),
        group=function("group"),
        index=function("index"),
        key_group=function("key_group"),
        key_index=function("key_index"),
        key_tokens=function("key_tokens"),
    )


def any_state() -> State:
    """A state of which nothing is known."""
    return State(
        refs=function("refs"),
        at=function("at"),
        pos=function("pos"),
        front=z3.Int("front"),
        back=z3.Int("back"),
        carries=function("carries", 2),
        listed=function("listed", 2),
        stamp=function("stamp", 2),
        clock=z3.Int("clock"),
        covered=function("covered"),
        held=function("held"),
        kind=function("kind"),
        number=function("number"),
        nth=function("nth", 2),
    )


def in_list(state: State, claim: Term) -> Term:
    """Whether a claim is a place in a block list that holds a block."""
    return z3.And(state.kind(claim) == LISTED, state.held(claim) != 0)


def same_place(world: World, c: Term, d: Term) -> Term:
    """Whether two claims are one place of one request's list."""
    pairs = ((each(c), each(d)) for each in (world.request, world.group, world.index))
    return z3.And(*(left == right for left, right in pairs))
