"""Differences that a shadow is to expect: where vLLM is known to be wrong (docs/FINDINGS.md)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvspec.errors import InvalidArgumentError


@dataclass(frozen=True)
class Expected:
    """A difference whose text begins with the name of this call and contains `says`, a pattern."""

    call: str
    says: str
    reason: str

    def __post_init__(self) -> None:
        for field in ("call", "says", "reason"):
            value = getattr(self, field)
            if not isinstance(value, str) or not value:
                raise InvalidArgumentError(field, value, "a non-empty text")
        try:
            re.compile(self.says)
        except re.error as error:
            raise InvalidArgumentError("says", self.says, f"a pattern: {error}") from error

    def covers(self, said: str) -> bool:
        return said.startswith(self.call) and re.search(self.says, said) is not None


def read_expected(path: Path) -> tuple[Expected, ...]:
    """Read the tables `[[expected]]` of a TOML file. Raises InvalidArgumentError, and OSError."""
    try:
        found = tomllib.loads(path.read_text())
        return tuple(Expected(**each) for each in found.pop("expected", ()))
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise InvalidArgumentError(
            "expected", str(path), f"tables [[expected]]: {error}"
        ) from error


def reason_for(said: str, expected: Iterable[Expected]) -> str | None:
    """Why this difference is known; None for one that is not."""
    return next((each.reason for each in expected if each.covers(said)), None)
