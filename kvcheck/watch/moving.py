"""Copies and computing beside a watched manager, checked as they are issued (KV-HAZ-1 … 6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain

from kvcheck.hazards.checker import HazardChecker
from kvcheck.hazards.lines import Ended, Given, Line, Place, Pools, Run
from kvcheck.watch.calls import Call
from kvcheck.watch.ownership import Lists, violated


class Moving:
    """The work of an engine, with the owners that the calls of its manager show.

    `sizes_tokens`: of the blocks of each pool; the first pool is the manager's. What is in it at
    the beginning counts as written.
    """

    def __init__(
        self, num_blocks: int, held: Mapping[str, Lists], sizes_tokens: Mapping[str, int]
    ) -> None:
        self.checker, self.num_lines = HazardChecker(), 0
        self.pool, self.size = next(iter(sizes_tokens.items()))
        self.sizes_tokens = dict(sizes_tokens)
        self._awaited: set[str] = set()
        self._pending: list[Given] = []
        self._take(Pools(self.sizes_tokens))
        self._take(Run("before", "before", writes=self._places(range(1, num_blocks))))
        self._take(Ended("before"))
        for name, lists in held.items():
            self._take(Given(name, self._places(chain.from_iterable(lists)), is_hit=True))

    def note(self, call: Call, before: Lists, after: Lists) -> None:
        """Note what a call gives or takes back, from the request's lists before and after it."""
        if call.request is None:
            return
        name, held = call.request.request_id, set(chain.from_iterable(before))
        if call.name == "allocate_slots" and call.result is not None:
            hits = call.arguments["new_computed_blocks"]
            shared = [] if hits is None else list(chain.from_iterable(hits.groups))
            new = set(chain.from_iterable(after)) - held - set(shared)
            new.update(chain.from_iterable(call.result.groups))
            self._pending.append(Given(name, self._places(shared), is_hit=True))
            self._pending.append(Given(name, self._places(sorted(new))))
        elif held and not any(after):
            self._pending.append(Given(name, self._places(sorted(held)), is_back=True))

    def issue(self, line: Line) -> None:
        """Check one line of the engine's. Until a block is written anew its old content is there.

        Raises InvariantViolation with the rule of a hazard, InvalidArgumentError for an unknown id.
        """
        writes = line.writes if isinstance(line, Run) else ()
        is_failure = isinstance(line, Ended) and not line.ok
        if is_failure or any(place.pool == self.pool for place in writes):
            pending, self._pending = self._pending, []
            for each in pending:
                self._take(each)
        if isinstance(line, Run):  # what was forgotten has ended
            line = replace(line, after=tuple(n for n in line.after if n in self.checker.works))
            self._awaited.add(line.id)
        self._take(line)
        if isinstance(line, Ended):
            self._awaited.discard(line.id)
            self.checker.forget(self._awaited)

    def _take(self, line: Line) -> None:
        self.num_lines += 1
        for hazard in self.checker.take(line, self.num_lines):
            what = f"{hazard.place}: {hazard.what}"
            raise violated("copies_are_in_order", hazard.rule, what)

    def _places(self, blocks: Iterable[int]) -> tuple[Place, ...]:
        ids = (block for block in dict.fromkeys(blocks) if block)
        return tuple(Place(self.pool, block, 0, self.size) for block in ids)
