"""The bounds of an exploration: a manager, its requests, and the calls that are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kvspec.config import ManagerConfig


class Call(StrEnum):
    """Calls of a manager besides admitting, computing and freeing."""

    PREEMPT = "preempt"
    """A request is freed and returns with the tokens it has."""
    POP = "pop"
    """Deferred frees: a request's blocks are popped, and returned later, whole or in part."""
    EVICT = "evict"
    """Each cached block by its id, and all of them at once."""
    RESET = "reset"
    SKIP = "skip"
    STEP = "step"
    CACHE = "cache"
    """Tokens that were computed without being registered are registered."""
    PARTIAL = "partial"
    ASK = "ask"
    """Every call that must change nothing."""
    ILLEGAL = "illegal"
    """Calls that no caller may make (KV-ERR-2)."""


@dataclass(frozen=True)
class Admission:
    """The arguments with which a request asks for its first slots.

    `external_tokens` are brought by another store, by a later load if `load_later`; with `own_hits`
    each group brings its own hit. `delayed`: nothing is registered now. `must_fit`,
    `reserved_blocks` and `others_scheduled` as in `allocate_slots`.
    """

    look_up: bool = True
    external_tokens: int = 0
    load_later: bool = False
    lookahead_tokens: int = 0
    reserved_blocks: int = 0
    must_fit: bool = False
    others_scheduled: bool = False
    delayed: bool = False
    own_hits: bool = False


@dataclass(frozen=True)
class Computation:
    """The arguments with which a running request asks for slots, some drafts accepted."""

    num_drafts: int = 0
    num_accepted: int = 0
    lookahead_tokens: int = 0
    delayed: bool = False


@dataclass(frozen=True)
class Step:
    token_budget: int
    num_lookahead_tokens: int = 0
    reserved_blocks: int = 0
    stops_at_refusal: bool = False


@dataclass(frozen=True)
class Configuration:
    """Everything that an exploration may meet; its graph is finite.

    - `num_requests` at once. One that has ended makes place for another, with its name.
    - `prompts`: what a request may begin with; it grows by `tokens` up to the manager's
      `max_model_len_tokens`.
    - `steps`: whole engine steps, of every plan over the requests (`kvcheck.explore.batches`).
    - `in_chunks`: a step computes any number of the tokens that are left; otherwise all of them.
    - `max_popped`: deferred frees that may be under way at once.
    - `up_to_names`: states that differ only in the names of blocks and requests are one.
    """

    name: str
    summary: str
    config: ManagerConfig
    prompts: tuple[tuple[int, ...], ...]
    num_requests: int = 2
    tokens: tuple[int, ...] = (0,)
    in_chunks: bool = True
    admissions: tuple[Admission, ...] = (Admission(),)
    computations: tuple[Computation, ...] = (Computation(),)
    steps: tuple[Step, ...] = ()
    calls: frozenset[Call] = field(default_factory=lambda: frozenset(Call))
    max_popped: int = 1
    up_to_names: bool = True
    is_deep: bool = False

    def name_of(self, number: int) -> str:
        return f"r{number}"

    def names(self) -> tuple[str, ...]:
        return tuple(map(self.name_of, range(self.num_requests)))
