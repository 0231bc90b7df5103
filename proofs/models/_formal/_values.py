"""Values and moves as the checker writes them, so that states of kvref can be told apart.

A dict with names is a record, a dict with tuples a function, a tuple a sequence. The text of a
value is its identity: two states are equal exactly when their texts are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def text_of(value: Any) -> str:
    """Return the value in TLA+ as the checker prints it: fields and arguments in order."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, tuple):
        return f"<<{', '.join(map(text_of, value))}>>"
    if isinstance(value, frozenset):
        return f"{{{', '.join(map(text_of, sorted(value)))}}}"
    if not isinstance(value, Mapping):
        return str(value)
    if all(isinstance(key, str) for key in value) and value:
        fields = (f"{name} |-> {text_of(value[name])}" for name in sorted(value))
        return f"[{', '.join(fields)}]"
    pairs = [f"{text_of(key)} :> {text_of(value[key])}" for key in sorted(value)]
    return f"({' @@ '.join(pairs)})" if pairs else "<<>>"


@dataclass(frozen=True)
class Move:
    """An action of a model with its arguments."""

    action: str
    arguments: tuple[Any, ...] = ()

    @property
    def call(self) -> str:
        """The move in TLA+."""
        if not self.arguments:
            return self.action
        return f"{self.action}({', '.join(map(text_of, self.arguments))})"

    @property
    def label(self) -> str:
        """The name that the checker writes to each edge."""
        words = [_word(argument) for argument in self.arguments]
        return "_".join([self.action, *words])


def _word(argument: Any) -> str:
    if isinstance(argument, frozenset):
        argument = tuple(sorted(argument))
    return "x".join(["", *map(str, argument)]) if isinstance(argument, tuple) else str(argument)
