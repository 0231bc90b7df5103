"""The manager of examples/own_manager, as a small engine has it, and others made from it.

One full-attention group, prefix caching, and no more. Nothing of its state is shown but block lists
and the number of free blocks.
"""

from __future__ import annotations

from typing import cast

from examples.own_manager.final import MyImplementation, MyManager
from kvspec.interface import Feature, Implementation


def minimal(
    manager_class: type[MyManager] = MyManager, features: frozenset[Feature] = frozenset()
) -> Implementation:
    """An implementation with this class of manager; `features`: what it promises besides."""
    named = {
        "name": "minimal",
        "manager_class": manager_class,
        "features": MyImplementation.features | features,
    }
    return cast(Implementation, type("Minimal", (MyImplementation,), named)())
