"""Count what other orders of eviction would hit: which block goes first, one rule each.

The contract evicts the least recently used block (KV-POOL-2); every other order here is only tried
on a trace, one request at a time, as in `whatif`. A cached block that no request uses waits in a
queue. A policy says which queue a block joins at its release, and which queue gives up its front.
No policy refuses: whatever the rule, the running request gets its blocks, so nothing starves.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate

from kvcheck.tools.replay.units import Asked, Units
from kvspec.domains import numbered
from kvspec.errors import InvalidArgumentError

Queue = int | str
"""The name of a queue. Of numbers, the queue with the lowest gives up its front."""


class LRU:
    """One queue: the block released longest ago goes first.

    `queues` has no empty one. `queue_of[block]`: where a cached block waits. `capacity`: blocks of
    the pool without the null block. `amount`: the number behind the policy's name.
    """

    def __init__(self, capacity: int, amount: int) -> None:
        self.capacity, self.amount = capacity, amount
        self.queues: dict[Queue, OrderedDict[int, None]] = {}
        self.queue_of: dict[int, Queue] = {}

    def begin(self, asked: Asked) -> None:
        """Act before a request is looked up."""

    def choose(self, block: int, before: Queue | None, asked: Asked) -> Queue:
        """Return the queue that a block joins; `before`: the one it waited in, if it was cached."""
        return 0

    def worst(self) -> Queue:
        """Return the queue whose front goes first."""
        return min(self.queues, key=int)

    def take(self, block: int) -> Queue | None:
        """Take a block that a request asks for out of its queue; return that queue."""
        name = self.queue_of.pop(block, None)
        if name is not None:
            queue = self.queues[name]
            del queue[block]
            if not queue:
                del self.queues[name]
        return name

    def put(self, block: int, before: Queue | None, asked: Asked) -> None:
        """Release a block: it joins the end of a queue."""
        name = self.choose(block, before, asked)
        self.queues.setdefault(name, OrderedDict())[block] = None
        self.queue_of[block] = name

    def evict(self) -> tuple[int, Queue]:
        """Drop the front of the worst queue; return the block and the queue."""
        name = self.worst()
        block = next(iter(self.queues[name]))
        self.take(block)
        return block, name


class LFU(LRU):
    """The block that the fewest requests asked for since it was cached goes first."""

    def choose(self, block: int, before: Queue | None, asked: Asked) -> Queue:
        """Return the number of requests that asked for it."""
        return 1 + int(before or 0)


class Priority(LRU):
    """The block goes first of which the most important request was the least important."""

    def choose(self, block: int, before: Queue | None, asked: Asked) -> Queue:
        """Return the highest priority of its requests."""
        return asked.priority if before is None else max(int(before), asked.priority)


class TTL(LRU):
    """LRU, and a block that no request used for `amount` seconds is dropped."""

    def __init__(self, capacity: int, amount: int) -> None:
        super().__init__(capacity, amount)
        self.now_ms = 0
        self.used_ms: dict[int, int] = {}

    def begin(self, asked: Asked) -> None:
        """Drop what is too old; a time before an earlier request's counts as that one's."""
        self.now_ms = max(self.now_ms, asked.at_ms)
        queue = self.queues.get(0, OrderedDict())
        while queue and self.used_ms[next(iter(queue))] < self.now_ms - 1000 * self.amount:
            self.evict()

    def choose(self, block: int, before: Queue | None, asked: Asked) -> Queue:
        """Note the time."""
        self.used_ms[block] = self.now_ms
        return 0


class Pin(LRU):
    """A block that `amount` requests asked for since it was cached goes after all others.

    At most half of the pool is pinned: beyond, the pin used longest ago becomes the most recent of
    the others. A pin gives way too if nothing else is left, so a request always has its blocks.
    """

    def __init__(self, capacity: int, amount: int) -> None:
        super().__init__(capacity, amount)
        self.times: dict[int, int] = {}

    def choose(self, block: int, before: Queue | None, asked: Asked) -> Queue:
        """Return 1 for a pinned block; the oldest pin makes room for it."""
        self.times[block] = 1 if before is None else self.times[block] + 1
        if self.times[block] < self.amount or self.capacity < 2:
            return 0
        if len(self.queues.get(1, ())) >= self.capacity // 2:
            oldest = next(iter(self.queues[1]))
            self.take(oldest)
            self.queues.setdefault(0, OrderedDict())[oldest] = None
            self.queue_of[oldest] = 0
        return 1


class Quota(LRU):
    """Blocks of a tenant that has more than `amount` percent of the pool go first, by LRU.

    Only waiting blocks that it alone asked for count. A tenant may fill the pool while nobody else
    needs it, and none loses a block of its share while another one is above its own.
    """

    SHARED = ""

    def __init__(self, capacity: int, amount: int) -> None:
        super().__init__(capacity, amount)
        self.released: dict[int, int] = {}
        self.clock = 0

    def choose(self, block: int, before: Queue | None, asked: Asked) -> Queue:
        """Return the block's only tenant, or `SHARED`."""
        self.clock += 1
        self.released[block] = self.clock
        return asked.tenant if before in (None, asked.tenant) else self.SHARED

    def worst(self) -> Queue:
        """Return the queue with the oldest front, of the tenants above their share if any is."""
        above = [
            name
            for name, queue in self.queues.items()
            if name != self.SHARED and 100 * len(queue) > self.amount * self.capacity
        ]
        return min(
            above or self.queues, key=lambda name: self.released[next(iter(self.queues[name]))]
        )


class ARC(LRU):
    """Adaptive replacement: what was asked for once (queue 0) against more often (queue 1).

    `ghosts`: the blocks last evicted from each queue. A block asked for again that its queue has
    just given up says that this queue was too short: `target` is the length that queue 0 may have.
    """

    def __init__(self, capacity: int, amount: int) -> None:
        super().__init__(capacity, amount)
        self.target = 0
        self.ghosts: tuple[OrderedDict[int, None], ...] = (OrderedDict(), OrderedDict())

    def worst(self) -> Queue:
        """Return queue 0 if it is longer than its target, or alone."""
        return 0 if len(self.queues.get(0, ())) > self.target or 1 not in self.queues else 1

    def take(self, block: int) -> Queue | None:
        """Take a block out; one that was evicted lately moves the target."""
        once, often = self.ghosts
        if block in once:
            self.target = min(self.capacity, self.target + max(1, len(often) // len(once)))
            del once[block]
            return 1
        if block in often:
            self.target = max(0, self.target - max(1, len(once) // len(often)))
            del often[block]
            return 1
        return super().take(block)

    def choose(self, block: int, before: Queue | None, asked: Asked) -> Queue:
        """Return queue 1 for what was asked for before."""
        return 0 if before is None else 1

    def evict(self) -> tuple[int, Queue]:
        """Evict, and remember at most one pool's worth of the first queue, and two of both."""
        block, name = super().evict()
        once, often = self.ghosts
        self.ghosts[int(name)][block] = None
        if once and len(self.queues.get(0, ())) + len(once) > self.capacity:
            once.popitem(last=False)
        if often and len(self.queue_of) + len(once) + len(often) > 2 * self.capacity:
            often.popitem(last=False)
        return block, name


POLICIES: Mapping[str, type[LRU]] = {
    "lru": LRU,
    "arc": ARC,
    "lfu": LFU,
    "priority": Priority,
    "ttl:SECONDS": TTL,
    "quota:PERCENT": Quota,
    "pin:TIMES": Pin,
}
"""By name, with what the number behind a colon counts: the policy beside LRU."""

REPLAYED = ("lru", "lfu", "priority", "ttl:SECONDS", "pin:TIMES")
"""Those that a manager has as its order of eviction (KV-ORD-1)."""


def policy_of(text: str) -> Callable[[int], LRU]:
    """Return what makes the policy that is called so, for a capacity. InvalidArgumentError."""
    form, amount = numbered("--policy", text, tuple(POLICIES), error=InvalidArgumentError)
    return partial(POLICIES[form], amount=amount)


def lacks(units: Units, text: str) -> str | None:
    """Return what the policy reads and no request of the trace has; None if nothing is missing."""
    name = text.partition(":")[0]
    asked = units.requests
    if name == "ttl" and not any(each.at_ms for each in asked):
        return "times"
    if name == "quota" and not any(each.tenant for each in asked):
        return "tenants"
    if name == "priority" and not any(each.priority for each in asked):
        return "priorities"
    return None


def policy_hits(units: Units, num_blocks: int, make: Callable[[int], LRU]) -> Counter[str]:
    """Count each tenant's blocks hit by a pool of `num_blocks` blocks, the null block included.

    What a request hits is a prefix. It holds all its blocks until it ends, and releases the tail
    first; generated blocks are cached like others, and asked for where the trace has their tokens.
    """
    capacity = num_blocks - 1
    policy, hits = make(capacity), Counter[str]()
    starts = [0, *accumulate(units.weights)]
    generated = starts[-1]
    for asked in units.requests:
        policy.begin(asked)
        blocks = [b for unit in asked.units for b in range(starts[unit], starts[unit + 1])]
        cached = (n for n, block in enumerate(blocks) if block not in policy.queue_of)
        hits[asked.tenant] += min(next(cached, len(blocks)), asked.most_hits)
        before = [policy.take(block) for block in blocks]
        while len(policy.queue_of) > capacity - asked.held:
            policy.evict()
        for _ in range(asked.full - len(blocks)):
            policy.put(generated, None, asked)
            generated += 1
        for block, name in zip(reversed(blocks), reversed(before), strict=True):
            policy.put(block, name, asked)
    return hits
