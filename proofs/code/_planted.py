"""Mistakes on purpose in the code that a proof runs: a line of a method is another one.

The rules that each breaks stand beside it: `python spec/table.py RULE` counts a proof as one of a
rule only if it finds a mistake of that rule.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch


@dataclass(frozen=True)
class Planted:
    """In `owner.name` the text `old`, which stands there once, is `new`."""

    rule: str
    owner: type | ModuleType
    name: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.new or 'without'} for {self.old}"

    @contextmanager
    def done(self) -> Iterator[None]:
        """The mistake is made until the end."""
        with patch.object(self.owner, self.name, self._changed()):
            yield

    def _changed(self) -> Any:
        code = inspect.unwrap(getattr(self.owner, self.name))
        source = textwrap.dedent(inspect.getsource(code))
        if source.count(self.old) != 1:
            raise ValueError(f"{self.name} has not once {self.old!r}")
        made: dict[str, Callable[..., object]] = {}
        text = f"from __future__ import annotations\n{source.replace(self.old, self.new)}"
        exec(compile(text, f"<{self}>", "exec"), code.__globals__, made)
        return made[self.name]
