"""What a trace would hit with pools of other sizes: one pass for all, and the best there is.

One request runs at a time. Then what the rules keep is a stack: `free` releases the tail first, so
after a request its blocks are the most recent ones, the first block on top, and what a pool holds
is the top of the stack. A block stands above all that follow it in any prompt, so what is cached of
a prompt is always a prefix, and how deep each block lies says for every size whether it is hit.
`spec/replay.md` says where real traffic differs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from kvcheck.tools.replay.units import Asked, Units

NEVER = 1 << 60


@dataclass(frozen=True, slots=True)
class Point:
    """Hit rates, in tokens per prompt token, of one size of the pool (null block included)."""

    num_blocks: int
    lru: float
    optimal: float


@dataclass(frozen=True, slots=True)
class Curve:
    """All sizes of one trace with one block size. `infinite`: with a pool that never evicts."""

    trace: str
    block_size: int
    num_requests: int
    infinite: float
    points: tuple[Point, ...]


def curve(
    trace: str,
    units: Units,
    sizes: Sequence[int],
    *,
    on_step: Callable[[], None] = lambda: None,
) -> Curve:
    """The curve. Each size holds the largest request; `on_step` after each part of the work."""
    per_token = units.block_size / units.tokens
    lru, infinite = lru_hits(units, sizes)
    on_step()
    points = []
    for num_blocks, hits in zip(sizes, lru, strict=True):
        best = optimal_hits(units, num_blocks)
        points.append(Point(num_blocks, hits * per_token, best * per_token))
        on_step()
    rate = infinite * per_token
    return Curve(trace, units.block_size, len(units.requests), rate, tuple(points))


def sizes_between(units: Units, count: int) -> list[int]:
    """So many sizes, evenly in ratios: from the largest request to a pool that never evicts."""
    least = units.smallest_pool
    outputs = sum(asked.held - _weight(units, asked) for asked in units.requests)
    most = max(least, 1 + sum(units.weights) + outputs)
    if count == 1:
        return [most]
    ratio = (most / least) ** (1 / (count - 1))
    return sorted({min(most, round(least * ratio**step)) for step in range(count)} | {least, most})


def _weight(units: Units, asked: Asked) -> int:
    return sum(units.weights[unit] for unit in asked.units)


class _Stack:
    """Units by how recently they were released: how many blocks lie above each.

    A Fenwick tree over moments, in which each unit has its weight at the last one.
    """

    def __init__(self, num_moments: int, num_units: int) -> None:
        self.sums = [0] * (num_moments + 1)
        self.total = 0
        self.now = 0
        self.moment = array("q", bytes(8 * num_units))

    def add(self, moment: int, weight: int) -> None:
        self.total += weight
        sums, end = self.sums, len(self.sums)
        while moment < end:
            sums[moment] += weight
            moment += moment & -moment

    def above(self, moment: int) -> int:
        """Blocks that were released after a moment."""
        sums, found = self.sums, self.total
        while moment:
            found -= sums[moment]
            moment &= moment - 1
        return found

    def put(self, weight: int) -> int:
        """Blocks on top; their moment."""
        self.now += 1
        self.add(self.now, weight)
        return self.now

    def depths(self, asked: Asked, weights: array[int]) -> tuple[list[int], list[int]]:
        """Of the units that were seen before: depth of the first block, and blocks before it."""
        depths: list[int] = []
        before: list[int] = []
        count, last = 0, -1
        for unit in asked.units:
            moment = self.moment[unit]
            if not moment:
                break
            if moment == last - 1:  # released together: one lies right below the other
                depth = depths[-1] + count - before[-1]
            else:
                depth = self.above(moment)
            depths.append(depth)
            before.append(count)
            count += weights[unit]
            last = moment
        before.append(count)
        return depths, before

    def release(self, asked: Asked, weights: array[int]) -> None:
        """The request ends: its blocks come on top, the tail first."""
        prompt = 0
        for unit in asked.units:
            if self.moment[unit]:
                self.add(self.moment[unit], -weights[unit])
            prompt += weights[unit]
        if asked.full > prompt:
            self.put(asked.full - prompt)
        for unit in reversed(asked.units):
            self.moment[unit] = self.put(weights[unit])


def lru_hits(units: Units, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Blocks hit with each size, and with no end of blocks. One pass over the trace.

    `kept`: of each size the blocks of the stack that it still has. A request that holds an
    incomplete block in the end leaves an empty one behind, so it is a number of its own.
    """
    moments = sum(len(asked.units) + 1 for asked in units.requests)
    stack = _Stack(moments, len(units.weights))
    kept, hits, infinite = [0] * len(sizes), [0] * len(sizes), 0
    for asked in units.requests:
        depths, before = stack.depths(asked, units.weights)
        infinite += min(before[-1], asked.most_hits)
        for number, num_blocks in enumerate(sizes):
            there = kept[number]
            at = bisect_right(depths, there) - 1
            found = 0
            if at >= 0:
                found = min(before[at] + there - depths[at], before[at + 1])
            taken = min(found, asked.most_hits)
            hits[number] += taken
            kept[number] = min(there + asked.full - found, num_blocks - 1 - asked.partial)
        stack.release(asked, units.weights)
    return hits, infinite


def optimal_hits(units: Units, num_blocks: int) -> int:
    """Blocks hit if what is asked for again last is evicted first (Belady).

    A request's blocks are there while it runs, and nothing of another one is brought in before it
    is asked for: the best that any order of eviction can do.
    """
    weights = units.weights
    after = _next_uses(units)
    there = array("q", bytes(8 * len(weights)))
    use = array("q", bytes(8 * len(weights)))
    heap: list[tuple[int, int, int]] = []
    total = hits = 0
    for number, asked in enumerate(units.requests):
        found, is_prefix = 0, True
        for unit in asked.units:
            if is_prefix:
                found += there[unit]
                is_prefix = there[unit] == weights[unit]
            total -= there[unit]
            there[unit] = 0
        hits += min(found, asked.most_hits)
        room = num_blocks - 1 - asked.held
        while total > room:
            negative, depth, unit = heappop(heap)
            if use[unit] != -negative or not there[unit]:
                continue
            gone = min(there[unit], total - room)
            there[unit] -= gone
            total -= gone
            if there[unit]:
                heappush(heap, (negative, depth, unit))
        for depth, (unit, later) in enumerate(zip(asked.units, after[number], strict=True)):
            if later != NEVER:
                use[unit] = later
                there[unit] = weights[unit]
                total += weights[unit]
                heappush(heap, (-later, -depth, unit))
    return hits


def _next_uses(units: Units) -> list[array[int]]:
    """For each request and each of its units the next request for it, or NEVER.

    Also NEVER if that one must compute it anew: then it is there again, whatever was kept.
    """
    later = array("q", [NEVER]) * len(units.weights)
    found: list[array[int]] = []
    for number in range(len(units.requests) - 1, -1, -1):
        asked = units.requests[number]
        found.append(array("q", [later[unit] for unit in asked.units]))
        before = 0
        for unit in asked.units:
            before += units.weights[unit]
            later[unit] = number if before <= asked.most_hits else NEVER
    found.reverse()
    return found
