"""Directed checks that are no programs: values, errors, statistics, plans, batches …"""

from __future__ import annotations

from kvcheck.rules.examples.batches import BATCHES
from kvcheck.rules.examples.configuration import CONFIGURATION
from kvcheck.rules.examples.copies import COPIES
from kvcheck.rules.examples.edges import EDGES
from kvcheck.rules.examples.example import Example, example_violation
from kvcheck.rules.examples.hashing import HASHING
from kvcheck.rules.examples.liveness import LIVENESS
from kvcheck.rules.examples.plan_groups import PLAN_GROUPS
from kvcheck.rules.examples.plan_layout import PLAN_LAYOUT
from kvcheck.rules.examples.plan_memory import PLAN_MEMORY
from kvcheck.rules.examples.policies import POLICIES
from kvcheck.rules.examples.random_plans import NAME, plan_of_name
from kvcheck.rules.examples.requests import REQUESTS
from kvcheck.rules.examples.statistics import STATISTICS

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
