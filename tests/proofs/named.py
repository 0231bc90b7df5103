"""The functions that each proof is about, as proofs/README.md names them: `named.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

_DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

EQUIVALENT: Mapping[str, Mapping[str, str]] = MappingProxyType(_DATA.pop("equivalent"))
"""By function the expressions whose off-by-ones change no answer, each with the reason."""
NAMED: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        proof: [f"{module}:{name}" for module, names in modules.items() for name in names]
        for proof, modules in _DATA.items()
    }
)
