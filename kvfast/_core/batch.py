"""Whole engine steps over arrays, as callers have them (KV-BATCH-*)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from kvspec.batched import Array, Ints, StepOutput, StepPlan, StepResult
from kvspec.domains import COUNT_MAX
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Capabilities, KVCacheManager
from kvspec.request import Request

from .batch_calls import BatchCalls
from .manager import FastManager


class FastBatch:
    """A `kvspec.batched.BatchedManager`: every call takes the turn of the manager (KV-ERR-7).

    `shown` is the manager as the caller gave it.
    """

    def __init__(
        self, manager: FastManager, capabilities: Capabilities, shown: KVCacheManager
    ) -> None:
        if self.is_ready():
            raise InvalidArgumentError("batch", None, "one that is made once")
        self.inner = manager
        self.inner.check_sound()
        self.shown = shown
        self.calls = BatchCalls(self.inner.core, self.inner.checks, self.inner.turn, capabilities)
        self.is_made = True

    def is_ready(self) -> bool:
        """Return whether `__init__` ran: after `__new__` alone there is no memory."""
        try:
            return self.is_made
        except AttributeError:  # uncompiled
            return False

    def enter(self) -> None:
        """Begin a call."""
        if not self.is_ready():
            raise InvalidArgumentError("batch", None, "made by `batched`")
        self.inner.turn.take()

    @property
    def manager(self) -> KVCacheManager:
        """The manager it works on, exactly as it was given."""
        return self.shown

    def register(self, request: Request) -> int:
        """Return a handle for the request (KV-BATCH-4)."""
        self.enter()
        try:
            return self.calls.register(request)
        finally:
            self.calls.leave()

    def unregister(self, handles: Ints) -> None:
        """Forget requests that hold nothing (KV-BATCH-4)."""
        self.enter()
        try:
            self.calls.unregister(handles)
        finally:
            self.calls.leave()

    def request_of(self, handle: int) -> Request:
        self.enter()
        try:
            return self.calls.request_of(handle)
        finally:
            self.calls.leave()

    def append(self, handles: Ints, token_ids: Ints, counts: Ints | int = 1) -> None:
        """Append tokens to each request (KV-BATCH-12)."""
        self.enter()
        try:
            self.calls.append(handles, token_ids, counts)
        finally:
            self.calls.leave()

    def follow(
        self,
        handles: Ints,
        num_tokens: Ints | int,
        hashes: Sequence[bytes] = (),
        *,
        num_prompt_tokens: Ints | int | None = None,
    ) -> None:
        """Set counts and add hashes of newly full blocks (KV-BATCH-14)."""
        self.enter()
        try:
            self.calls.follow(handles, num_tokens, hashes, num_prompt_tokens)
        finally:
            self.calls.leave()

    def rewind(self, handles: Ints, num_tokens: Ints | int) -> None:
        """Take back computed tokens of each request (KV-BATCH-12)."""
        self.enter()
        try:
            self.calls.rewind(handles, num_tokens)
        finally:
            self.calls.leave()

    def lookup(self, handles: Ints) -> array[int]:
        """Return the hit lengths in tokens (KV-BATCH-12)."""
        self.enter()
        try:
            return self.calls.lookup(handles)
        finally:
            self.calls.leave()

    def admit(
        self,
        handles: Ints,
        max_new_tokens: Ints | int = COUNT_MAX,
        *,
        token_budget: int = COUNT_MAX,
        num_lookahead_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        stops_at_refusal: bool = False,
        output: StepOutput | None = None,
    ) -> StepResult:
        """Make a step of new requests only."""
        self.enter()
        try:
            return self.calls.admit(
                handles,
                max_new_tokens,
                token_budget,
                num_lookahead_tokens,
                full_sequence_must_fit,
                reserved_blocks,
                stops_at_refusal,
                output,
            )
        finally:
            self.calls.leave()

    def decode(
        self,
        handles: Ints,
        num_new_tokens: Ints | int = 1,
        *,
        num_lookahead_tokens: int = 0,
        output: StepOutput | None = None,
    ) -> StepResult:
        """Make a step of decoding requests only."""
        self.enter()
        try:
            return self.calls.decode(handles, num_new_tokens, num_lookahead_tokens, output)
        finally:
            self.calls.leave()

    def free(self, handles: Ints) -> None:
        """Make a step of finished requests only."""
        self.enter()
        try:
            self.calls.free(handles)
        finally:
            self.calls.leave()

    def preempt(self, handles: Ints) -> None:
        """Make a step of preempted requests only."""
        self.enter()
        try:
            self.calls.preempt(handles)
        finally:
            self.calls.leave()

    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        """Handle finished, preempted, decoding, prefilling, new in turn (KV-BATCH-1)."""
        self.enter()
        try:
            return self.calls.step(plan, output)
        finally:
            self.calls.leave()

    def take_deltas(self, block_deltas: Array) -> int:
        """Report what was not reported yet, of all requests (KV-BATCH-11)."""
        self.enter()
        try:
            return self.calls.take_deltas(block_deltas)
        finally:
            self.calls.leave()

    def num_pending_deltas(self) -> int:
        """Count the entries of all requests not yet reported."""
        self.enter()
        try:
            return self.calls.num_pending_deltas()
        finally:
            self.calls.leave()

    def next_free_blocks(self, num_blocks: int, after: int | None = None) -> array[int]:
        """Return the front of the free queue, or what follows (KV-BATCH-13, KV-BATCH-15)."""
        self.enter()
        try:
            return self.calls.next_free_blocks(num_blocks, after)
        finally:
            self.calls.leave()

    def list_lengths(self, handles: Ints) -> array[int]:
        """Return the lengths of block lists, by handle, then by group (KV-BATCH-13)."""
        self.enter()
        try:
            return self.calls.list_lengths(handles)
        finally:
            self.calls.leave()
