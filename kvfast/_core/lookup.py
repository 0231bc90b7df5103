"""Look-ups: the longest hit of every type of group, and the one that all groups agree on.

The result is kept in flat arrays until the next look-up: `hits[g * stride + i]` is the block that
group g has for its block i, `hit_blocks[g]` the number of its blocks. An attention group (groups
with equal specs, `a` below) is looked up in all its members at once: a block counts only where
every member has it.
"""

from __future__ import annotations

from . import kinds, objects
from .arrays import zeroed
from .kinds import never
from .pool import BlockPool
from .request import FastRequest
from .shape import Shape


class Lookup:
    """Finds hits in one pool. The methods trust their arguments."""

    def __init__(self, shape: Shape, pool: BlockPool) -> None:
        self.shape = shape
        self.pool = pool
        self.stride = 0
        self.hits = zeroed("i", 0)
        self.hit_blocks = zeroed("q", shape.num_groups)
        self.longest_tokens = 0
        self.found_blocks = zeroed("q", shape.num_attention)
        self.is_verified = zeroed("i", shape.num_attention)

    def make_room(self, num_blocks: int) -> None:
        """Make room for `num_blocks` blocks in every group; earlier content is lost."""
        if num_blocks > self.stride:
            stride = max(64, 2 * num_blocks)
            self.hits = zeroed("i", stride * self.shape.num_groups)
            self.stride = stride

    def clear(self) -> None:
        """Set no hit in any group."""
        for g in range(self.shape.num_groups):
            self.hit_blocks[g] = 0

    # One attention group.

    def find_in_all(self, a: int, request: FastRequest, index: int) -> bool:
        """Note the block of every member for block `index`; False where one has none."""
        for m in range(self.shape.first_member[a], self.shape.first_member[a + 1]):
            g = self.shape.members[m]
            number = (index + 1) * self.shape.hashes_per_block[g] - 1
            entry = self.pool.keys.find(request, number, g)
            if entry == 0:
                return False
            self.hits[g * self.stride + index] = self.pool.block_of(entry)
        return True

    def put_null(self, a: int, end: int) -> None:
        """Set the first `end` blocks of every member to null."""
        for m in range(self.shape.first_member[a], self.shape.first_member[a + 1]):
            base = self.shape.members[m] * self.stride
            for i in range(end):
                self.hits[base + i] = 0

    def look_up(self, a: int, request: FastRequest, tokens: int, drop: bool, per: int) -> int:
        """Find the longest hit within `tokens`, in blocks, a multiple of `per` (KV-GRP-*)."""
        g = self.shape.members[self.shape.first_member[a]]
        limit = tokens // self.shape.block_size[g]
        kind = self.shape.kind[g]
        if kind == kinds.FULL or kind == kinds.RSWA:
            return self.look_up_full(a, request, limit, drop, per)
        if kind == kinds.SLIDING:
            return self.look_up_sliding(a, request, limit, drop, per)
        if kind == kinds.CHUNKED:
            return self.look_up_chunked(a, request, tokens, limit)
        if kind == kinds.MAMBA or kind == kinds.ALIGNED:
            return self.look_up_mamba(a, request, limit, per)
        if kind == kinds.CROSS or kind == kinds.ENCODER_ONLY or kind == kinds.CIRCULAR:
            return 0
        if kind == kinds.REPLAYED:
            return 0
        return never(kind)

    def run_from(self, a: int, request: FastRequest, first: int, limit: int) -> int:
        """Return the end of the run of hits that begins at block `first`."""
        m = self.shape.first_member[a]
        if self.shape.first_member[a + 1] == m + 1 and not self.pool.has_partial:
            g = self.shape.members[m]
            per = self.shape.hashes_per_block[g]
            base = g * self.stride
            hits = objects.ints_of(self.hits)
            return self.pool.keys.find_run(request, per, g, first, limit, hits, base)
        end = first
        while end < limit and self.find_in_all(a, request, end):
            end += 1
        return end

    def look_up_full(self, a: int, request: FastRequest, limit: int, drop: bool, per: int) -> int:
        """Find a run from block 0, drop a block, cut to alignment (KV-FULL-2 … KV-FULL-4)."""
        end = self.run_from(a, request, 0, limit)
        if drop and end > 0:
            end -= 1
        return end - end % per

    def look_up_sliding(
        self, a: int, request: FastRequest, limit: int, drop: bool, per: int
    ) -> int:
        """Find the rightmost run that fills a window, else a short one from block 0 (KV-SW-2 …).

        It searches from right to left; a missing block rules out every run that would contain it,
        so the next run ends before it, and no block is looked at twice.
        """
        g = self.shape.members[self.shape.first_member[a]]
        dropped = 1 if drop else 0
        need = max(self.shape.run_length(g, drop), 1)
        end = limit
        while end >= need:
            if (end - dropped) % per:
                end -= (end - dropped) % per
                continue
            start = end
            while start > end - need and self.find_in_all(a, request, start - 1):
                start -= 1
            if start == end - need:
                self.put_null(a, start)
                return end - dropped
            end = start - 1
        return self.short_run(self.run_from(a, request, 0, limit), dropped, per)

    def short_run(self, length: int, dropped: int, per: int) -> int:
        """Return what remains of a run from block 0 after the drop, aligned (KV-SW-4, KV-SW-5)."""
        if length > 0:
            length -= (length - dropped) % per
        length -= length % per
        if dropped and length > 0:
            length -= 1
        return length - length % per

    def look_up_chunked(self, a: int, request: FastRequest, tokens: int, limit: int) -> int:
        """Look up null for earlier chunks, then a run (KV-CHUNK-2)."""
        g = self.shape.members[self.shape.first_member[a]]
        size, reach = self.shape.block_size[g], self.shape.reach[g]
        first = self.shape.skipped(g, tokens)
        end = self.run_from(a, request, first, limit)
        while end == first and first * size % reach > 0:  # it ends in the chunk before (KV-CHUNK-7)
            limit = first
            first = self.shape.skipped(g, limit * size)
            end = self.run_from(a, request, first, limit)
        if end == first and not self.shape.null_prefix_is_hit:
            return 0  # KV-POL-4
        self.put_null(a, first)
        return end

    def look_up_mamba(self, a: int, request: FastRequest, limit: int, per: int) -> int:
        """Find the rightmost aligned state, with null before it (KV-MAMBA-3)."""
        end = limit - limit % per
        while end > 0:
            if self.find_in_all(a, request, end - 1):
                self.put_null(a, end - 1)
                return end
            end -= per
        return 0

    # All of them.

    def spread(self, a: int, num_blocks: int) -> None:
        """Copy an attention group's result to every member."""
        for m in range(self.shape.first_member[a], self.shape.first_member[a + 1]):
            self.hit_blocks[self.shape.members[m]] = num_blocks

    def block_size_of(self, a: int) -> int:
        """Return the tokens per block of an attention group."""
        return self.shape.block_size[self.shape.members[self.shape.first_member[a]]]

    def drops(self, a: int) -> bool:
        """Return whether hits of an attention group drop a block."""
        return self.shape.drops[self.shape.members[self.shape.first_member[a]]] != 0

    def is_full(self, a: int) -> bool:
        """Return whether an attention group attends to everything."""
        return self.shape.is_full(self.shape.members[self.shape.first_member[a]])

    def is_mamba(self, a: int) -> bool:
        """Return whether an attention group holds states."""
        return self.shape.is_mamba(self.shape.members[self.shape.first_member[a]])

    def longest_hit(self, request: FastRequest, max_tokens: int) -> int:
        """Return the longest hit in tokens; its blocks are in `hits` (KV-COORD-2, KV-COORD-5)."""
        self.longest_tokens = 0
        if self.shape.num_groups == 1:
            size = self.shape.block_size[0]
            self.make_room(max_tokens // size + 1)
            num_blocks = self.look_up(0, request, max_tokens, self.drops(0), 1)
            self.hit_blocks[0] = num_blocks
            return num_blocks * size
        return self.agreed_hit(request, max_tokens)

    def agreed_hit(self, request: FastRequest, max_tokens: int) -> int:
        """Round after round until no attention group shortens the length (KV-COORD-5)."""
        num = self.shape.num_attention
        self.clear()  # groups outside prefix caching have no hits (KV-COORD-14)
        for a in range(num):
            self.is_verified[a] = 0
            self.found_blocks[a] = -1
            self.make_room(max_tokens // self.block_size_of(a) + 1)
        one_round = num == 2 and self.is_full(0)  # KV-COORD-10
        length = max_tokens
        while True:
            before = length
            for a in range(num):
                length = self.ask(a, request, length, max_tokens)
            if length >= before or one_round:
                break
        for a in range(num):
            num_blocks = self.found_blocks[a]
            if self.is_full(a):  # KV-COORD-11
                num_blocks = min(num_blocks, length // self.block_size_of(a))
            self.spread(a, num_blocks)
        return length

    def ask(self, a: int, request: FastRequest, length: int, max_tokens: int) -> int:
        """Return the length after looking up one attention group (KV-COORD-6 … KV-COORD-8)."""
        size = self.block_size_of(a)
        if self.is_full(a) and self.found_blocks[a] >= 0:
            return length - length % size
        is_unverified = self.drops(a) and not self.is_verified[a]
        drop = is_unverified and not self.is_mamba(a)
        within = length
        if drop:
            within = min(length + size, self.farthest(a, request, max_tokens))
        num_blocks = self.look_up(a, request, within, drop, self.shape.alignment // size)
        answer = num_blocks * size
        if is_unverified:
            self.is_verified[a] = 1
        elif answer < length:
            for b in range(self.shape.num_attention):
                self.is_verified[b] = 0
        self.found_blocks[a] = num_blocks
        self.longest_tokens = max(self.longest_tokens, answer)
        return answer

    def farthest(self, a: int, request: FastRequest, max_tokens: int) -> int:
        """Return how far an attention group looks for the block it drops (KV-COORD-7, KV-POL-19).

        This is at most one block beyond any hit: there is room for that.
        """
        if not self.shape.looks_beyond:
            return max_tokens
        g = self.shape.members[self.shape.first_member[a]]
        return request.num_hashes * (self.shape.block_size[g] // self.shape.hashes_per_block[g])

    def hits_per_group(self, request: FastRequest, max_tokens: int) -> None:
        """Find every attention group's own longest hit, not reconciled (KV-COORD-9)."""
        self.clear()
        for a in range(self.shape.num_attention):
            self.make_room(max_tokens // self.block_size_of(a) + 1)
        for a in range(self.shape.num_attention):
            per = self.shape.alignment // self.block_size_of(a)
            num_blocks = self.look_up(a, request, max_tokens, self.drops(a), per)
            self.spread(a, num_blocks)
