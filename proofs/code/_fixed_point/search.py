"""A search under way, and one step of it: kvfast's own `Lookup.ask`, run unchanged (KV-COORD-*)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import z3

from kvfast._core.lookup import Lookup
from kvfast._core.request import FastRequest
from kvfast._core.shape import Shape
from proofs._z3 import Term, forall, function
from proofs.code._fixed_point.groups import Groups, Predicate, predicate
from proofs.code._paths import Unknown, Way, term_of, ways

NUM_MARKS = 3
"""How many marks the loop that clears all is shown to clear."""


@dataclass(frozen=True)
class Search:
    """Between two look-ups. `turn`: the group that is asked next; `before`: the round's start."""

    length: Term
    before: Term
    turn: Term
    longest: Term
    in_first_round: Term
    was_asked: Predicate
    mark: Predicate
    found: Any  # group -> tokens of its last hit

    def has_answers(self, world: Groups) -> Term:
        """State that groups are asked in order, with a result; only eagle ones are marked."""
        last = self.turn - 1

        def fits(a: Term) -> Term:
            now = z3.Implies(self.in_first_round, self.was_asked(a) == (a < self.turn))
            later = z3.Or(self.in_first_round, self.was_asked(a))
            marked = z3.Implies(self.mark(a), z3.And(self.was_asked(a), world.is_eagle(a)))
            ended = z3.Implies(self.was_asked(a), world.is_aligned(self.length))
            return z3.And(now, later, marked, ended, self.found(a) <= self.longest)

        asked = z3.And(
            self.was_asked(last),
            self.length <= self.longest,
            world.hit(last, self.length),
            z3.Or(world.is_full(last), self.found(last) == self.length),
        )
        marked = z3.Implies(z3.And(self.in_first_round, world.is_eagle(last)), self.mark(last))
        return z3.And(
            self.turn >= 0,
            self.turn <= world.num,
            forall([world.groups], fits, about=self.was_asked),
            z3.Implies(self.turn > 0, z3.And(asked, marked)),
        )

    def falls(self, world: Groups) -> Term:
        """State that the length never rises, within a round or overall."""
        return z3.And(self.length >= 0, self.length <= self.before, self.before <= world.limit)

    def misses_nothing(self, world: Groups) -> Term:
        """State that no common hit is longer than the current length."""
        return forall([world.lengths], lambda n: z3.Implies(world.is_common(n), n <= self.length))

    def full_agrees(self, world: Groups) -> Term:
        """State that the length is a hit of full attention, drop included, once that was asked."""

        def agrees(a: Term) -> Term:
            good = z3.And(world.good(a, self.length), self.found(a) >= self.length)
            return z3.Implies(z3.And(world.is_full(a), self.was_asked(a)), good)

        return forall([world.groups], agrees, about=self.was_asked)

    def round_agrees(self, world: Groups) -> Term:
        """State that in a round without a shorter length all asked groups agree and are marked."""

        def agrees(a: Term) -> Term:
            same = z3.Or(world.is_full(a), self.found(a) == self.length)
            marked = z3.Or(world.is_full(a), z3.Not(world.is_eagle(a)), self.mark(a))
            return z3.Implies(
                z3.And(self.length == self.before, a < self.turn),
                z3.And(world.hit(a, self.length), same, marked),
            )

        return forall([world.groups], agrees, about=self.was_asked)

    def marks(self, world: Groups) -> Term:
        """State that a marked group has the block behind the current length.

        Only where at most one group besides full attention is an eagle group: the drop of another
        one shortens the length and clears no marks (KV-COORD-7), and so does Mamba (KV-COORD-8).
        """

        def is_good(a: Term) -> Term:
            marked = z3.And(self.mark(a), z3.Not(world.is_full(a)))
            return z3.Implies(marked, world.good(a, self.length))

        return forall([world.groups], is_good, about=self.mark)


CLAIMS: Mapping[str, Callable[[Search, Groups], Term]] = {
    "has_answers": Search.has_answers,
    "falls": Search.falls,
    "full_agrees": Search.full_agrees,
    "round_agrees": Search.round_agrees,
    "misses_nothing": Search.misses_nothing,
    "marks": Search.marks,
}
"""Invariants between any two look-ups; the last one under `Groups.one_drops`."""
BASIC = ("has_answers", "falls", "full_agrees")
"""Those that the others need, too."""


def any_search() -> Search:
    """Return a search whose state is all unknown."""
    return Search(
        length=z3.Int("length"),
        before=z3.Int("before"),
        turn=z3.Int("turn"),
        longest=z3.Int("longest"),
        in_first_round=z3.Bool("in_first_round"),
        was_asked=predicate("was_asked"),
        mark=predicate("mark"),
        found=function("found"),
    )


def start(world: Groups) -> Search:
    """Return the state in which `agreed_hit` begins."""
    return replace(
        any_search(),
        length=world.limit,
        before=world.limit,
        turn=z3.IntVal(0),
        longest=z3.IntVal(0),
        in_first_round=z3.BoolVal(True),
        was_asked=lambda a: z3.BoolVal(False),
        mark=lambda a: z3.BoolVal(False),
        found=lambda a: z3.IntVal(-1),
    )


def next_round(search: Search) -> Search:
    """Return the state in which a later round begins."""
    return replace(
        search, before=search.length, turn=z3.IntVal(0), in_first_round=z3.BoolVal(False)
    )


class Blocks:
    """A number of blocks of a group, known by the tokens that they hold."""

    def __init__(self, tokens: Unknown, size: Term) -> None:
        self.tokens = tokens
        self.size = size

    def __mul__(self, size: Unknown) -> Unknown:
        if not self.size.eq(size.term):
            raise TypeError(f"blocks of {self.size} tokens taken for such of {size.term}")
        return self.tokens


class Asked:
    """`found_blocks` of the group that is asked: its previous and its new result."""

    def __init__(self, way: Way, search: Search) -> None:
        self.way = way
        self.search = search
        self.answer: Blocks | None = None

    def __getitem__(self, a: Unknown) -> Unknown:
        return self.way.number(z3.If(self.search.was_asked(a.term), 0, -1))

    def __setitem__(self, a: Unknown, blocks: Blocks) -> None:
        self.answer = blocks


class Marks:
    """`is_verified`: the mark of the group that is asked; an int as index is one of all."""

    def __init__(self, way: Way, search: Search) -> None:
        self.way = way
        self.search = search
        self.is_set = False
        self.cleared: set[int] = set()

    def __getitem__(self, a: Unknown) -> bool:
        return self.way.decide(self.search.mark(a.term))

    def __setitem__(self, a: Unknown | int, value: int) -> None:
        if isinstance(a, int) and value == 0:
            self.cleared.add(a)
        elif isinstance(a, Unknown) and value == 1:
            self.is_set = True
        else:
            raise TypeError(f"a mark {a} is set to {value}")


class Length(Unknown):
    """A number of tokens; what is left of it behind the last whole block is `Groups.rest`."""

    def __init__(self, term: Term, way: Way, world: Groups) -> None:
        super().__init__(term, way)
        self.world = world

    def __mod__(self, size: Unknown | int) -> Unknown:
        return Unknown(self.world.rest(self.term, term_of(size)), self.way)


class SymbolicLookup(Lookup):
    """Look-ups among unknown groups: `ask` is the code itself."""

    def __init__(self, way: Way, world: Groups, search: Search) -> None:
        self.way = way
        self.world = world
        shape = SimpleNamespace(
            alignment=way.number(z3.Int("A")), num_attention=NUM_MARKS, looks_beyond=False
        )
        self.shape = cast(Shape, shape)
        self.asked, self.marked = Asked(way, search), Marks(way, search)
        self.found_blocks = cast("memoryview[int]", self.asked)
        self.is_verified = cast("memoryview[int]", self.marked)
        self.longest_tokens = cast(int, way.number(search.longest))

    def clear(self) -> None:
        """Do nothing: groups outside prefix caching are left out."""

    def block_size_of(self, a: Any) -> int:
        return cast(int, self.way.number(self.world.block_size(a.term)))

    def is_full(self, a: Any) -> bool:
        return self.way.decide(self.world.is_full(a.term))

    def drops(self, a: Any) -> bool:
        return self.way.decide(self.world.is_eagle(a.term))

    def is_mamba(self, a: Any) -> bool:
        return self.way.decide(self.world.is_mamba(a.term))

    def look_up(self, a: Any, request: FastRequest, tokens: Any, drop: bool, per: int) -> int:
        answer = self.way.number(z3.Int("answer"))
        promised = self.world.answers(a.term, tokens.term, answer.term, drop=drop)
        self.way.conditions.append(promised)
        return cast(int, Blocks(answer, self.world.block_size(a.term)))


def steps(
    world: Groups, search: Search, lookup: type[SymbolicLookup] = SymbolicLookup
) -> Iterator[tuple[list[Term], Search]]:
    """Yield every path for asking the next group: its conditions, and the search after it."""

    def run(way: Way) -> Search:
        asking = lookup(way, world, search)
        length, limit = Length(search.length, way, world), way.number(world.limit)
        group = way.number(search.turn)
        answer = asking.ask(
            cast(int, group), cast(FastRequest, None), cast(int, length), cast(int, limit)
        )
        return after(search, asking, term_of(answer))

    for way, found in ways(run):
        yield [search.turn < world.num, *way.conditions], found


def after(search: Search, asking: SymbolicLookup, length: Term) -> Search:
    """Return the search as the code leaves it."""
    asked, marked, turn = asking.asked.answer, asking.marked, search.turn
    if marked.cleared and marked.cleared != set(range(NUM_MARKS)):
        raise TypeError(f"of all marks only {marked.cleared} are cleared")

    def mark(a: Term) -> Term:
        if marked.cleared:
            return z3.BoolVal(False)
        return z3.Or(search.mark(a), a == turn) if marked.is_set else search.mark(a)

    def found(a: Term) -> Term:
        return (
            search.found(a)
            if asked is None
            else z3.If(a == turn, asked.tokens.term, search.found(a))
        )

    return replace(
        search,
        length=length,
        turn=turn + 1,
        longest=term_of(asking.longest_tokens),
        was_asked=lambda a: z3.Or(search.was_asked(a), a == turn),
        mark=mark,
        found=found,
    )


def results(world: Groups, search: Search) -> Mapping[str, Term]:
    """Return the claims on the length and the lists of a finished search, by name."""
    lists = forall(
        [world.groups],
        lambda a: z3.If(
            world.is_full(a), search.found(a) >= search.length, search.found(a) == search.length
        ),
    )
    return {
        "a hit of every group": forall([world.groups], lambda a: world.hit(a, search.length)),
        "no common hit is longer": search.misses_nothing(world),
        "lists of that length, or longer ones of full attention": lists,
        "the uncached common prefix is not negative": search.longest >= search.length,
    }
