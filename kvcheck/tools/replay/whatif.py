"""Compute the hits of a trace for other pool sizes: one pass for all sizes, and the best possible.

One request runs at a time. Then the content kept under the rules is a stack: `free` releases the
tail first, so after a request its blocks are the most recent ones, the first block on top, and a
pool holds the top of the stack. A block is above all that follow it in any prompt, so what is
cached of a prompt is always a prefix, and the depth of each block determines for every size whether
it is hit. `spec/replay.md` says where real traffic differs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from math import lcm
from time import perf_counter

from kvcheck.tools.replay.policies import LRU, policy_hits, policy_of
from kvcheck.tools.replay.units import Asked, Units, joined

NEVER = 1 << 60
ENOUGH_PERCENT = 90


@dataclass(frozen=True, slots=True)
class Point:
    """Hit rates, in tokens per prompt token, of one size of the pool (null block included).

    `policies`: by name, of other orders of eviction (`policies.py`). `num_loaded_tokens`: what a
    host tier gives back in addition to the hits of `lru`.
    """

    num_blocks: int
    lru: float
    optimal: float
    policies: dict[str, float] = field(default_factory=dict)
    num_loaded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Curve:
    """All sizes of one trace with one block size. `infinite`: with a pool that never evicts.

    `enough_blocks`: the smallest pool that reaches `ENOUGH_PERCENT` of that; `is_least`: a smaller
    one does not hold the largest request. `notes`: what is inexact in the trace. `costs`: the time
    that each policy's bookkeeping took, over LRU's. `num_tokens`: of all prompts.
    `num_host_blocks`: of a tier that holds what the pool evicted last; 0 for none.
    """

    trace: str
    block_size: int
    num_requests: int
    infinite: float
    enough_blocks: int
    points: tuple[Point, ...]
    notes: tuple[str, ...] = ()
    costs: dict[str, float] = field(default_factory=dict)
    is_least: bool = False
    num_tokens: int = 0
    num_host_blocks: int = 0

    def tokens(self, num_blocks: int) -> int:
        """Return the tokens that a pool of `num_blocks` blocks holds, without the null block."""
        return (num_blocks - 1) * self.block_size

    def share(self, point: Point) -> float | None:
        """Return the hits at a point as a share of an endless pool's; None if that hits nothing."""
        return point.lru / self.infinite if self.infinite else None


def curve(
    trace: str,
    units: Units,
    sizes: Sequence[int],
    policies: Sequence[str] = (),
    num_host_blocks: int = 0,
    *,
    on_step: Callable[[], None] = lambda: None,
) -> Curve:
    """Compute the curve. Each size holds the largest request; `on_step` after each part.

    `policies`: other orders of eviction, as `policy_of` reads them. A host tier is the part of the
    stack below the pool's: what is loaded from it is on top afterwards.
    """
    makes: dict[str, Callable[[int], LRU]] = {"": partial(LRU, amount=0)}
    makes |= {name: policy_of(name) for name in policies}
    seconds = dict.fromkeys(makes, 0.0)
    per_token = units.block_size / units.tokens
    whole, units = units, joined(units)
    looked_up = look_up(units)
    infinite = endless_hits(looked_up)
    on_step()
    points = []
    for num_blocks in sizes:
        best = optimal_hits(units, num_blocks)
        hits = lru_hits(looked_up, num_blocks)
        others = {}
        for name, make in makes.items() if policies else ():
            began = perf_counter()
            others[name] = policy_hits(whole, num_blocks, make).total() * per_token
            seconds[name] += perf_counter() - began
        others.pop("", None)  # only its time counts here
        both = lru_hits(looked_up, num_blocks + num_host_blocks)
        loaded = (both - hits) * units.block_size
        points.append(Point(num_blocks, hits * per_token, best * per_token, others, loaded))
        on_step()
    costs = {name: seconds[name] / seconds[""] for name in policies if points}
    enough = _blocks_for(units, looked_up, -(-ENOUGH_PERCENT * infinite // 100))
    rate = infinite * per_token
    return Curve(
        trace=trace,
        block_size=units.block_size,
        num_requests=len(units.requests),
        infinite=rate,
        enough_blocks=enough,
        points=tuple(points),
        notes=units.notes,
        costs=costs,
        is_least=enough == units.smallest_pool,
        num_tokens=units.tokens,
        num_host_blocks=num_host_blocks,
    )


def sizes_between(traces: Sequence[Units], count: int) -> list[list[int]]:
    """Return `count` pool sizes for each trace, by equal ratios, from largest request to no
    eviction.

    The pools of all traces hold the same numbers of tokens, whatever the block sizes, so that they
    can be compared; a trace omits those that its largest request does not fit in.
    """
    step = lcm(*(units.block_size for units in traces))
    least = -(-min(_tokens(units, units.smallest_pool) for units in traces) // step)
    most = -(-max(_tokens(units, _largest_pool(units)) for units in traces) // step)
    held = {most}
    if count > 1:
        ratio = (most / least) ** (1 / (count - 1))
        held |= {least, *(min(most, round(least * ratio**number)) for number in range(1, count))}
    return [
        [
            num_blocks
            for num_blocks in (1 + step * each // units.block_size for each in sorted(held))
            if num_blocks >= units.smallest_pool
        ]
        for units in traces
    ]


def _blocks_for(units: Units, looked_up: Sequence[Lookup], hits: int) -> int:
    """Return the size of the smallest pool that hits `hits` blocks.

    It holds at least the largest request.
    """
    low, high = units.smallest_pool, _largest_pool(units)
    if lru_hits(looked_up, low) >= hits:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        if lru_hits(looked_up, middle) >= hits:
            high = middle
        else:
            low = middle
    return high


def _tokens(units: Units, num_blocks: int) -> int:
    return (num_blocks - 1) * units.block_size


def _largest_pool(units: Units) -> int:
    """Return the size at which nothing is evicted: every block of the trace has its own."""
    outputs = sum(
        asked.held - sum(units.weights[unit] for unit in asked.units) for asked in units.requests
    )
    return max(units.smallest_pool, 1 + sum(units.weights) + outputs)


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
        """Count the blocks that were released after a moment."""
        sums, found = self.sums, self.total
        while moment:
            found -= sums[moment]
            moment &= moment - 1
        return found

    def put(self, weight: int) -> int:
        """Put blocks on top; returns their moment."""
        self.now += 1
        self.add(self.now, weight)
        return self.now

    def depths(self, asked: Asked, weights: array[int]) -> tuple[list[int], list[int]]:
        """Return, for units seen before, the depth of the first block, and the blocks before it."""
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
        """End a request: put its blocks on top, the tail first."""
        prompt = 0
        for unit in asked.units:
            if self.moment[unit]:
                self.add(self.moment[unit], -weights[unit])
            prompt += weights[unit]
        if asked.full > prompt:
            self.put(asked.full - prompt)
        for unit in reversed(asked.units):
            self.moment[unit] = self.put(weights[unit])


@dataclass(frozen=True, slots=True)
class Lookup:
    """A request's units in the stack at its look-up, whatever the pool still keeps.

    `depths`: of its units that were seen before. `before`: blocks before each, and at the end.
    """

    asked: Asked
    depths: array[int]
    before: array[int]


def look_up(units: Units) -> list[Lookup]:
    """Make the one pass over the trace; each pool size is then counted without the stack."""
    moments = sum(len(asked.units) + 1 for asked in units.requests)
    stack = _Stack(moments, len(units.weights))
    found = []
    for asked in units.requests:
        depths, before = stack.depths(asked, units.weights)
        found.append(Lookup(asked, array("q", depths), array("q", before)))
        stack.release(asked, units.weights)
    return found


def endless_hits(looked_up: Sequence[Lookup]) -> int:
    """Count the blocks hit by a pool that never evicts."""
    return sum(min(each.before[-1], each.asked.most_hits) for each in looked_up)


def lru_hits(looked_up: Sequence[Lookup], num_blocks: int) -> int:
    """Count the blocks hit by a pool of `num_blocks` blocks.

    `kept`: the blocks of the stack that it still has. A request that holds an incomplete block in
    the end leaves an empty one, so that is counted separately.
    """
    kept = hits = 0
    for each in looked_up:
        asked, found = each.asked, 0
        at = bisect_right(each.depths, kept) - 1
        if at >= 0:
            found = min(each.before[at] + kept - each.depths[at], each.before[at + 1])
        hits += min(found, asked.most_hits)
        kept = min(kept + asked.full - found, num_blocks - 1 - asked.partial)
    return hits


def optimal_hits(units: Units, num_blocks: int) -> int:
    """Count the blocks hit if the one requested again last is evicted first (Belady).

    A request's blocks stay while it runs, and no others are loaded before they are requested: the
    best that any order of eviction can do.
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
    """Return, for each request and each of its units, the next request for it, or NEVER.

    Also NEVER if that one must recompute it: then it is cached again, whatever was kept.
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
