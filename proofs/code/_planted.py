"""Mistakes on purpose in the code that a proof runs: a line of a method is another one.

Each is an off-by-one or as small. What is planted in both twins is made in each alone: a statement
about one twin and the rules fails whatever the other does. `python spec/table.py RULE` counts a
proof as one of a rule only if it finds a mistake of that rule.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

from proofs._z3 import Ledger, Statement, is_refuted

TWINS = ("kvref", "kvfast")

Change = tuple[type | ModuleType, str, str, str]
"""In `owner.name` the text `old`, which stands there once, is `new`: owner, name, old, new."""


class LineMissingError(ValueError):
    """The code has not once the line that a mistake changes."""


class Planted:
    """The rule that is broken, and a change in one twin, or one in each."""

    def __init__(self, rule: str, *changes: Change) -> None:
        self.rule = rule
        self.changes = changes

    def __str__(self) -> str:
        return f"{self.rule}: " + ", and ".join(
            f"{name}: {new or 'without'} for {old}" for _, name, old, new in self.changes
        )

    def each(self) -> Iterator[Planted]:
        """Yield each change alone."""
        yield from (Planted(self.rule, change) for change in self.changes)

    @property
    def twin(self) -> str:
        """The package of the first change."""
        owner = self.changes[0][0]
        name = owner.__name__ if isinstance(owner, ModuleType) else owner.__module__
        return name.partition(".")[0]

    @contextmanager
    def done(self) -> Iterator[None]:
        """Make the mistake while the context lasts."""
        with ExitStack() as stack:
            for owner, name, old, new in self.changes:
                stack.enter_context(patch.object(owner, name, changed(owner, name, old, new)))
            yield


def changed(owner: type | ModuleType, name: str, old: str, new: str) -> Any:
    """Return the function with `old`, which must occur once in its text, replaced by `new`."""
    code: Any = inspect.unwrap(getattr(owner, name))
    source = textwrap.dedent(inspect.getsource(code))
    if source.count(old) != 1:
        raise LineMissingError(f"{name} has not once {old!r}")
    made: dict[str, Callable[..., object]] = {}
    lines = textwrap.indent(f"{source.replace(old, new)}\nreturn {name}", "    ")
    text = f"from __future__ import annotations\ndef within(__class__):\n{lines}"  # of `super()`
    exec(compile(text, f"<{name}>", "exec"), code.__globals__, made)
    return made["within"](owner)


def check_planted(
    ledger: Ledger, planted: Iterable[tuple[Callable[[str], Iterable[Statement]], Planted]]
) -> None:
    """Check that each mistake breaks one of the statements about its twin."""
    for statements, mistake in planted:
        for each in mistake.each():
            try:
                with each.done():
                    is_seen = any(map(is_refuted, statements(each.twin)))
            except LineMissingError:  # the code is another one: nothing is shown
                is_seen = False
            ledger.agree(f"mistake: {each}", is_seen)
