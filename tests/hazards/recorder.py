"""A record of copies that is checked as it is made: what the recorded engines of tests share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kvcheck.hazards.checker import Hazard, HazardChecker
from kvcheck.hazards.lines import Given, Line, Place, Pools


class Recorder:
    """Issues lines; `found` are their hazards. Each pool has blocks of `size` tokens."""

    def __init__(self, size: int, *pools: str) -> None:
        self.checker, self.found = HazardChecker(), list[Hazard]()
        self.size, self.num_lines = size, 0
        self.held: dict[str, set[int]] = {}
        self.issue(Pools(dict.fromkeys(pools, size)))

    def issue(self, line: Line) -> None:
        """Check one line more."""
        self.num_lines += 1
        self.found += self.checker.take(line, self.num_lines)

    def places(self, blocks: Iterable[int], pool: str = "gpu") -> tuple[Place, ...]:
        """Return whole blocks, without the null block."""
        return tuple(Place(pool, block, 0, self.size) for block in dict.fromkeys(blocks) if block)

    def owners(self, holding: Mapping[str, set[int]], new: Iterable[int]) -> None:
        """Issue the changes of owners: blocks returned, new ones, hits on blocks of others."""
        fresh = set(new)
        for name, blocks in self.held.items():
            if gone := (blocks & fresh) | (blocks - holding.get(name, set())):
                self.issue(Given(name, self.places(gone), is_back=True))
        for name, blocks in holding.items():
            given = blocks & fresh
            fresh -= given  # other holders have hit them in this step
            shared = blocks - self.held.get(name, set()) - given
            self.issue(Given(name, self.places(given)))
            self.issue(Given(name, self.places(shared), is_hit=True))
        self.held = dict(holding)
