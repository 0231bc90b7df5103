"""Programs: the steps of a scheduler, as data that can be generated, shrunk, written down.

A step names requests by a number that is taken modulo the requests it fits (`who`), so that any
part of a program is a program: a step that fits no request does nothing. Running a program on an
implementation turns it into operations of a record (`kvcheck.play.performing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kvspec.config import ManagerConfig
from kvspec.domains import COUNT_MAX
from kvspec.interface import Feature


def needing(default: Any, *features: Feature) -> Any:
    """Declare a member that needs these features of a manager, unless it has its default."""
    return field(default=default, metadata={"needs": features})


@dataclass(frozen=True)
class Step:
    """One step; the classes below are all that there are."""


@dataclass(frozen=True)
class Arrive(Step):
    """A new request starts to wait.

    `items`: (identifier, offset, length) of multimodal items. `embedded`: one byte of embeddings
    for each of the first tokens, None without embeddings. `reports_hits`: events report its hits.
    `priority`: in the order of eviction of that name.
    """

    prompt: tuple[int, ...]
    salt: str | None = needing(None, Feature.CACHE_SALT)
    lora: str | None = needing(None, Feature.LORA)
    items: tuple[tuple[str, int, int], ...] = needing((), Feature.MULTIMODAL)
    skip_reading: bool = needing(False, Feature.SKIP_READING)
    embedded: tuple[int, ...] | None = needing(None, Feature.PROMPT_EMBEDDINGS)
    reports_hits: bool = needing(False, Feature.HIT_REPORTS)
    priority: int = needing(0, Feature.EVICTION_ORDERS)


@dataclass(frozen=True)
class Admit(Step):
    """A waiting request asks for its first slots.

    `look_up`: with a look-up before, and its hit. `own_hits`: with each group's own hit, if another
    store brings what the shorter ones lack. `external_tokens`: brought by another store, at most
    what is left; `load_later`: they are registered by a later FinishLoad. `chunk_tokens`: at most
    so many are computed now (None: all that is left). `encoder_tokens`: of cross attention.
    """

    who: int = 0
    look_up: bool = True
    chunk_tokens: int | None = None
    external_tokens: int = needing(0, Feature.EXTERNAL_TOKENS)
    load_later: bool = needing(False, Feature.EXTERNAL_TOKENS, Feature.DELAYED_CACHING)
    lookahead_tokens: int = needing(0, Feature.DRAFTING)
    reserved_blocks: int = needing(0, Feature.ADMISSION)
    must_fit: bool = needing(False, Feature.ADMISSION)
    others_scheduled: bool = False
    encoder_tokens: int = 3
    own_hits: bool = needing(
        False, Feature.UNEQUAL_HITS, Feature.HITS_PER_GROUP, Feature.DELAYED_CACHING
    )


@dataclass(frozen=True)
class Run(Step):
    """A running request computes: what is pending, or one new token `token`, and `drafts`.

    `accepted` of the drafts become tokens. `ahead`: the slots are asked for before the previous
    step's token is sampled. `external_tokens`: number of pending tokens that another store brings.
    `delayed`: full blocks are registered by a later call. `in_flight_tokens`: the last computed
    tokens that are still in flight (KV-MGR-21).
    """

    who: int = 0
    chunk_tokens: int | None = None
    token: int = 0
    drafts: tuple[int, ...] = needing((), Feature.DRAFTING)
    accepted: int = needing(0, Feature.DRAFTING)
    lookahead_tokens: int = needing(0, Feature.DRAFTING)
    external_tokens: int = needing(0, Feature.EXTERNAL_TOKENS)
    encoder_tokens: int = 0
    delayed: bool = needing(False, Feature.DELAYED_CACHING)
    ahead: bool = needing(False, Feature.DRAFTING)
    in_flight_tokens: int = needing(0, Feature.IN_FLIGHT)


@dataclass(frozen=True)
class FinishLoad(Step):
    """External tokens arrive: register their blocks and run the request."""

    who: int = 0


@dataclass(frozen=True)
class FailLoad(Step):
    """External tokens, just admitted, turn out void from block `index` of the load on.

    Their blocks are evicted by id; if other requests share them, all are withdrawn (KV-MGR-24), and
    the others preempted. With full attention alone the request computes them in place, otherwise
    it is preempted, too.
    """

    who: int = 0
    index: int = 0


@dataclass(frozen=True)
class Withdraw(Step):
    """The part of a request in the step that is being planned does not run (KV-MGR-23).

    All requests that hit what it planned are withdrawn with it, and preempted. The request
    continues from where it was, unless it has states, or is also preempted (`again`).

    `back`: not a plan, but the last tokens that a request has computed, and no other request; -1:
    none of them, only what its blocks hold behind them. It continues from there where all of it is
    present. `only_counts`: the manager is not told.
    """

    who: int = 0
    again: bool = False
    back: int = 0
    only_counts: bool = False


@dataclass(frozen=True)
class CachePartial(Step):
    """Make a boundary inside a block reachable: number `index` of those that are computed."""

    who: int = 0
    group: int = 0
    index: int = 0


@dataclass(frozen=True)
class Skip(Step):
    """Release at once what the request no longer needs."""

    who: int = 0


@dataclass(frozen=True)
class Release(Step):
    """A request that holds blocks ends, or is preempted (`again`); `later`: through popping."""

    who: int = 0
    again: bool = False
    later: bool = needing(False, Feature.DEFERRED_FREE)


@dataclass(frozen=True)
class GiveUp(Step):
    """A waiting request is dropped before it got anything."""

    who: int = 0


@dataclass(frozen=True)
class ReturnPopped(Step):
    """Return the last `count` popped references, the last popped first."""

    count: int = 1


@dataclass(frozen=True)
class Evict(Step):
    """Drop the identity of what is cached for block `index` of a request, in one group.

    `count` blocks in one call, the null block before them if it is more than one. `held`: the
    blocks of the request's list, cached or not, instead of those that a look-up returns.
    """

    who: int = 0
    group: int = 0
    index: int = 0
    count: int = 1
    held: bool = False


@dataclass(frozen=True)
class EvictIds(Step):
    """Drop the identity of blocks by number, whatever they hold, modulo the size of the pool.

    Does nothing beside an oracle, whose ids may differ.
    """

    blocks: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Hold(Step):
    """An engine holds blocks, named as by Evict, and releases them like popped ones.

    `free`: `count` blocks of the free queue from place `index` on. Of three or more the first is
    named twice.
    """

    who: int = 0
    group: int = 0
    index: int = 0
    count: int = 1
    held: bool = False
    free: bool = False


@dataclass(frozen=True)
class Retell(Step):
    """Take back `fewer` tokens of a followed request, as far as they are not computed yet.

    Then append `tokens`. `is_prompt`: all of them count as its prompt. `together`: of every request
    in one call. Nothing happens where the manager computes the hashes.
    """

    who: int = 0
    fewer: int = 0
    tokens: tuple[int, ...] = ()
    is_prompt: bool = False
    together: bool = False


@dataclass(frozen=True)
class Copy(Step):
    """Continue on a copy: a clone, or one that a snapshot, or with `saved` a file, restores."""

    restored: bool = False
    saved: bool = False


@dataclass(frozen=True)
class Reset(Step):
    """Try to reset the prefix cache."""


@dataclass(frozen=True)
class NewStep(Step):
    """Begin a scheduling step."""


@dataclass(frozen=True)
class Take(Step):
    """Take what queues up: the statistics, the blocks to be zeroed, the residency samples.

    `window`: observe the statistics with a window over that many requests, the first one drawn.
    """

    window: int = 0


@dataclass(frozen=True)
class Ask(Step):
    """Make queries that change nothing: common prefix, blocks, hits per group, need.

    `num_tokens`: the number of slots and the length of a hit to ask about (None: the request's).
    """

    who: int = 0
    num_tokens: int | None = None


@dataclass(frozen=True)
class Break(Step):
    """Make the illegal call number `call` of `kvcheck.play.illegal_operations`."""

    who: int = 0
    call: int = 0


ENDS, PREEMPTED = -1, -2
"""Parts of a whole step besides numbers of tokens."""


@dataclass(frozen=True)
class Batch(Step):
    """Make a whole step (KV-BATCH-1) of all requests, which are registered before.

    `parts`: for the requests under way in turn, again from the start where there are more: how many
    tokens to compute at most, 0 for none, or `ENDS` or `PREEMPTED`; `new`: the same for waiting
    ones. The order of requests begins at number `turn`, which also alternates forms of arguments.
    `drafts`, of which `accepted` become tokens, follow what is pending; `token` is appended where
    nothing is, and `answer` times to one that runs. `rows`: room for block deltas.
    `more_slots`: slots beyond those needed, None without mappings. `by`: only the entries of one
    kind, by the call `admit`, `decode`, `free` or `preempt`. `breaks`: before it, try every variant
    that is illegal (KV-BATCH-2).
    """

    parts: tuple[int, ...] = (1,)
    new: tuple[int, ...] = (COUNT_MAX,)
    turn: int = 0
    token: int = 0
    answer: int = 0
    drafts: tuple[int, ...] = needing((), Feature.DRAFTING)
    accepted: int = 0
    token_budget: int = COUNT_MAX
    lookahead_tokens: int = needing(0, Feature.DRAFTING)
    reserved_blocks: int = needing(0, Feature.ADMISSION)
    must_fit: bool = needing(False, Feature.ADMISSION)
    stops_at_refusal: bool = False
    starts_step: bool = True
    rows: int = 400
    more_slots: int | None = 0
    by: str = ""
    breaks: bool = False


@dataclass(frozen=True)
class TakeDeltas(Step):
    """Take up to `rows` rows of block lists that were not reported yet."""

    rows: int = 1000


@dataclass(frozen=True)
class LookUps(Step):
    """Look up every second waiting request in one call, and ask the other queries of steps."""

    after: int = 0


@dataclass(frozen=True)
class Try(Step):
    """Make call number `call` about a request with this number, legal or not, on both sides."""

    who: int = 0
    call: int = 0
    number: int = 0


@dataclass(frozen=True)
class Program:
    """A configuration and the steps under it. `rules`: what a directed program is about."""

    config: ManagerConfig
    steps: tuple[Step, ...]
    name: str = "random"
    rules: tuple[str, ...] = field(default=())
