"""Checks of arguments before anything is changed (KV-ERR-2)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import islice
from typing import Any

from kvspec.blocks import KVCacheBlocks
from kvspec.domains import boolean, exact, is_int
from kvspec.domains import count as count_of
from kvspec.errors import BusyError, InvalidArgumentError, StaleHitError, UnknownBlockError
from kvspec.request import Request, RequestStatus, is_status

from . import objects
from .core import Core
from .request import FastRequest

COUNT_BITS = 53
STATUSES = tuple(RequestStatus)
RUNNING = RequestStatus.RUNNING
WAITING = RequestStatus.WAITING


class Checks:
    """The checks of every call; none of them changes the state."""

    def __init__(self, core: Core) -> None:
        self.core = core
        self.num_groups = self.core.num_groups
        self.shape = self.core.shape
        self.pool = self.core.pool
        self.lookup = self.core.lookup

    def counted(self, field: str, value: object) -> int:
        """Return the value if it is a count, else raise (KV-ERR-6)."""
        small = objects.small_of(value)
        if small >= 0:
            return small
        if type(value) is int:
            try:
                count = value
            except OverflowError:  # compiled, `count` has 64 bits
                count = -1
            if count >> COUNT_BITS == 0:
                return count
        return count_of(field, value)  # an int subclass, or an error

    def check_flag(self, field: str, value: object) -> None:
        """Check that the value is True or False."""
        if type(value) is not bool:
            boolean(field, value, error=InvalidArgumentError)

    def own(self, request: Request) -> FastRequest:
        """Return the request if it was made here, with hashes that this manager can use."""
        if not isinstance(request, FastRequest):
            raise InvalidArgumentError(
                "request", request, "made by this implementation's make_request"
            )
        mine: FastRequest = request
        mine.check_made()
        if mine.is_used:
            raise BusyError("request", mine.request_id)
        if self.core.enable_caching:
            if not self.can_use_hashes(mine):
                allowed = "made for the same hash function, seed, block size and extra keys"
                raise InvalidArgumentError("request", mine.request_id, allowed)
        elif mine.is_followed != self.core.is_given:  # KV-REQ-6
            allowed = "one with tokens, or one that follows, as the manager has them"
            raise InvalidArgumentError("request", mine.request_id, allowed)
        return mine

    def can_use_hashes(self, request: FastRequest) -> bool:
        """Return whether the request was hashed as this manager would."""
        if request.hash_block_size_tokens != self.core.hash_block_size:
            return False
        theirs, ours = request.hasher, self.core.hasher
        return theirs is ours or (
            theirs.function == ours.function
            and theirs.none_hash == ours.none_hash
            and theirs.tags == ours.tags
            and theirs.ahead == ours.ahead
        )

    def check_scheduling(self, request: FastRequest) -> None:
        """Check the counts and the status that the scheduler sets on a request."""
        if request.preemptions < 0:
            self.counted("request.num_preemptions", request.num_preemptions)
        if request.in_flight < 0:
            self.counted("request.num_in_flight_tokens", request.num_in_flight_tokens)
        self.check_junction(request)
        status = request.state
        if status is not RUNNING and status is not WAITING and not is_status(status):
            raise InvalidArgumentError("request.status", status, "one of " + ", ".join(STATUSES))

    def check_junction(self, request: FastRequest) -> None:
        """Check the scheduler's note of the request's look-up (KV-RET-7)."""
        if request.junction < 0:
            self.counted("request.junction_tokens", request.junction_tokens)

    def computed_of(self, request: FastRequest) -> int:
        """Return the computed tokens that the scheduler set, checked (KV-REQ-3)."""
        computed = request.computed_now()
        if computed < 0:
            return self.counted("request.num_computed_tokens", request.num_computed_tokens)
        return computed

    def check_has_slots(self, row: int, prompt: int, computed: int) -> None:
        """Check that computed tokens have slots, and the next can read (KV-REQ-3, KV-REQ-9)."""
        for g in range(self.num_groups):
            if self.shape.holds_tokens(g):
                slots = 0
                if row >= 0:
                    slots = self.core.tables.length[row * self.num_groups + g]
                slots *= self.shape.block_size[g]
                if computed > slots:
                    raise InvalidArgumentError(
                        "request.num_computed_tokens", computed, f"at most its {slots} slots"
                    )
        for g in range(self.num_groups if row >= 0 else 0):
            first = self.shape.first_read(g, prompt, computed)
            if self.core.tables.is_null(row * self.num_groups + g, first):
                allowed = "a number whose window is still there"
                raise InvalidArgumentError("request.num_computed_tokens", computed, allowed)

    def copied_hits(self, blocks: KVCacheBlocks | None) -> list[Any] | None:
        """Copy the hit blocks of a call, a list or an array of each group (KV-MGR-8).

        The caller's own sequence may return more than its length, or change.
        """
        if blocks is None or blocks is self.core.no_blocks:
            return None
        if not isinstance(blocks, KVCacheBlocks):
            raise InvalidArgumentError("new_computed_blocks", blocks, "KVCacheBlocks or None")
        given: Any = blocks.groups
        try:
            groups = tuple(
                islice(self.checked_sequence("new_computed_blocks", given), self.num_groups + 1)
            )
        except (NotImplementedError, TypeError):  # a memoryview
            groups = ()
        if len(groups) != self.num_groups:
            raise InvalidArgumentError(
                "new_computed_blocks", blocks, f"one list per group ({self.num_groups})"
            )
        hits: list[Any] = []
        for g, ids in enumerate(groups):
            is_ours = type(ids) is array and ids.typecode == "i"
            hits.append(ids if is_ours else self.checked_blocks(f"new_computed_blocks[{g}]", ids))
        return hits

    def offer(self, hits: list[Any] | None) -> int:
        """Put the hit blocks of a call into the look-up's arrays; return their number."""
        self.lookup.clear()
        if hits is None:
            return 0
        total = 0
        for ids in hits:
            self.lookup.make_room(len(ids))
        for g in range(self.num_groups):
            total += self.offer_ids(g, hits[g])
        return total

    def offer_ids(self, g: int, ids: Sequence[int]) -> int:
        """Copy one group's hit blocks; returns their number."""
        base = g * self.lookup.stride
        num_blocks = self.pool.num_blocks
        if type(ids) is array:
            view = ids  # whose length can no longer change
            length = len(view)
            if length > self.lookup.stride:
                raise InvalidArgumentError(f"new_computed_blocks[{g}]", ids, "left as it is")
            for i in range(length):
                block = view[i]
                if block < 0 or block >= num_blocks:
                    raise UnknownBlockError(block, num_blocks)
                self.lookup.hits[base + i] = block
        else:
            length = len(ids)
            for i in range(length):
                self.lookup.hits[base + i] = ids[i]
        self.lookup.hit_blocks[g] = length
        return length

    def checked_sequence(self, field: str, values: Any) -> Any:
        """Return the values if they are ordered: a set is not accepted."""
        if not issubclass(type(values), Sequence):
            raise InvalidArgumentError(field, values, "a sequence")
        return values

    def checked_block(self, block: object) -> int:
        """Return the id if it is a block of the pool (KV-ERR-3)."""
        if not is_int(block) or not 0 <= exact(block) < self.pool.num_blocks:
            raise UnknownBlockError(block, self.pool.num_blocks)
        return exact(block)

    def checked_blocks(self, field: str, block_ids: Sequence[int]) -> list[int]:
        """Copy the ids, each a block of the pool."""
        ids = self.checked_sequence(field, block_ids)
        try:  # up to the first that is none: a range may be longer than any list
            return [self.checked_block(block) for block in ids]
        except (NotImplementedError, TypeError) as error:  # a memoryview of objects, or of one
            raise InvalidArgumentError(field, block_ids, "a sequence that can be read") from error

    def check_hits(
        self, request: FastRequest, new_computed: int, external: int, skip_at: int
    ) -> None:
        """Check that every hit has the key of its place; only skipped ones are null (KV-MGR-8).

        With a load a list may be short, but not all of them.
        """
        longest = 0
        for g in range(self.num_groups):
            num_hits = self.lookup.hit_blocks[g]
            size = self.shape.block_size[g]
            skipped = self.shape.unread(g, skip_at)
            if self.core.inside is not None and self.may_end_inside(g, new_computed):
                self.check_inside(request, g, new_computed, external, skipped)
                longest = new_computed
                continue
            if num_hits > new_computed // size:  # a product may overflow
                covered = new_computed + 1
            else:
                covered = num_hits * size
            is_wrong = covered > new_computed or (covered < new_computed and external == 0)
            if not self.shape.is_cached(g):  # KV-COORD-14
                is_wrong = num_hits > 0
            if is_wrong:
                raise InvalidArgumentError(
                    f"new_computed_blocks[{g}]",
                    num_hits,
                    f"blocks of {size} for num_new_computed_tokens = {new_computed}",
                )
            self.check_whole(request, g, num_hits, skipped)
            longest = max(longest, covered)
        if longest < new_computed:
            raise InvalidArgumentError(
                "num_new_computed_tokens", new_computed, f"{longest}, as long as the longest list"
            )

    def check_whole(self, request: FastRequest, g: int, end: int, skipped: int) -> None:
        """Check that the first entries of a hit have their whole block's key, or are skipped."""
        per = self.shape.hashes_per_block[g]
        for i in range(end):
            block = self.lookup.hits[g * self.lookup.stride + i]
            has_hash = (i + 1) * per <= request.num_hashes
            if has_hash and block == 0 and i < skipped:
                continue
            if (
                block == 0
                or not has_hash
                or not self.pool.has_key(block, request, (i + 1) * per - 1, g)
            ):
                raise StaleHitError(g, i, block)

    def may_end_inside(self, g: int, tokens: int) -> bool:
        """Return whether these tokens end inside a block of the group, where they may."""
        is_fine = self.shape.is_full(g) or self.shape.is_mamba(g)
        return is_fine and tokens % self.shape.block_size[g] != 0

    def check_inside(
        self, request: FastRequest, g: int, new_computed: int, external: int, skipped: int
    ) -> None:
        """Check the hits of a group in which they end inside a block (KV-INSIDE-18)."""
        num_hits = self.lookup.hit_blocks[g]
        whole = new_computed // self.shape.block_size[g]
        if external > 0:
            allowed = "whole blocks where external tokens come"
            raise InvalidArgumentError("num_new_computed_tokens", new_computed, allowed)
        if num_hits != whole + 1:
            allowed = f"{whole + 1} blocks for num_new_computed_tokens = {new_computed}"
            raise InvalidArgumentError(f"new_computed_blocks[{g}]", num_hits, allowed)
        self.check_whole(request, g, whole, skipped)
        if not self.covers_end(request, g, whole, new_computed):
            block = self.lookup.hits[g * self.lookup.stride + whole]
            raise StaleHitError(g, whole, block)

    def covers_end(self, request: FastRequest, g: int, index: int, tokens: int) -> bool:
        """Return whether the block that a hit ends inside has a key of that end."""
        block = self.lookup.hits[g * self.lookup.stride + index]
        per = self.shape.hashes_per_block[g]
        unit = self.shape.block_size[g] // per
        last = tokens // unit
        if block == 0 or tokens % unit:
            return False
        if self.shape.is_full(g):  # content after the hit in its block is harmless
            last = (index + 1) * per
        for number in range(tokens // unit, min(last, request.num_hashes) + 1):
            if self.pool.has_key(block, request, number - 1, g):
                return True
        return False

    def check_continues(self, row: int, num_hits: int, new_computed: int, external: int) -> None:
        """Check that a request with blocks takes no hits, and starts no load (KV-GRP-9)."""
        is_running = self.core.allocator.is_running(row)
        holds_some = is_running or self.core.allocator.holds_blocks(row)
        if holds_some and (num_hits or new_computed):
            raise InvalidArgumentError(
                "new_computed_blocks", num_hits, "empty: the request already holds blocks"
            )
        if holds_some and external and not is_running:
            raise InvalidArgumentError(
                "num_external_computed_tokens", external, "0: the request already holds blocks"
            )
