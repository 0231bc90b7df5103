"""The configurations that lock step tries (`setups.toml`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from examples.vllm.engine import DENSE, TABLES, Setup, layer
from kvfast.engines.vllm.versions import release


def setups() -> Mapping[str, Setup]:
    """Return the configurations to try, by name."""
    return MappingProxyType({n: one for n, one in every_setup().items() if not is_refused(one)})


def every_setup() -> dict[str, Setup]:
    """Those, and what kvfast leaves to vLLM's manager."""
    found = dict[str, Setup]()
    for since, named in TABLES["since"].items():
        for name, members in named.items() if int(since) <= release() else ():
            found[name] = setup_of(members, found)
    return found


def setup_of(members: dict[str, Any], others: Mapping[str, Setup]) -> Setup:
    """Make a setup of these members and of those that it does not change in another one."""
    own = dict(members)
    like = others[own.pop("like")] if "like" in own else Setup((), 0, 0, 0)
    if "specs" in own:
        own["specs"] = tuple(_spec(**TABLES["specs"][name]) for name in own["specs"])
    return replace(like, **own)


def _spec(kind: str, block_size: int, **members: Any) -> Any:
    if "dtype" in members:
        members["dtype"] = getattr(torch, members["dtype"])
    return layer(kind, block_size, **members)


def is_refused(setup: Setup) -> bool:
    """Return whether kvfast leaves it to vLLM's manager in 0.26 to 0.32."""
    if not 25 < release() < 33:
        return False
    keeps_boundaries = bool(setup.retention) or (release() > 29 and setup.retention != DENSE)
    return (
        (setup.enable_caching and any(type(s).__name__ == "MambaSpec" for s in setup.specs))
        or (setup.use_eagle and len(setup.specs) > 1 and keeps_boundaries)
        or (release() < 32 and any(s.block_size != setup.hash_block_size for s in setup.specs))
    )
