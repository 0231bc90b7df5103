"""Programs: the steps of a scheduler, as data that can be generated, shrunk, written down.

A step names requests by a number that is taken modulo the requests it fits (`who`), so that any
part of a program is a program: a step that fits no request does nothing. Running a program on an
implementation turns it into operations of a record (`kvcheck.play.performing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from kvspec.config import ManagerConfig


@dataclass(frozen=True)
class Arrive:
    """A new request starts to wait.

    `items`: (identifier, offset, length) of multimodal items. `embedded`: one byte of embeddings
    for each of the first tokens, None without embeddings. `reports_hits`: events report its hits.
    """

    prompt: tuple[int, ...]
    salt: str | None = None
    lora: str | None = None
    items: tuple[tuple[str, int, int], ...] = ()
    skip_reading: bool = False
    embedded: tuple[int, ...] | None = None
    reports_hits: bool = False


@dataclass(frozen=True)
class Admit:
    """A waiting request asks for its first slots.

    `look_up`: with a look-up before, and its hit. `own_hits`: with each group's own hit, if another
    store brings what the shorter ones lack. `external_tokens`: brought by another store, at most
    what is left; `load_later`: they are registered by a later FinishLoad. `chunk_tokens`: at most
    so many are computed now (None: all that is left). `encoder_tokens`: of cross attention.
    """

    who: int = 0
    look_up: bool = True
    chunk_tokens: int | None = None
    external_tokens: int = 0
    load_later: bool = False
    lookahead_tokens: int = 0
    reserved_blocks: int = 0
    must_fit: bool = False
    others_scheduled: bool = False
    encoder_tokens: int = 3
    own_hits: bool = False


@dataclass(frozen=True)
class Run:
    """A running request computes: what is pending, or one new token `token`, and `drafts`.

    `accepted` of the drafts become tokens. `ahead`: the slots are asked for before the previous
    step's token is sampled. `external_tokens`: number of pending tokens that another store brings.
    `delayed`: full blocks are registered by a later call. `in_flight_tokens`: the last computed
    tokens that are still in flight (KV-MGR-21).
    """

    who: int = 0
    chunk_tokens: int | None = None
    token: int = 0
    drafts: tuple[int, ...] = ()
    accepted: int = 0
    lookahead_tokens: int = 0
    external_tokens: int = 0
    encoder_tokens: int = 0
    delayed: bool = False
    ahead: bool = False
    in_flight_tokens: int = 0


@dataclass(frozen=True)
class FinishLoad:
    """External tokens arrive: register their blocks and run the request."""

    who: int = 0


@dataclass(frozen=True)
class FailLoad:
    """External tokens, just admitted, turn out void from block `index` of the load on.

    Their blocks are evicted by id; if other requests share them, all are withdrawn (KV-MGR-24), and
    the others preempted. With full attention alone the request computes them in place, otherwise
    it is preempted, too.
    """

    who: int = 0
    index: int = 0


@dataclass(frozen=True)
class Withdraw:
    """The part of a request in the step that is being planned does not run (KV-MGR-23).

    All requests that hit what it planned are withdrawn with it, and preempted. The request
    continues from where it was, unless it has states, or is also preempted (`again`).
    """

    who: int = 0
    again: bool = False


@dataclass(frozen=True)
class CachePartial:
    """Make a boundary inside a block reachable: number `index` of those that are computed."""

    who: int = 0
    group: int = 0
    index: int = 0


@dataclass(frozen=True)
class Skip:
    """Release at once what the request no longer needs."""

    who: int = 0


@dataclass(frozen=True)
class Release:
    """A request that holds blocks ends, or is preempted (`again`); `later`: through popping."""

    who: int = 0
    again: bool = False
    later: bool = False


@dataclass(frozen=True)
class GiveUp:
    """A waiting request is dropped before it got anything."""

    who: int = 0


@dataclass(frozen=True)
class ReturnPopped:
    """Return the last `count` popped references, the last popped first."""

    count: int = 1


@dataclass(frozen=True)
class Evict:
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
class EvictIds:
    """Drop the identity of blocks by number, whatever they hold, modulo the size of the pool.

    Does nothing beside an oracle, whose ids may differ.
    """

    blocks: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Hold:
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
class Retell:
    """Take back `fewer` tokens of a followed request, as far as they are not computed yet.

    Then append `tokens`. `is_prompt`: all of them count as its prompt. Nothing happens where the
    manager computes the hashes.
    """

    who: int = 0
    fewer: int = 0
    tokens: tuple[int, ...] = ()
    is_prompt: bool = False


@dataclass(frozen=True)
class Copy:
    """Continue on a copy: a clone, or one that a snapshot restores."""

    restored: bool = False


@dataclass(frozen=True)
class Reset:
    """Try to reset the prefix cache."""


@dataclass(frozen=True)
class NewStep:
    """Begin a scheduling step."""


@dataclass(frozen=True)
class Take:
    """Take what queues up: the statistics, the blocks to be zeroed, the residency samples."""


@dataclass(frozen=True)
class Ask:
    """Make queries that change nothing: common prefix, blocks, hits per group, need.

    `num_tokens`: the number of slots and the length of a hit to ask about (None: the request's).
    """

    who: int = 0
    num_tokens: int | None = None


@dataclass(frozen=True)
class Break:
    """Make the illegal call number `call` of `kvcheck.play.illegal_operations`."""

    who: int = 0
    call: int = 0


Step: TypeAlias = (
    Arrive
    | Admit
    | Run
    | FinishLoad
    | FailLoad
    | Withdraw
    | CachePartial
    | Skip
    | Release
    | GiveUp
    | ReturnPopped
    | Evict
    | EvictIds
    | Hold
    | Retell
    | Copy
    | Reset
    | NewStep
    | Take
    | Ask
    | Break
)


@dataclass(frozen=True)
class Program:
    """A configuration and the steps under it. `rules`: what a directed program is about."""

    config: ManagerConfig
    steps: tuple[Step, ...]
    name: str = "random"
    rules: tuple[str, ...] = field(default=())
