"""kvref explored breadth first, by the moves that a model has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from proofs.models._formal._checker import Graph
from proofs.models._formal._values import Move, text_of


class Bounds(Protocol):
    """A bounded part of kvref, and the module that must have the same graph."""

    @property
    def module(self) -> str:
        """Name of the TLA+ module."""

    @property
    def constants(self) -> dict[str, Any]:
        """Constants of the module for these bounds."""

    def moves(self) -> Iterator[Move]:
        """Yield every move, possible or not."""

    def first(self) -> Any:
        """Return the first state."""

    def after(self, state: Any, move: Move) -> Any:
        """Return the state after a move; None where the move is illegal."""

    def value(self, state: Any) -> dict[str, Any]:
        """Return the state as the model has it."""


def explore(bounds: Bounds, *, within: Graph | None = None) -> Graph:
    """Return all reachable states and all edges, or those up to the first one not `within`."""
    moves = tuple(bounds.moves())
    first = bounds.first()
    own = text_of(bounds.value(first))
    graph, level = Graph({own}), [(own, first)]
    while level:
        below = []
        for own, state in level:
            for move in moves:
                after = bounds.after(state, move)
                if after is None:
                    continue
                name = text_of(bounds.value(after))
                graph.edges.add((own, move.label, name))
                if within is not None and (own, move.label, name) not in within.edges:
                    return graph
                if name not in graph.states:
                    graph.states.add(name)
                    below.append((name, after))
        level = below
    return graph
