"""The committed lists of mutants that live: those that change nothing, and those not yet killed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LISTS = Path(__file__).with_name("explained.toml")


@dataclass(frozen=True)
class Explained:
    """Names of mutants, each with its reason.

    `equivalent`: nothing that a caller can observe differs. `alive`: something does, and no test
    sees it. `patterns`: regular expressions for changes that are equivalent wherever they stand.
    """

    equivalent: Mapping[str, str]
    alive: Mapping[str, str]
    patterns: tuple[str, ...] = ()

    def is_equivalent(self, name: str) -> bool:
        """Whether it is listed so, or its change is of such a kind."""
        _, _, change = name.split(":", 2)
        return name in self.equivalent or any(
            re.fullmatch(pattern, change.strip()) for pattern in self.patterns
        )

    def explains(self, name: str) -> bool:
        """Whether it may live."""
        return name in self.alive or self.is_equivalent(name)


def read(path: Path = LISTS) -> Explained:
    """The lists; a mutant that is listed twice raises ValueError."""
    groups = tomllib.loads(path.read_text(encoding="utf-8"))
    lists: dict[str, dict[str, str]] = {"equivalent": {}, "alive": {}}
    seen: set[str] = set()
    for kind, found in lists.items():
        for group in groups.get(kind, ()):
            for name in group.get("mutants", ()):
                if name in seen:
                    raise ValueError(f"{name} is listed twice in {path}")
                seen.add(name)
                found[name] = group["reason"]
    patterns = [p for group in groups.get("equivalent", ()) for p in group.get("patterns", ())]
    return Explained(lists["equivalent"], lists["alive"], tuple(patterns))
