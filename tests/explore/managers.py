"""Managers of the reference that copying, or reusing, could go wrong with."""

from __future__ import annotations

from typing import Any

import kvref
from kvcheck.explore.bounds import Configuration
from kvcheck.explore.configurations import configurations
from kvcheck.explore.search import Exploration, Pair, explore
from kvref.manager import ReferenceManager
from kvspec.errors import KVSpecError
from kvspec.interface import Implementation
from kvspec.request import Request


class NeverPickled(ReferenceManager):
    """Holds something that pickle cannot copy, such as a connection."""

    def __getstate__(self) -> Any:
        raise TypeError("cannot pickle a connection")


class IsNoCopy(ReferenceManager):
    """Is pickled as a name by which it is found again, such as the number of a handle."""

    def __reduce__(self) -> Any:
        KEPT.append(self)
        return kept, (len(KEPT) - 1,)


KEPT: list[ReferenceManager] = []
"""As a driver keeps what its handles stand for."""


def kept(handle: int) -> ReferenceManager:
    return KEPT[handle]


class RemembersErrors(ReferenceManager):
    """After an illegal call it refuses the next allocation, and no snapshot shows that."""

    is_offended = False

    def evict_blocks(self, block_ids: Any) -> None:
        try:
            super().evict_blocks(block_ids)
        except KVSpecError:
            self.is_offended = True
            raise

    def allocate_slots(self, request: Request, num_new_tokens: int, **how: Any) -> Any:
        if self.is_offended:
            self.is_offended = False
            return None
        return super().allocate_slots(request, num_new_tokens, **how)


def configuration(name: str) -> Configuration:
    return next(each for each in configurations() if each.name == name)


def explored(
    what: Configuration,
    subject: Implementation | None = None,
    *,
    oracle: Implementation | None = None,
    max_edges: int | None = None,
) -> Exploration:
    name = None if subject is None else "subject"
    pair = Pair(oracle or kvref.implementation(), subject, "kvref", name)
    return explore(Exploration(what), pair, max_edges=max_edges)
