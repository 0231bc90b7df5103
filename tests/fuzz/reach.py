"""What `dir()` shows on the objects of one build, and on what they show in turn."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from kvfast._implementation import FastImplementation
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec, SlidingWindowSpec

DEPTH = 4
LEFT_OUT = frozenset({"__init_subclass__", "__subclasshook__", "__abstractmethods__", "_abc_impl"})


@dataclass(frozen=True)
class Reached:
    """An attribute: from which kind of object, on which path, and how many arguments it may get."""

    root: str
    path: str
    is_callable: bool
    arities: tuple[int, ...] = (0, 1, 1, 2, 3)


def reached(build: str) -> tuple[Reached, ...]:
    """Every attribute of managers, requests and batches, and of the core's objects in them."""
    found: list[Reached] = []
    for root, start in _roots(build).items():
        seen = {id(start)}
        left = deque([("", start)])
        while left:
            path, owner = left.popleft()
            for name in dir(owner):
                value = getattr(owner, name, None)
                if name in LEFT_OUT:
                    continue
                found.append(Reached(root, f"{path}.{name}", callable(value), _arities(name)))
                mine = type(value).__module__.startswith("kvfast._co")
                if mine and id(value) not in seen and path.count(".") < DEPTH:
                    seen.add(id(value))
                    left.append((f"{path}.{name}", value))
            new = f"{path}.__class__.__new__"
            found.append(Reached(root, new, True, (1, 1, 2)))
    return tuple(found)


def _arities(name: str) -> tuple[int, ...]:
    """Numbers of arguments worth trying."""
    return (0, 0, 1, 2) if name.startswith("__") else (0, 1, 1, 2, 2, 3, 4)


def _roots(build: str) -> dict[str, Any]:
    implementation: Any = FastImplementation(build)
    specs = (
        FullAttentionSpec(4, 1, 8, "float16"),
        SlidingWindowSpec(4, 1, 8, "float16", sliding_window=8),
    )
    groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(specs))
    config = ManagerConfig(
        KVCacheConfig(9, groups), 64, enable_events=True, residency_sample_rate=1.0
    )
    manager = implementation.create(config, check_invariants=False)
    request = implementation.make_request(manager, RequestInput("a", [1] * 9))
    return {"m": manager, "r": request, "b": implementation.batched(manager)}
