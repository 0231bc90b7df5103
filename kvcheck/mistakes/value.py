"""The value: one mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class MistakeError(Exception):
    """A mistake can't be made: its text is wrong, or the code that it changes is another by now."""


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong.

    - `about`: what, in one sentence; `rules`: what it breaks, the rule that is really broken first.
    - `origin`: what it is made from, such as `kvref`. `kind`: which part is wrong: `manager`,
      `planner`, `steps`, `tier`: `make` answers an implementation; other kinds are what the tests
      that register them say.
    - `equivalent`: why no caller can see it; empty if one can.
    """

    id: str
    rules: tuple[str, ...]
    about: str
    origin: str
    kind: str
    make: Callable[[], Any] = field(repr=False, compare=False)
    equivalent: str = ""
