"""Look-ups whose hits may end inside a block (KV-INSIDE-*).

The result is stored as that of other look-ups (see `lookup`): the last entry of a group may be a
block that the hit ends in. Lengths are in tokens here, since numbers of blocks are not precise
enough.
"""

from __future__ import annotations

from .arrays import zeroed
from .lookup import Lookup
from .pool import BlockPool
from .request import FastRequest
from .shape import Shape


class InsideLookup:
    """Finds hits that are multiples of the hash unit. The methods trust their arguments."""

    def __init__(self, shape: Shape, pool: BlockPool, lookup: Lookup, unit: int) -> None:
        self.shape = shape
        self.pool = pool
        self.lookup = lookup
        self.unit = unit
        self.found_tokens = zeroed("q", shape.num_attention)

    def find(self, a: int, request: FastRequest, number: int, index: int) -> bool:
        """Note the block of every member for hash `number` as block `index`; False for none."""
        for m in range(self.shape.first_member[a], self.shape.first_member[a + 1]):
            g = self.shape.members[m]
            entry = self.pool.keys.find(request, number, g)
            if entry == 0:
                return False
            self.lookup.hits[g * self.lookup.stride + index] = self.pool.block_of(entry)
        return True

    def first_of(self, a: int) -> int:
        """Return the group that represents an attention group."""
        return self.shape.members[self.shape.first_member[a]]

    def look_up(self, a: int, request: FastRequest, tokens: int, drop: bool) -> int:
        """Return the longest hit of at most `tokens` tokens, in tokens."""
        g = self.first_of(a)
        if self.shape.is_full(g):
            return self.look_up_full(a, request, tokens, drop)
        if self.shape.is_mamba(g):
            return self.look_up_states(a, request, tokens)
        return self.lookup.look_up(a, request, tokens, drop, 1) * self.shape.block_size[g]

    def look_up_full(self, a: int, request: FastRequest, tokens: int, drop: bool) -> int:
        """Find a run of whole blocks, then the farthest boundary inside the next."""
        g = self.first_of(a)
        size = self.shape.block_size[g]
        per = self.shape.hashes_per_block[g]
        end = self.lookup.run_from(a, request, 0, tokens // size)
        length = end * size
        number = min(min(tokens // self.unit, request.num_hashes), (end + 1) * per - 1)
        while number > end * per:
            if self.find(a, request, number - 1, end):
                length = number * self.unit
                break
            number -= 1
        if drop and length > 0:
            length -= self.unit
        return length

    def look_up_states(self, a: int, request: FastRequest, tokens: int) -> int:
        """Find the farthest state, with null before it."""
        per = self.shape.hashes_per_block[self.first_of(a)]
        number = min(tokens // self.unit, request.num_hashes)
        while number > 0:
            index = (number - 1) // per
            if self.find(a, request, number - 1, index):
                self.lookup.put_null(a, index)
                return number * self.unit
            number -= 1
        return 0

    def longest_hit(self, request: FastRequest, max_tokens: int) -> int:
        """Return the longest hit on which all agree, in tokens; its blocks are in `hits`."""
        lookup = self.lookup
        num = self.shape.num_attention
        lookup.longest_tokens = 0
        for a in range(num):
            lookup.is_verified[a] = 0
            self.found_tokens[a] = -1
            lookup.make_room(max_tokens // self.shape.block_size[self.first_of(a)] + 2)
        one_round = num == 2 and lookup.is_full(0)  # KV-COORD-10
        length = max_tokens
        while True:
            before = length
            for a in range(num):
                length = self.ask(a, request, length, max_tokens)
            if length >= before or one_round:
                break
        for a in range(num):
            tokens = self.found_tokens[a]
            if lookup.is_full(a):  # KV-COORD-11
                tokens = min(tokens, length)
            self.spread(a, tokens)
        return length

    def spread(self, a: int, tokens: int) -> None:
        """Copy an attention group's result to every member."""
        self.lookup.spread(a, self.shape.cdiv(tokens, self.shape.block_size[self.first_of(a)]))

    def ask(self, a: int, request: FastRequest, length: int, max_tokens: int) -> int:
        """Return the length after looking up one attention group (KV-COORD-6 … KV-COORD-8)."""
        if self.lookup.is_full(a) and self.found_tokens[a] >= 0:
            return min(length, self.found_tokens[a])
        is_unverified = self.lookup.drops(a) and not self.lookup.is_verified[a]
        drop = is_unverified and not self.lookup.is_mamba(a)
        within = length
        if drop:
            within = min(length + self.margin(a), self.lookup.farthest(a, request, max_tokens))
        answer = self.look_up(a, request, within, drop)
        if is_unverified:
            self.lookup.is_verified[a] = 1
        elif answer < length:
            for b in range(self.shape.num_attention):
                self.lookup.is_verified[b] = 0
        self.found_tokens[a] = answer
        self.lookup.longest_tokens = max(self.lookup.longest_tokens, answer)
        return answer

    def margin(self, a: int) -> int:
        """Return how much further a group looks for what it drops."""
        if self.lookup.is_full(a):
            return self.unit
        return self.shape.block_size[self.first_of(a)]

    def hits_per_group(self, request: FastRequest, max_tokens: int) -> None:
        """Find every attention group's own longest hit, not reconciled (KV-COORD-9)."""
        lookup = self.lookup
        for a in range(self.shape.num_attention):
            lookup.make_room(max_tokens // self.shape.block_size[self.first_of(a)] + 2)
        for a in range(self.shape.num_attention):
            self.found_tokens[a] = self.look_up(a, request, max_tokens, lookup.drops(a))
            self.spread(a, self.found_tokens[a])

    def tokens_of(self, g: int) -> int:
        """Return the length of the last hit of a group."""
        for a in range(self.shape.num_attention):
            for m in range(self.shape.first_member[a], self.shape.first_member[a + 1]):
                if self.shape.members[m] == g:
                    return self.found_tokens[a]
        return 0
