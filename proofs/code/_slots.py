"""`allocate_slots` of kvref and of kvfast, run on unknown numbers.

What is around the arithmetic is stubs, the same on both sides: need and free blocks are unknown,
hits are neither looked at nor taken, and lists stay as they are. Noted is what the code asks of
them, and -1 for what it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import z3

import kvref.allocation
import kvref.arguments
import kvref.request
from kvfast._core import calls, core, demand
from kvref.coordinator import Coordinator
from kvspec.errors import InvalidArgumentError
from kvspec.policy import Policy
from kvspec.request import RequestStatus
from proofs._z3 import Term, function
from proofs.code._paths import Way, merged_each, picking_in_one_way, term_of

COUNTS = (
    "computed", "hit", "external", "new", "lookahead", "encoder", "reserved", "num_tokens",
    "in_flight",
)  # fmt: skip
FLAGS = ("must_fit", "caches", "beside_others")
ILLEGAL, REFUSED_BY_GATE, REFUSED, GRANTED = range(4)
ASKED = ("slots", "main", "local", "external", "skip_at", "encoder")
NOTED = (
    "outcome", "removed", "takes_hits", "cached",
    *(f"{of} {name}" for of in ("gate", "need") for name in ASKED),
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """The known facts about a call; all numbers and flags are unknown."""

    status: RequestStatus
    has_row: bool = False
    is_running: bool = False
    has_hits: bool = False
    replays: bool = False

    def __str__(self) -> str:
        row = "under way" if self.is_running else "with blocks" if self.has_row else "first"
        hits = ", with a replayed hit" if self.replays else ", with hits" if self.has_hits else ""
        return f"{self.status}, {row}{hits}"


def needed(of: str, *asked: Term) -> Term:
    """Return the blocks that all groups need."""
    count: Term = function(of, len(ASKED))(*asked)
    return count


class Notes:
    """A stub for the pool and the groups of either side, which notes calls."""

    def __init__(self, way: Way, case: Case) -> None:
        self.way = way
        self.case = case
        self.noted: dict[str, object] = dict.fromkeys(NOTED, -1)
        self.noted["takes_hits"] = 0
        self.num_free = self.number("free at first")

    def number(self, name: str) -> Any:
        return self.way.number(z3.Int(name))

    def need(self, capped: bool, *asked: object) -> Any:
        """Note the arguments; return an unknown number."""
        of = "gate" if capped else "need"
        terms = [z3.IntVal(0) + term_of(each) for each in asked]
        self.noted |= {f"{of} {name}": term for name, term in zip(ASKED, terms, strict=True)}
        return self.way.number(needed(of, *terms))

    def remove(self, computed: object) -> None:
        """Note the removal; the number of free blocks may change."""
        self.noted["removed"] = computed
        self.num_free = self.number("free then")

    def take(self) -> None:
        self.noted["takes_hits"] = 1

    def cache(self, tokens: object) -> None:
        self.noted["cached"] = tokens

    def ended(self, call: Callable[[], object]) -> dict[str, object]:
        """Return everything noted of a call, with its outcome."""
        try:
            granted = call() is not None
        except InvalidArgumentError:
            return self.noted | {"outcome": ILLEGAL}
        refused = REFUSED_BY_GATE if self.noted["removed"] == -1 else REFUSED
        return self.noted | {"outcome": GRANTED if granted else refused}


class NotingGroup:
    """A group of kvref."""

    covers_sequence = False

    def __init__(self, notes: Notes) -> None:
        self.notes = notes
        self.spec = SimpleNamespace(replays_window=notes.case.replays)

    def has_entry(self, name: str) -> bool:
        return self.notes.case.is_running

    def blocks_of(self, name: str) -> tuple[int, ...]:
        return (1,) if self.notes.case.has_row else ()

    def num_blocks_needed(self, name: str, hits: object, asked: Any) -> Any:
        return self.notes.need(
            asked.apply_admission_cap,
            asked.num_slots_tokens,
            asked.num_main_tokens,
            asked.num_local_tokens,
            asked.num_external_tokens,
            asked.skip_at_tokens,
            asked.num_encoder_tokens,
        )

    def take_hits(self, name: str, hits: object, asked: object) -> None:
        self.notes.take()

    def allocate_external(self, name: str, asked: object) -> None:
        """Do nothing: in kvfast this is part of taking hits."""

    def allocate_new(self, name: str, asked: object) -> list[int]:
        return []

    def cache_blocks(self, request: object, tokens: object) -> None:
        self.notes.cache(tokens)

    def remove_skipped_blocks(self, name: str, computed: object) -> None:
        self.notes.remove(computed)

    def remove_gap(self, name: str, computed: object, prompt: object) -> None: ...


class ReferenceAllocator(kvref.allocation.Allocator):
    """kvref's, whose watermark is unknown."""

    @property
    def watermark_blocks(self) -> int:
        return cast(int, self.unknown_watermark)

    unknown_watermark: object = 0


@contextmanager
def argument_checks() -> Iterator[None]:
    """Accept all counts, hits and slots: arguments are legal here."""
    arguments = kvref.arguments
    with ExitStack() as stack:
        for name in ("check_scheduling", "_check_computed", "_check_continues", "_check_hits"):
            stack.enter_context(patch.object(arguments, name, lambda *_, **__: None))
        for module in (kvref.request, kvref.allocation):
            stack.enter_context(patch.object(module, "exact", lambda value: value))
        stack.enter_context(picking_in_one_way(kvref.allocation, kvref.arguments, calls, core))
        yield


def of_reference(case: Case) -> dict[str, Term]:
    """Run kvref's `allocate_slots`; return what it noted, by name."""

    def run(way: Way) -> dict[str, object]:
        notes = Notes(way, case)
        made: Any = object.__new__(ReferenceAllocator)
        made.unknown_watermark = notes.number("watermark")
        made.longest = notes.number("longest")
        made.config = SimpleNamespace(enable_caching=True, policy=Policy())
        made.pool = PoolOf(notes)
        made.coordinator = Coordinator(cast(Any, (NotingGroup(notes),)))
        made.turn = SimpleNamespace(changes=lambda: None)
        request = SimpleNamespace(
            request_id="r",
            status=case.status,
            num_tokens=notes.number("num_tokens"),
            num_computed_tokens=notes.number("computed"),
            num_in_flight_tokens=notes.number("in_flight"),
            num_prompt_tokens=1,
            input=SimpleNamespace(reports_hits=False, priority=0),
        )
        asked = cast(Any, kvref.request.Allocation)(
            request=request,
            hits=SimpleNamespace(is_empty=not case.has_hits, groups=((),)),
            num_hit_tokens=notes.number("hit"),
            num_external_tokens=notes.number("external"),
            num_new_tokens=notes.number("new"),
            num_lookahead_tokens=notes.number("lookahead"),
            num_encoder_tokens=notes.number("encoder"),
            reserved_blocks=notes.number("reserved"),
            delay_cache_blocks=notes.number("caches") == 0,
            full_sequence_must_fit=notes.number("must_fit"),
            has_scheduled_reqs=notes.number("beside_others"),
        )
        return notes.ended(lambda: made.allocate(asked))

    with argument_checks():
        return merged_each(run)


@dataclass(frozen=True)
class PoolOf:
    """The pool of either side."""

    notes: Notes

    @property
    def num_free_blocks(self) -> Any:
        return self.notes.num_free

    num_free = num_free_blocks


class NotingAllocator:
    """A stub for kvfast's code below `Core.place`."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def is_running(self, row: int) -> bool:
        return self.notes.case.is_running

    def num_needed(self, row: int, asked: demand.Demand, capped: bool) -> Any:
        return self.notes.need(capped, *(getattr(asked, name) for name in ASKED))

    def remove_skipped(self, row: int, computed: object, prompt: object) -> None:
        self.notes.remove(computed)

    def take_hits(self, row: int, asked: object, priority: int) -> None:
        self.notes.take()

    def take_new(self, row: int, asked: object) -> None:
        """Note nothing."""

    def cache(self, row: int, request: object, tokens: object) -> None:
        self.notes.cache(tokens)


class NotingCore(core.Core):
    """kvfast's core with results that are not looked at."""

    def __init__(self, notes: Notes) -> None:
        """Set only what an allocation reads."""
        made = cast(Any, self)
        made.max_len = notes.number("longest")
        made.watermark = notes.number("watermark")
        made.pool = PoolOf(notes)
        made.allocator = NotingAllocator(notes)
        made.asked, made.demand = demand.Asked(), demand.Demand()
        made.inside = None
        made.shape = SimpleNamespace(replays=notes.case.replays)
        made.reports_admitted = False
        row = 0 if notes.case.has_row else -1
        made.rows = SimpleNamespace(of=lambda request: row, add=lambda request: 0)

    def new_blocks(self, row: int) -> Any:
        return ()


def of_fast(case: Case) -> dict[str, Term]:
    """Run kvfast's `allocate_slots`; return what it noted, by name."""

    def run(way: Way) -> dict[str, object]:
        notes = Notes(way, case)
        made: Any = object.__new__(calls.Calls)
        made.core = NotingCore(notes)
        made.turn = SimpleNamespace(changes=lambda: None, changed=lambda: None)
        made.checks = SimpleNamespace(
            offer=lambda hits: int(case.has_hits),
            computed_of=lambda request: notes.number("computed"),
            check_scheduling=lambda request: None,
            check_has_slots=lambda row, prompt, computed: None,
            check_continues=lambda *_: None,
            check_hits=lambda *_: None,
        )
        request = SimpleNamespace(
            state=case.status,
            running=RequestStatus.RUNNING,
            look_again=lambda: None,
            priority=0,
            num_tokens=notes.number("num_tokens"),
            in_flight=notes.number("in_flight"),
            num_prompt_tokens=1,
        )
        for name in ("new", "lookahead", "external", "encoder", "reserved"):
            setattr(made.core.asked, name, notes.number(name))
        must_fit, caches, beside = map(notes.number, FLAGS)
        made.core.asked.whole_must_fit = must_fit
        return notes.ended(lambda: made.grant(request, None, notes.number("hit"), caches, beside))

    with argument_checks():
        return merged_each(run)
