"""All mutants, and those that nobody could tell from the reference, with the reason why."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.mutants import (
    admission,
    attention,
    configs,
    errors,
    events,
    from_scenarios,
    hashes,
    lists,
    lookups,
    partial,
    plan_sizes,
    planning,
    pool,
    release,
    statistics,
    steps,
    twins,
    whole,
)
from tests.mutants.make import Mutant

MUTANTS: tuple[Mutant, ...] = (
    *pool.MUTANTS,
    *lists.MUTANTS,
    *attention.MUTANTS,
    *lookups.MUTANTS,
    *admission.MUTANTS,
    *release.MUTANTS,
    *hashes.MUTANTS,
    *events.MUTANTS,
    *statistics.MUTANTS,
    *partial.MUTANTS,
    *errors.MUTANTS,
    *configs.MUTANTS,
    *plan_sizes.MUTANTS,
    *planning.MUTANTS,
    *from_scenarios.MUTANTS,
    *twins.MUTANTS,
    *steps.MUTANTS,
    *whole.MUTANTS,
)

EQUIVALENT: Mapping[str, str] = MappingProxyType(
    {
        "WaitsWithOneBlockTooFew": "fewer than num_blocks blocks are ever free, so a need of"
        " num_blocks is refused as well; the call that answers a need takes no hits.",
    }
)
"""Name -> why no caller can see the difference."""


def find(name: str) -> Mutant:
    """The mutant of this name; KeyError for none."""
    return {mutant.name: mutant for mutant in MUTANTS}[name]
