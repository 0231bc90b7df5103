"""The reference with something else about it, for tests of what uses an implementation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from examples.own_manager.final import MyImplementation, MyManager
from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvspec.audit import unwrapped
from kvspec.base import BaseRequest
from kvspec.config import ManagerConfig
from kvspec.interface import Capabilities, Feature, Implementation, KVCacheManager
from kvspec.snapshot import Snapshot


class Lacks(ReferenceImplementation):
    """kvref, which says that it does not offer some features."""

    def __init__(self, *features: Feature) -> None:
        super().__init__()
        self.lacking = frozenset(features)

    @property
    def capabilities(self) -> Capabilities:
        has = super().capabilities
        return replace(has, features=has.features - self.lacking)


class WithManager(ReferenceImplementation):
    """kvref with another class of manager, as good or bad as that is."""

    def __init__(self, manager_class: type[ReferenceManager]) -> None:
        super().__init__()
        self.manager_class = manager_class

    def create(self, config: ManagerConfig, **options: Any) -> KVCacheManager:
        return self.manager_class(config, options.get("clock"), self.pool_class)

    def restore(self, config: ManagerConfig, snapshot: Snapshot) -> KVCacheManager:
        manager = unwrapped(super().restore(config, snapshot))
        manager.__class__ = self.manager_class  # the state is that of the class it was made as
        return manager


class LeaksTheFirst(MyManager):
    """The first block of a request never comes back."""

    def free(self, request: BaseRequest) -> None:
        self.tables.get(request.request_id, [])[:1] = []
        super().free(request)


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
