"""Directed checks that are no programs: values, errors, statistics, plans, batches …"""

from __future__ import annotations

from kvspec.conformance.examples.batches import BATCHES
from kvspec.conformance.examples.configuration import CONFIGURATION
from kvspec.conformance.examples.copies import COPIES
from kvspec.conformance.examples.edges import EDGES
from kvspec.conformance.examples.example import Example, example_violation
from kvspec.conformance.examples.hashing import HASHING
from kvspec.conformance.examples.liveness import LIVENESS
from kvspec.conformance.examples.plan_groups import PLAN_GROUPS
from kvspec.conformance.examples.plan_layout import PLAN_LAYOUT
from kvspec.conformance.examples.plan_memory import PLAN_MEMORY
from kvspec.conformance.examples.policies import POLICIES
from kvspec.conformance.examples.random_plans import NAME, plan_of_name
from kvspec.conformance.examples.requests import REQUESTS
from kvspec.conformance.examples.statistics import STATISTICS

EXAMPLES: tuple[Example, ...] = (
    *HASHING, *REQUESTS, *CONFIGURATION, *STATISTICS, *POLICIES,
    *PLAN_GROUPS, *PLAN_LAYOUT, *PLAN_MEMORY, *LIVENESS, *EDGES, *BATCHES, *COPIES,
)  # fmt: skip
"""All of them, in the order in which they run."""

__all__ = ["EXAMPLES", "Example", "example_violation", "find_example"]


def find_example(name: str) -> Example:
    """The example of this name, for a test that was pasted from a report."""
    if name.startswith(NAME):
        return plan_of_name(name)
    return {example.name: example for example in EXAMPLES}[name]
