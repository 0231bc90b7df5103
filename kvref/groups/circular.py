"""Circular buffers: one block per request, written over and over (KV-CIRC-*)."""

from __future__ import annotations

from collections.abc import Sequence

from kvref.groups.base import Demand, Group


class CircularBufferGroup(Group):
    """One block from a request's first allocation to its end."""

    covers_sequence = False
    is_cacheable = False

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        """Return 1 unless the request already has its block (KV-CIRC-1)."""
        return 0 if self.blocks_of(request_id) else 1

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        """Take nothing: there are neither hits nor an entry (KV-CIRC-2)."""

    def allocate_external(self, request_id: str, demand: Demand) -> None:
        """Take the ring with the blocks of other groups, if the request lacks it (KV-CIRC-2)."""
        self.extend(request_id, 1)

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        """Take the one block, if the request lacks it (KV-CIRC-2)."""
        return self.extend(request_id, 1)
