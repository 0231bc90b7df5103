"""The whole graph of a small configuration: its states up to names, and every edge between them.

An edge is named in the terms of its state's form (`kvcheck.explore.renaming`), so that it means the
same wherever a walk comes to that state, whatever blocks and requests are called there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvcheck.explore.bounds import Configuration
from kvcheck.explore.edges import Edges, Turn
from kvcheck.explore.illegal import ILLEGAL
from kvcheck.explore.moves import moves
from kvcheck.explore.renaming import Naming, naming
from kvcheck.explore.sides import restored
from kvcheck.explore.state import Move, State
from kvspec.interface import Implementation


@dataclass(frozen=True)
class Graph:
    """`edges[n]`: of state n, the move in the terms of its form -> the state that it leads to.

    State 0 is the start. `numbers`: the form's fingerprint -> the state's number. `refused`,
    `errors`: edges that end so.
    """

    numbers: Mapping[bytes, int]
    edges: tuple[Mapping[Move, int], ...]
    refused: int
    errors: int

    @property
    def num_edges(self) -> int:
        """Of all states."""
        return sum(map(len, self.edges))


def graph_of(configuration: Configuration, oracle: Implementation) -> Graph:
    """Every state and every edge, breadth first; each edge is checked as an exploration does it.

    Raises InvariantViolation where the oracle breaks a rule.
    """
    maker = Edges(configuration, oracle)
    first = maker.first()
    numbers = {named(configuration, first).fingerprint: 0}
    states, edges = [first], []
    refused = errors = 0
    for state in states:  # grows meanwhile
        turn, fresh = Turn(maker, state), restored(maker.oracle, state)
        here = named(configuration, state)
        found: dict[Move, int] = {}
        for move in moves(configuration, state):
            world = turn.make(move, fresh, None)
            if world is None:
                continue
            refused += turn.ending == "refused"
            errors += turn.ending == "error"
            after = State(turn.after, world)
            name = named(configuration, after).fingerprint
            number = numbers.setdefault(name, len(states))
            if number == len(states):
                states.append(after)
            found[in_form(move, here)] = number
        edges.append(found)
    return Graph(numbers, tuple(edges), refused, errors)


def named(configuration: Configuration, state: State) -> Naming:
    """The form of a state of this configuration."""
    prompt_matters = configuration.config.retention_interval_tokens is not None
    return naming(state, configuration.names(), prompt_matters=prompt_matters)


def in_form(move: Move, names: Naming) -> Move:
    """The move in the terms of the state's form."""
    if move[0] == "evict":
        return ("evict", tuple(sorted(names.blocks[block] for block in move[1])))
    if is_of_request(move):
        return (move[0], names.seats.index(move[1]), *move[2:])
    return move


def in_state(move: Move, names: Naming) -> Move:
    """The other way: the move as it is made in the state."""
    if move[0] == "evict":
        blocks = {number: block for block, number in names.blocks.items()}
        return ("evict", tuple(sorted(blocks[number] for number in move[1])))
    if is_of_request(move):
        return (move[0], names.seats[move[1]], *move[2:])
    return move


def is_of_request(move: Move) -> bool:
    """Whether its first argument is the number of a request that the move is about."""
    if move[0] == "illegal":
        return ILLEGAL[move[2]].on_request
    return move[0] not in ("evict", "return", "reset", "step")


def all_edges(graph: Graph) -> Iterator[tuple[int, Move, int]]:
    """State, move, state."""
    for state, found in enumerate(graph.edges):
        for move, end in found.items():
            yield state, move, end
