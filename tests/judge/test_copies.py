"""The examples about copies find copies that are wrong (KV-MGR-20)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcheck.rules.directed import find_example
from kvcheck.rules.example import example_violation
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import KVCacheManager
from kvspec.policy import Policy
from kvspec.snapshot import Snapshot


class IsTheOriginal(ReferenceImplementation):
    """A clone that is no copy."""

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        return manager


class ForgetsTheOrder(ReferenceImplementation):
    """Free blocks come back in the order of their ids."""

    def clone(self, manager: KVCacheManager) -> KVCacheManager:
        return self.restore(manager.config, manager.snapshot())

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        ordered = tuple(sorted(snapshot.free_queue))
        return super().restore(config, replace(snapshot, free_queue=ordered))


class RestoresNothing(ReferenceImplementation):
    """A method that is not there."""

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        return self.create(config).restore(snapshot)  # type: ignore[attr-defined, no-any-return]  # the point


class TakesAnything(ReferenceImplementation):
    """What is no state is a fresh manager."""

    def restore(self, config: ManagerConfig, snapshot: Any) -> KVCacheManager:
        try:
            return super().restore(config, snapshot)
        except Exception:  # the point
            return self.create(config)


def broken(twin: ReferenceImplementation) -> list[bool]:
    """For each example whether it finds the twin."""
    return [
        example_violation(find_example(f"KV-MGR-20: {name}"), twin, Policy()) is not None
        for name in (
            "a clone goes on as the original does, which sees nothing of it",
            "a restored manager goes on as the original does",
            "what breaks an invariant is not restored",
        )
    ]


@pytest.mark.parametrize(
    ("twin", "found"),
    [
        (ReferenceImplementation(), [False, False, False]),
        (IsTheOriginal(), [True, False, False]),
        (ForgetsTheOrder(), [True, True, True]),
        (RestoresNothing(), [False, True, True]),
        (TakesAnything(), [False, False, True]),
    ],
)
def test_each_wrong_copy_is_found(twin: ReferenceImplementation, found: list[bool]) -> None:
    assert broken(twin) == found
