"""Seeded mistakes: in a module, each of which the checker must refute, and in kvref."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvref.block_pool import BlockPool
from kvspec.blocks import NULL_BLOCK
from proofs.models._formal._bounds import (
    ADMISSION,
    SMALL_GROUPS,
    SMALL_MANAGER,
    SMALL_POOL,
    TWO_TEXTS,
)
from proofs.models._formal._checker import read
from proofs.models._formal._groups import GroupsSide
from proofs.models._formal._manager import ManagerSide
from proofs.models._formal._search import Bounds

DIFFERS = "the graph differs"
"""No invariant is broken, but the states or edges are not those of kvref."""


@dataclass(frozen=True)
class Twin:
    """A mistake: in `module`, `old` becomes `new`. `found_by`: an invariant, or DIFFERS."""

    name: str
    bounds: str
    module: str
    old: str
    new: str
    found_by: str

    def text(self) -> str:
        """Return the module with the mistake."""
        text = read(self.module)
        if text.count(self.old) != 1:
            raise ValueError(f"{self.module}.tla has {text.count(self.old)} times {self.old!r}")
        return text.replace(self.old, self.new)


def small() -> dict[str, Bounds]:
    """Return the bounds in which the mistakes are looked for."""
    return {
        "pool": SMALL_POOL,
        "groups": GroupsSide(SMALL_GROUPS),
        "manager": ManagerSide(SMALL_MANAGER),
        "two texts": ManagerSide(TWO_TEXTS),
        "admission": ManagerSide(ADMISSION),
    }


TWINS = (
    Twin(
        "a release puts cached blocks to the front",
        "pool",
        "Pool",
        "SelectSeq(freed, LAMBDA b : p.keys[b] = NoKey) \\o p.queue",
        "SelectSeq(freed, LAMBDA b : p.keys[b] # NoKey) \\o p.queue",
        "free_means_unreferenced",
    ),
    Twin(
        "a release puts unhashed blocks to the front one by one",
        "pool",
        "Pool",
        "LET freed == Freed(list, p.refs)\n",
        "LET freed == Freed([i \\in 1 .. Len(list) |-> list[Len(list) + 1 - i]], p.refs)\n",
        DIFFERS,
    ),
    Twin(
        "a block leaks: its last reference goes, and it does not return",
        "pool",
        "Pool",
        "ELSE (IF Head(list) # Null /\\ refs[Head(list)] = 1 THEN",
        "ELSE (IF Head(list) # Null /\\ refs[Head(list)] = 2 THEN",
        "free_means_unreferenced",
    ),
    Twin(
        "two owners: the last block that is taken stays in the queue",
        "pool",
        "Pool",
        "!.queue = SubSeq(p.queue, n + 1, Len(p.queue))",
        "!.queue = SubSeq(p.queue, n, Len(p.queue))",
        "free_means_unreferenced",
    ),
    Twin(
        "a touched block stays in the queue",
        "pool",
        "Pool",
        "!.queue = SelectSeq(p.queue, LAMBDA b : b \\notin blocks)",
        "!.queue = p.queue",
        "free_means_unreferenced",
    ),
    Twin(
        "a stale hit: a block that is taken keeps its key",
        "two texts",
        "Pool",
        "IN [Forget(p, taken) EXCEPT",
        "IN [p EXCEPT",
        "keys_are_listed_once",
    ),
    Twin(
        "evicting a block forgets its copies, too",
        "pool",
        "Pool",
        "IF key \\in lost THEN left[key] ELSE p.cached[key]",
        "IF key \\in lost THEN Tail(left[key]) ELSE p.cached[key]",
        "keys_and_lookups_agree",
    ),
    Twin(
        "a look-up answers the block that was registered last",
        "manager",
        "Pool",
        "THEN Head(p.cached[key]) ELSE Null",
        "THEN p.cached[key][Len(p.cached[key])] ELSE Null",
        DIFFERS,
    ),
    Twin(
        "a window one token too small",
        "groups",
        "Groups",
        "Max(0, n - Windows[g] + 1)",
        "Max(0, n - Windows[g] + 2)",
        DIFFERS,
    ),
    Twin(
        "the blocks of a request are released first to last",
        "manager",
        "Groups",
        "!.pool = Release(c.pool, Reversed(c.lists[r][g]))",
        "!.pool = Release(c.pool, c.lists[r][g])",
        DIFFERS,
    ),
    Twin(
        "hits are registered once more",
        "manager",
        "Groups",
        "LET first == Max(c.counts[r][g], 0)\n",
        "LET first == 0\n",
        "keys_are_listed_once",
    ),
    Twin(
        "the last token may be hit, too",
        "manager",
        "Hits",
        "Search(c, text, Len(text) - 1)",
        "Search(c, text, Len(text))",
        DIFFERS,
    ),
    Twin(
        "free forgets the request and keeps its references",
        "manager",
        "Manager",
        '"running"\n  /\\ m\' = [FreeAll(m, r) EXCEPT !.seats[r] = Empty]',
        '"running"\n  /\\ m\' = [ForgetRequest(m, r) EXCEPT !.seats[r] = Empty]',
        "references_are_accounted_for",
    ),
    Twin(
        "the gate does not count the watermark",
        "admission",
        "Calls",
        "       + q.watermark <= NumFree(c.pool)",
        "       <= NumFree(c.pool)",
        DIFFERS,
    ),
)
"""Each is a mistake that managers have been seen to make, or are close to."""

UNFAIR = (
    Twin(
        "no request must be admitted",
        "scheduler",
        "Scheduler",
        "/\\ WF_vars(AdmitUnlessRefused)",
        "/\\ TRUE",
        "liveness",
    ),
    Twin(
        "the oldest is preempted",
        "scheduler",
        "Scheduler",
        "ELSE IF Youngest(Running(tried)) = r THEN PreemptedIn(tried, r)",
        "ELSE IF TRUE THEN"
        " PreemptedIn(tried, Head(SelectSeq(order, LAMBDA o : IsRunning(tried, o))))",
        "the_oldest_run",
    ),
    Twin(
        "who finishes keeps its blocks",
        "scheduler",
        "Scheduler",
        "/\\ m' = [FreeAll(m, r) EXCEPT !.seats[r] = Gone]",
        "/\\ m' = [m EXCEPT !.seats[r] = Gone]",
        "slots_are_there",
    ),
    Twin(
        "who comes goes before those who wait",
        "endless arrivals",
        "Scheduler",
        "Places == IF AnyOrder THEN 0 .. Len(order) ELSE {Len(order)}",
        "Places == {Len(SelectSeq(order, LAMBDA o : Runs(o)))}",
        "liveness",
    ),
    Twin(
        "who has loaded cannot be preempted",
        "parked loads",
        "Scheduler",
        's.seats[r].phase \\in {"running", "loaded"}',
        's.seats[r].phase = "running"',
        "liveness",
    ),
    Twin(
        "others are admitted while one that runs is refused",
        "parked loads",
        "Scheduler",
        "  /\\ ~barred\n",
        "",
        "liveness",
    ),
)
"""Mistakes of the scheduler. With the last one no request starves while arrivals end."""

GROWN = (
    Twin(
        "a hybrid caches beyond the last boundary",
        "two block sizes",
        "Groups",
        "  IN IF NumGroups = 1 THEN n\n",
        "  IN IF TRUE THEN n\n",
        DIFFERS,
    ),
    Twin(
        "an eagle group keeps the last block of its hit",
        "eagle",
        "Hits",
        "Max(RunFrom(c, a, text, 1, n) - d, 0)",
        "RunFrom(c, a, text, 1, n)",
        DIFFERS,
    ),
    Twin(
        "after a load of the whole prompt its last token finds no window",
        "loads",
        "Calls",
        "IF q.external > 0 THEN Min(Brought(q), Len(text) - 1) ELSE Brought(q)",
        "Brought(q)",
        DIFFERS,
    ),
    Twin(
        "a drafter gets no slots",
        "look-ahead",
        "Calls",
        "Total(q) + q.new + q.lookahead",
        "Total(q) + q.new",
        DIFFERS,
    ),
    Twin(
        "the replay boundary is that of the whole prompt",
        "retention",
        "Groups",
        "(((promptTokens - 1) \\div Alignment)",
        "((promptTokens \\div Alignment)",
        DIFFERS,
    ),
)
"""Mistakes in what the model has grown by."""

GROWN_IN_KVREF = {
    "two block sizes": "CachesBeyondTheBoundary",
    "eagle": "FullKeepsTheEagleBlock",
    "loads": "SkipsAtTheEnd",
    "look-ahead": "LookaheadIsForgotten",
    "retention": "ReplayOfTheWholePrompt",
}
"""Registered mistakes of kvref, by the graph that differs."""


class UnhashedToTheBack(BlockPool):
    """kvref with a mistake: blocks that cannot be hit are put behind cached ones."""

    def release(self, blocks: Iterable[int]) -> None:
        """Put every freed block at the back."""
        for block in blocks:
            if block == NULL_BLOCK:
                continue
            self.ref_counts[block] -= 1
            if self.ref_counts[block] == 0:
                self.free_queue.append(block)
