"""The reference manager: obvious, slow, and checked by its invariants after every operation."""

from __future__ import annotations

from kvref.implementation import ReferenceImplementation

__all__ = ["ReferenceImplementation", "implementation"]


def implementation() -> ReferenceImplementation:
    """Return the implementation; `kvspec` finds this factory under the name `kvref`."""
    return ReferenceImplementation()
