"""A trace as requests for units: runs of blocks that are always requested together.

A block is identified by all tokens before its end, so by the ids up to it. Blocks of one id that no
request of the trace separates form a unit with a weight, so that the run of an id counts once,
whatever the block size.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace

from kvcheck.tools.replay.trace import TraceRecord
from kvspec.errors import InvalidArgumentError

_UNSEEN, _APART = -1, -2
"""In place of the unit that follows one: none was seen, or not all requests go on with it."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request.

    `units`: those of its full blocks whose tokens are known, from the first of the prompt on.
    `most_hits`: blocks of these that can be hit: of the prompt, without its last token. `full`:
    blocks that are full in the end, including generated tokens; `partial`: 1 if it then holds one
    more. The rest is what the trace says of it.
    """

    units: array[int]
    most_hits: int
    full: int
    partial: int
    at_ms: int = 0
    tenant: str = ""
    priority: int = 0

    @property
    def held(self) -> int:
        """Blocks held at the end."""
        return self.full + self.partial


@dataclass(frozen=True, slots=True)
class Units:
    """A whole trace. `weights[u]`: blocks of a unit. `tokens`: of all prompts.

    `notes`: what is not exact in it.
    """

    block_size: int
    requests: list[Asked]
    weights: array[int]
    tokens: int
    notes: tuple[str, ...] = ()

    @property
    def smallest_pool(self) -> int:
        """Blocks that the largest request needs, the null block included."""
        return 1 + max(asked.held for asked in self.requests)


def units_of(records: Iterable[TraceRecord], block_size: int | None) -> Units:
    """Convert a trace to units. InvalidArgumentError for a block size that cuts across ids.

    `block_size`: None means the tokens of an id.
    """
    nodes: dict[tuple[int, tuple[int, ...]], int] = {}
    cuts: list[set[int]] = []
    paths: list[tuple[TraceRecord, array[int], int]] = []
    size = blocks_of_one = 0
    for record in records:
        if not paths:
            size = checked_block_size(block_size, record.run_length)
            blocks_of_one = max(1, record.run_length // size)
        path, last = array("q"), 0
        node, most_hits = -1, (record.input_length - 1) // size
        for place, (ids, count) in enumerate(_runs(record, size)):
            node = nodes.setdefault((node, ids), len(nodes))
            if node == len(cuts):
                cuts.append(set())
            here = most_hits - place * blocks_of_one
            cuts[node] |= {count, here} if 0 < here < count else {count}
            path.append(node)
            last = count
        paths.append((record, path, last))
    first, ends, weights = array("q"), [], array("q")
    for found in cuts:
        first.append(len(weights))
        ordered = sorted(found)
        ends.append(ordered)
        weights.extend(end - start for start, end in zip([0, *ordered], ordered, strict=False))
    requests = []
    for record, path, last in paths:
        units = array("q")
        for place, node in enumerate(path):
            count = ends[node][-1] if place < len(path) - 1 else last
            units.extend(range(first[node], first[node] + 1 + ends[node].index(count)))
        requests.append(_asked(record, units, size))
    return Units(size, requests, weights, sum(record.input_length for record, *_ in paths))


def joined(units: Units) -> Units:
    """Join units that all requests ask for together, also across ids.

    The prompts of a coding agent grow by few units a turn then, and not by a unit for each id.
    """
    weights, follower = units.weights, array("q", [_UNSEEN]) * len(units.weights)
    for asked in units.requests:
        before, last = 0, _APART
        for unit in asked.units:
            if last != _APART:
                follower[last] = unit if follower[last] in (_UNSEEN, unit) else _APART
            before += weights[unit]
            if before == asked.most_hits:
                follower[unit] = _APART
            last = unit
        if last != _APART:
            follower[last] = _APART
    is_joined, place, found = bytearray(len(weights)), array("q", follower), array("q")
    for unit, weight in enumerate(weights):  # those before a unit have lower numbers
        if is_joined[unit]:
            found[place[unit]] += weight
        else:
            place[unit] = len(found)
            found.append(weight)
        if follower[unit] >= 0:
            is_joined[follower[unit]] = 1
            place[follower[unit]] = place[unit]
    requests = [
        replace(asked, units=array("q", [place[u] for u in asked.units if not is_joined[u]]))
        for asked in units.requests
    ]
    return replace(units, requests=requests, weights=found)


def checked_block_size(block_size: int | None, run_length: int) -> int:
    """Return the block size, or the tokens of an id for None. InvalidArgumentError."""
    if block_size is None:
        return run_length
    if block_size < 1 or (run_length % block_size and block_size % run_length):
        allowed = f"a divisor or a multiple of {run_length}, the tokens of an id of this trace"
        raise InvalidArgumentError("block_size", block_size, allowed)
    return block_size


def _runs(record: TraceRecord, block_size: int) -> Iterable[tuple[tuple[int, ...], int]]:
    """Yield ids that belong together, and how many full blocks the request has of them."""
    full = record.cached_length // block_size
    known, ids_of_one = record.ids, max(1, block_size // record.run_length)
    blocks_of_one = max(1, record.run_length // block_size)
    for start in range(0, -(-full // blocks_of_one)):
        ids = known[start * ids_of_one : (start + 1) * ids_of_one]
        yield ids, min(blocks_of_one, full - start * blocks_of_one)


def _asked(record: TraceRecord, units: array[int], block_size: int) -> Asked:
    computed = record.input_length + max(record.output_length - 1, 0)
    return Asked(
        units=units,
        most_hits=(record.input_length - 1) // block_size,
        full=computed // block_size,
        partial=int(computed % block_size > 0),
        at_ms=record.timestamp_ms,
        tenant=record.tenant,
        priority=record.priority,
    )
