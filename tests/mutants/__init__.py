"""Mutants of the reference: one small mistake each, most of them neighbours of real bugs.

Each is an implementation that can be named on the command line:

    kvspec check tests.mutants:HandsOutBackwards
"""

from __future__ import annotations

from collections.abc import Callable

from kvspec.interface import Implementation


def __getattr__(name: str) -> Callable[[], Implementation]:
    """The factory of the mutant of this name."""
    if name[:1].isupper():  # not a module of this package
        from tests.mutants.registry import find

        try:
            return find(name).make
        except KeyError:
            pass
    raise AttributeError(f"no mutant is called {name}")
