"""Walks from the start of a graph that together go along every edge."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from kvcheck.explore.state import Move
from kvcheck.explore.vectors.graph import Graph

MAX_MOVES = 400
"""A walk that is longer ends where it would have to go back: each stands alone when it fails."""

NEW_WALK_MOVES = 8
"""What a walk's beginning and end cost besides its way, as moves."""


def tour(graph: Graph) -> tuple[tuple[Move, ...], ...]:
    """The moves of each walk, in the terms of the forms of the states that they are made in.

    Greedy: an edge that nobody went yet, those that lead nowhere first; without one the shortest
    way to a state that has one, or a new walk if the way from the start is shorter.
    """
    return _Tour(graph).run()


class _Tour:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.left = [_in_order(state, found) for state, found in enumerate(graph.edges)]
        self.num_left = graph.num_edges
        self.walks: list[tuple[Move, ...]] = []

    def run(self) -> tuple[tuple[Move, ...], ...]:
        state, walk = 0, list[Move]()
        while self.num_left:
            if not self.left[state]:
                way, from_start = self._way(state), self._way(0) or ()
                is_far = way is None or len(from_start) + NEW_WALK_MOVES < len(way)
                if is_far or len(walk) >= MAX_MOVES:
                    self.walks.append(tuple(walk))
                    state, walk, way = 0, [], from_start
                for move in way or ():
                    walk.append(move)
                    state = self._go(state, move)
                continue
            move = self._next(state)
            walk.append(move)
            state = self._go(state, move)
        self.walks.append(tuple(walk))
        return tuple(self.walks)

    def _next(self, state: int) -> Move:
        """The edge to go: one to where most edges are left."""
        found, left = self.graph.edges[state], self.left[state]
        loops = [move for move in left if found[move] == state]
        return loops[0] if loops else max(left, key=lambda move: len(self.left[found[move]]))

    def _go(self, state: int, move: Move) -> int:
        left = self.left[state]
        if move in left:
            del left[move]
            self.num_left -= 1
        return self.graph.edges[state][move]

    def _way(self, state: int) -> Sequence[Move] | None:
        """The shortest way from a state to one that has edges left; None without one."""
        came: dict[int, tuple[int, Move]] = {}
        queue = deque([state])
        seen = {state}
        while queue:
            here = queue.popleft()
            if self.left[here]:
                return _back(came, state, here)
            for move, end in self.graph.edges[here].items():
                if end not in seen:
                    seen.add(end)
                    came[end] = (here, move)
                    queue.append(end)
        return None


def _in_order(state: int, found: Mapping[Move, int]) -> dict[Move, None]:
    """The moves of a state as an ordered set."""
    return dict.fromkeys(found)


def _back(came: Mapping[int, tuple[int, Move]], first: int, last: int) -> Sequence[Move]:
    way: list[Move] = []
    while last != first:
        last, move = came[last]
        way.append(move)
    return way[::-1]
