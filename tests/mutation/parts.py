"""Parts that are mutated separately, and the quick tests that must see it: `parts.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """Modules by pattern, and the tests that are shown their mutants."""

    about: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    only: str = ""


_TOLD = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

PARTS: Mapping[str, Part] = {
    name: Part(
        told["about"],
        tuple(told["packages"]),
        tuple(told["modules"]),
        tuple(told["tests"]),
        told["only"],
    )
    for name, told in _TOLD.items()
}
NEVER = ("*/mistakes/*",)
