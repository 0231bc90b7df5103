"""Rules that no caller of an implementation can see broken, each with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

UNOBSERVABLE: Mapping[str, str] = MappingProxyType(
    {"KV-POL-1": "A profile is a file that kvspec reads; an implementation never sees it."}
)
"""Rule -> why a run cannot check it. Every other rule has a directed program or an example."""
