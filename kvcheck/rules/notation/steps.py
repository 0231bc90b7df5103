"""Whole engine steps in an example: `step`, `register`, and `batch CALL` of a BatchedManager."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.managed import Managed
from kvcheck.rules.notation.beside import hashes_of
from kvcheck.rules.notation.values import Name
from kvcheck.rules.notation.words import call_named
from kvcheck.rules.steps import UNTOUCHED, rows_of, slots_of
from kvspec.batched import StepOutput, StepPlan
from kvspec.interface import Feature
from kvspec.sequential import batched_of

ROOM = 64
"""Number of rows and slots allocated for outputs."""


class Steps:
    """Whole steps on the manager of an example. `requests`: by their names."""

    def __init__(self, bench: Bench, manager: Managed, requests: Mapping[str, Any]) -> None:
        bench.need(Feature.BATCHED)
        self.manager = manager
        self.requests = requests
        self.batched: Any = batched_of(bench.subject, manager.real)
        manager.is_shared = True
        self.handles: dict[str, int] = {}

    def handle(self, name: Name) -> int:
        if name.word not in self.handles:
            self.handles[name.word] = self.batched.register(self.requests[name.word])
        return self.handles[name.word]

    def argument(self, value: Any) -> Any:
        if isinstance(value, Name):
            return self.handle(value) if value.word in self.requests else value.word
        return [self.argument(each) for each in value] if isinstance(value, list) else value

    def call(self, name: str, values: Sequence[Any], members: Mapping[str, Any]) -> Any:
        """Make a call of the BatchedManager by its own name."""
        given = [self.argument(value) for value in values]
        named = {key: self.argument(value) for key, value in members.items()}
        if name == "follow":
            size = self.manager.config.given_hash_bytes or 8
            given[2:] = [hashes_of(each, size) for each in given[2:]]
        got = call_named(self.batched, name, *given, **named)
        if name == "unregister":
            gone = set(given[0])
            self.handles = {key: each for key, each in self.handles.items() if each not in gone}
        return got

    def step(self, members: Mapping[str, Any], asked: Sequence[str]) -> Any:
        """Make a step; return its result, with `rows` and `slots` where they are asked for.

        `room`: the most rows. `mappings`: lengths of the slot mappings passed to it.
        """
        known = {field.name for field in fields(StepPlan)}
        given = {name: self.argument(value) for name, value in members.items() if name in known}
        plan = StepPlan(**given)
        if "mappings" in members:
            lengths = members["mappings"]
            own = [None if length is None else slots_of(length) for length in lengths]
            return self.batched.step(plan, StepOutput(slot_mappings=own))
        if not {"rows", "slots"} & set(asked) and "room" not in members:
            return self.batched.step(plan)
        room = members.get("room", ROOM)
        rows = rows_of(room)
        slots = [
            slots_of(ROOM) if "slots" in asked and spec.has_slots else None
            for spec in self.manager.config.managed_specs
        ]
        result = self.batched.step(plan, StepOutput(rows, slots))
        return _WithOutput(result, self._rows(rows, result.num_deltas), _written(slots))

    def take_deltas(self, num_rows: int) -> list[list[Any]]:
        """Return the rows that were left over, at most `num_rows`."""
        rows = rows_of(num_rows)
        return self._rows(rows, self.batched.take_deltas(rows))

    def _rows(self, rows: Any, count: int) -> list[list[Any]]:
        """Return the rows with names for handles, without block ids if they are free."""
        names = {handle: name for name, handle in self.handles.items()}
        found = [[names[row[0]], *row[1:]] for row in rows.tolist()[:count]]
        return found if self.manager.exact else [row[:3] for row in found]


class _WithOutput:
    def __init__(self, result: Any, rows: Any, slots: Any) -> None:
        self.rows, self.slots = rows, slots
        self.num_slots, self.num_deltas = result.num_slots, result.num_deltas
        self.num_deltas_left = result.num_deltas_left
        self.num_scheduled_tokens = result.num_scheduled_tokens
        self.hit_tokens = result.hit_tokens


def _written(slots: Sequence[array[int] | None]) -> list[list[int] | None]:
    """Return of each mapping the slots that were written."""
    return [None if each is None else [s for s in each if s != UNTOUCHED] for each in slots]
