"""How a mutant is made: the reference with one part exchanged, and nothing else.

A part is a class or a function whose docstring begins with the rules it breaks and a colon.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any
from unittest import mock

from kvref import configuration, manager
from kvref.allocation import Allocator
from kvref.block_pool import BlockPool
from kvref.configuration import GROUP_TYPES, Parts
from kvref.coordinator import Coordinator
from kvref.events import EventLog
from kvref.groups.base import Group
from kvref.groups.mamba_align import AlignedMambaGroup
from kvref.hashing import Hasher
from kvref.hybrid import HybridCoordinator
from kvref.implementation import ReferenceImplementation
from kvref.manager import ReferenceManager
from kvref.residency import ResidencyLog
from kvref.stats import LookupCounter, ReferenceHitRateWindow
from kvspec.config import ManagerConfig
from kvspec.interface import HitRateWindow, Implementation, KVCacheManager
from kvspec.planning import Planner
from kvspec.request import Request, RequestInput
from tests.plans.broken import Patch, PatchedPlanner

REAL_GROUPS: tuple[type[Group], ...] = (
    *dict.fromkeys(group for _, group in GROUP_TYPES),
    AlignedMambaGroup,
)
HEAD = re.compile(r"(KV-[A-Z]+-\d+(?:, KV-[A-Z]+-\d+)*): ", re.DOTALL)


@dataclass(frozen=True)
class Mutant:
    """An implementation with one mistake. `broken`: the class or functions that are wrong."""

    name: str
    rules: tuple[str, ...]
    about: str
    make: Callable[[], Implementation]
    broken: tuple[Any, ...] = ()


class Mutated(ReferenceImplementation):
    """The reference from other parts; with `patches` in place while it makes something."""

    def __init__(
        self,
        parts: Parts | None = None,
        *,
        manager_class: type[ReferenceManager] = ReferenceManager,
        window_class: type[ReferenceHitRateWindow] = ReferenceHitRateWindow,
        patches: Sequence[Patch] = (),
        planner_patches: Sequence[Patch] = (),
    ) -> None:
        super().__init__()
        self.parts = parts or Parts()
        self.manager_class = manager_class
        self.window_class = window_class
        self.patches = patches
        self.planner_patches = planner_patches

    def create(
        self,
        config: ManagerConfig,
        *,
        check_invariants: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> KVCacheManager:
        """A manager of the class given, never audited: others do not check themselves either."""
        with in_place(self.patches):
            return self.manager_class(config, clock, self.parts)

    def make_request(self, manager: KVCacheManager, request: RequestInput) -> Request:
        """As the reference, with the patches in place."""
        with in_place(self.patches):
            return super().make_request(manager, request)

    def append_tokens(
        self, manager: KVCacheManager, request: Request, token_ids: Sequence[int]
    ) -> None:
        """As the reference, with the patches in place."""
        with in_place(self.patches):
            super().append_tokens(manager, request, token_ids)

    def make_hit_rate_window(self, max_requests: int = 1000) -> HitRateWindow:
        """A window of the class given."""
        return self.window_class(max_requests)

    @property
    def planner(self) -> Planner | None:
        """The planner with its patches."""
        if not self.planner_patches:
            return super().planner
        planner: Any = PatchedPlanner(*self.planner_patches)
        answer: Planner = planner
        return answer


@contextmanager
def in_place(patches: Sequence[Patch]) -> Iterator[None]:
    """Attributes replaced for a while; the reference beside the mutant never sees it."""
    with ExitStack() as stack:
        for owner, name, replacement in patches:
            stack.enter_context(mock.patch.object(owner, name, replacement))
        yield


def of(broken: type[Any]) -> Mutant:
    """The mutant in which this class takes the place of the one it derives from."""
    rules, about = head_of(broken)
    return Mutant(broken.__name__, rules, about, lambda: implementation_with(broken), (broken,))


def classes_in(module: str) -> tuple[Mutant, ...]:
    """The mutants of all classes of a module that say which rule they break, in their order."""
    return tuple(
        of(thing)
        for thing in vars(sys.modules[module]).values()
        if isinstance(thing, type)
        and thing.__module__ == module
        and HEAD.match(thing.__doc__ or "")
    )


def patched(function: Callable[..., Any], *places: tuple[ModuleType | type, str]) -> Mutant:
    """The mutant in which this function stands at these places while something is made."""
    rules, about = head_of(function)
    patches: list[Any] = [(owner, name, function) for owner, name in places]
    return Mutant(
        camel(function.__name__), rules, about, lambda: Mutated(patches=patches), (function,)
    )


def planning(function: Callable[..., Any], *places: tuple[ModuleType, str]) -> Mutant:
    """The mutant whose planner calls this function in place of the right one."""
    rules, about = head_of(function)
    patches = [(owner, name, function) for owner, name in places]
    return Mutant(
        camel(function.__name__),
        rules,
        about,
        lambda: Mutated(planner_patches=patches),
        (function,),
    )


def implementation_with(broken: type[Any]) -> Implementation:
    """The reference with this class in place of the one it derives from."""
    if issubclass(broken, ReferenceImplementation):
        made: Implementation = type(broken.__name__, (broken, Mutated), {})()
        return made
    if issubclass(broken, ReferenceManager):
        return Mutated(manager_class=broken)
    if issubclass(broken, ReferenceHitRateWindow):
        return Mutated(window_class=broken)
    if issubclass(broken, Hasher):
        hasher = broken
        return Mutated(
            patches=[
                (manager, "hasher_of", lambda c: hasher(c.hash_function, c.hash_seed)),
            ]
        )
    if issubclass(broken, Group):
        return Mutated(Parts(groups=replaced_groups(broken)))
    if issubclass(broken, Coordinator) and not issubclass(broken, HybridCoordinator):
        return Mutated(patches=[(manager, "build_coordinator", with_mixin(broken))])
    for part, real in PARTS:
        if issubclass(broken, real):
            changed: Any = {part: broken}
            return Mutated(replace(Parts(), **changed))
    raise TypeError(f"{broken.__name__} takes the place of no part")


PARTS: tuple[tuple[str, type[Any]], ...] = (
    ("pool", BlockPool),
    ("hybrid", HybridCoordinator),
    ("allocator", Allocator),
    ("events", EventLog),
    ("residency", ResidencyLog),
    ("lookups", LookupCounter),
)


def replaced_groups(broken: type[Group]) -> tuple[tuple[type[Group], type[Group]], ...]:
    """For a class derived from one type of group, that one; else it is mixed into all types."""
    for base in broken.__mro__:
        if base in REAL_GROUPS:
            return ((base, broken),)
    return tuple((real, _mixed(broken, real)) for real in REAL_GROUPS)


def _mixed(broken: type[Group], real: type[Group]) -> type[Group]:
    mixed: type[Group] = type(real.__name__, (broken, real), {})
    return mixed


def with_mixin(broken: type[Coordinator]) -> Callable[..., Coordinator]:
    """Builds the coordinator that is right, with the methods of `broken` on top."""

    def build(*arguments: Any) -> Coordinator:
        made = configuration.build_coordinator(*arguments)
        real = type(made)
        made.__class__ = type(real.__name__, (broken, real), {})
        return made

    return build


def head_of(thing: Any) -> tuple[tuple[str, ...], str]:
    """The rules that a docstring begins with, and what follows their colon."""
    text = " ".join((thing.__doc__ or "").split())
    found = HEAD.match(text)
    if found is None:
        raise ValueError(f"{thing.__name__} says no rule")
    return tuple(found.group(1).split(", ")), text[found.end() :]


def camel(name: str) -> str:
    """`salt_in_every_block` -> `SaltInEveryBlock`."""
    return "".join(part.capitalize() for part in name.split("_"))
