"""The device of a life: what each slot holds, by what was computed into it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvspec.tree import Part, Row, StateCopy

Content = tuple[str, tuple[int, ...]]
"""A salt and the tokens up to one: what its keys and values depend on, and a state has seen."""

CLEARED: Content = ("", ())


@dataclass
class Running:
    """A request as the engine knows it; `row` as it was seen last."""

    salt: str
    tokens: list[int]
    is_running: bool = False
    has_run: bool = False
    num_computed: int = 0
    num_allocated: int = 0
    last_match: int = 0
    session: str = ""
    row: Row = field(default_factory=lambda: Row(()))

    def content(self, num_tokens: int) -> Content:
        """Return what the slot of the last of these tokens should hold."""
        return self.salt, tuple(self.tokens[:num_tokens])

    def state(self, num_tokens: int) -> Content:
        return self.content(num_tokens) if num_tokens else CLEARED


@dataclass
class Device:
    """Contents by slot; what is not there was never written."""

    window_tokens: int
    full: dict[int, Content] = field(default_factory=dict)
    window: dict[int, Content] = field(default_factory=dict)
    states: dict[int, Content] = field(default_factory=dict)

    def copy(self, copies: Sequence[StateCopy], requests: Iterable[Running]) -> None:
        """Make copies; of a request's state as it was, its content follows from the tokens."""
        for each in copies:
            source = CLEARED if each.source is None else self.states.get(each.source)
            if each.num_tokens is not None:
                owners = [request for request in requests if request.row.state == each.source]
                source = owners[0].state(each.num_tokens) if owners else None
            self.states[each.target] = source or ("never written", ())

    def stale(self, request: Running, stop: int) -> tuple[Part, int] | None:
        """Return the first of a row's tokens up to `stop` that reads something else, and where.

        Of the window only what the next token reads counts.
        """
        for at in range(stop):
            if self.full.get(request.row.slots[at]) != request.content(at + 1):
                return Part.FULL, at
        for at in range(max(0, stop - self.window_tokens + 1), stop if self.window_tokens else 0):
            slot = request.row.window_slots[at]
            if slot is None or self.window.get(slot) != request.content(at + 1):
                return Part.WINDOW, at
        return None

    def compute(self, request: Running) -> None:
        """Write what is allocated and not computed, and let the state see it."""
        row = request.row
        for at in range(request.num_computed, len(row.slots)):
            self.full[row.slots[at]] = request.content(at + 1)
            slot = row.window_slots[at] if self.window_tokens else None
            if slot is not None:
                self.window[slot] = request.content(at + 1)
        if row.state is not None:
            self.states[row.state] = request.content(len(row.slots))
