"""The subject and the oracle: of this process, or found again in another one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from kvcheck.judge.options import Options
from kvcheck.play.verdicts import Level
from kvspec.interface import Implementation

Find: TypeAlias = Callable[[str], Implementation]


@dataclass(frozen=True, eq=False)
class Sides:
    """Subject, oracle and options. `find` finds both by the names of the options, which is how they
    get to another process."""

    subject: Implementation
    oracle: Implementation | None
    options: Options
    find: Find | None = None

    @property
    def hashes_matter(self) -> bool:
        """Whether the values of keys are compared."""
        return self.options.level is not Level.SAFETY

    @property
    def compared(self) -> Implementation | None:
        """Return the oracle, unless the level compares nothing or it is the subject itself."""
        return self.oracle if self.hashes_matter and not self.options.self_checks_only else None

    def __reduce__(self) -> tuple[Any, ...]:
        if self.find is None:
            raise TypeError("no function was given that finds implementations in another process")
        return _found, (self.options, self.oracle is not None, self.find)


@functools.lru_cache(maxsize=1)
def _found(options: Options, has_oracle: bool, find: Find) -> Sides:
    """Return the sides of this process, which creates them once."""
    return Sides(find(options.name), find(options.oracle) if has_oracle else None, options, find)
