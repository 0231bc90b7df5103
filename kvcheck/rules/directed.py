"""The directed suite: examples of every rule in the notation, and those that it cannot say."""

from __future__ import annotations

from itertools import chain

from kvcheck.rules import custom_specs, liveness, managers, policies, values
from kvcheck.rules.example import Example, example_violation, examples_of
from kvcheck.rules.notation.shipped import examples_from, shipped_stories
from kvcheck.rules.random_plans import NAME, plan_of_name

CHAPTERS = (values, policies, custom_specs, liveness, managers)
"""In the order in which they run."""

EXAMPLES: tuple[Example, ...] = (
    *examples_from(shipped_stories()),
    *chain.from_iterable(map(examples_of, CHAPTERS)),
)

__all__ = ["EXAMPLES", "Example", "example_violation", "find_example"]


def find_example(name: str) -> Example:
    """Return the example of this name, for a test that was pasted from a report."""
    if name.startswith(NAME):
        return plan_of_name(name)
    return {example.name: example for example in EXAMPLES}[name]
