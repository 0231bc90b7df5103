"""Managers of the reference that copying, or reusing, could go wrong with."""

from __future__ import annotations

from typing import Any

from kvref.manager import ReferenceManager
from kvspec.errors import KVSpecError
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
