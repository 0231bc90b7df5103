"""Directed checks that are no programs: values, errors, statistics, configurations, plans."""

from __future__ import annotations

from kvspec.conformance.examples.example import Example, example_violation
from kvspec.conformance.examples.hashing import HASHING
from kvspec.conformance.examples.requests import REQUESTS

EXAMPLES: tuple[Example, ...] = HASHING + REQUESTS
"""All of them, in the order in which they run."""

__all__ = ["EXAMPLES", "Example", "example_violation", "find_example"]


def find_example(name: str) -> Example:
    """The example of this name, for a test that was pasted from a report."""
    return {example.name: example for example in EXAMPLES}[name]
