"""A broken twin: one part of the reference with one rule broken, and who catches it."""

from __future__ import annotations

from dataclasses import dataclass

from kvref.groups.base import Group
from kvref.hybrid import HybridCoordinator
from kvref.implementation import ReferenceImplementation

ENUMERATION = "enumeration"
RULE_TESTS = "rule tests"
BOTH = (ENUMERATION, RULE_TESTS)


@dataclass(frozen=True)
class Twin:
    """`broken` takes the place of `real` (the class it derives from) in the reference.

    `caught_by`: the checks that see it, of `enumeration` and `rule tests`.
    """

    rule: str
    broken: type[Group] | type[HybridCoordinator]
    real: type[Group] | None
    caught_by: tuple[str, ...]

    @property
    def name(self) -> str:
        """For the names of tests."""
        return f"{self.rule}-{self.broken.__name__}"

    def implementation(self) -> ReferenceImplementation:
        """The reference with the broken part in place."""
        if self.real is None:
            assert issubclass(self.broken, HybridCoordinator)
            return ReferenceImplementation(hybrid_class=self.broken)
        assert issubclass(self.broken, Group)
        return ReferenceImplementation(group_classes=[(self.real, self.broken)])
