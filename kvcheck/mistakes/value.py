"""The value: one mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class MistakeError(Exception):
    """A mistake can't be made: its text is wrong, or the code that it changes is another by now."""


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    - `about`: what is wrong, in one sentence; `rules`: the rules it breaks, the one really broken
      first.
    - `origin`: the package it is made from, such as `kvref`. `kind`: the part that is wrong:
      `manager`, `planner`, `steps`, `tier`: `make` returns an implementation; tests define other
      kinds.
    - `equivalent`: why no caller can see it; empty if one can.
    """

    id: str
    rules: tuple[str, ...]
    about: str
    origin: str
    kind: str
    make: Callable[[], Any] = field(repr=False, compare=False)
    equivalent: str = ""
