"""A whole engine step in a few calls over arrays (KV-BATCH-*).

`batched_of(implementation, manager)` in `kvspec.sequential` returns a `BatchedManager` for any
manager. Its calls are *defined* by single calls, one after another in a stated order:
`kvspec.sequential.SequentialManager` is that definition. An implementation with `Feature.BATCHED`
has its own (`BatchedImplementation`).

A request is registered once and then named by its *handle*, a small int. Numbers are passed as

- `Ints`: a list, tuple or other sequence of ints; or an array of them: one-dimensional,
  C-contiguous, of native 32- or 64-bit signed integers (`array("i")`, NumPy, a PyTorch tensor in
  host memory). Arrays are read before anything is written (KV-BATCH-3).
- `Ints | int` where one number may apply to all.

Every error names its argument as a path from the call: `decoding[3]` (the handle at place 3),
`decoding[3].num_computed_tokens` (a member of the request there), `decode_tokens[3]` (its count;
`decode_tokens` if one count applies to all, or for the wrong length or type), `slot_mappings[0]`.
`admit`, `decode`, `free` and `preempt` are steps, so their errors name the fields of a `StepPlan`.
All are InvalidArgumentError, or UnsupportedError for an option that the manager under it lacks; and
then nothing has changed (KV-BATCH-2).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from kvspec.domains import COUNT_MAX

if TYPE_CHECKING:
    from kvspec.interface import KVCacheManager
    from kvspec.request import Request


class Array(Protocol):
    """An array of numbers that shares its memory: `array`, `memoryview`, NumPy, PyTorch on host."""

    def __len__(self) -> int: ...
    def tolist(self) -> Any: ...


Ints: TypeAlias = Sequence[int] | Array


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One engine step, handled in the order of the fields (KV-BATCH-1).

    No handle may occur twice. Nothing is checked before `step`.

    - `finished`: these requests are released and start again if they are used again.
    - `preempted`: the same, and counted as a preemption (KV-BATCH-5).
    - `decoding`, `prefilling`: requests under way; `decode_tokens`, `prefill_tokens`: new tokens of
      each, drafts included, 1 or more (KV-BATCH-6). The two differ in name only.
    - `new`: requests to be looked up and admitted, each with at most `max_new_tokens` new tokens,
      1 or more (KV-BATCH-7).
    - `token_budget`: tokens of the step. Tokens granted to `decoding` and `prefilling` are
      subtracted, `new` shares the rest (KV-BATCH-8).
    - `num_lookahead_tokens`: slots for a drafter beyond each allocation of the step.
    - `full_sequence_must_fit`, `reserved_blocks`: for new requests, as in `allocate_slots`.
    - `stops_at_refusal`: after the first refused new request the later ones are not tried.
    - `starts_step`: begin with `new_step_starts()`.
    """

    finished: Ints = ()
    preempted: Ints = ()
    decoding: Ints = ()
    decode_tokens: Ints | int = 1
    prefilling: Ints = ()
    prefill_tokens: Ints | int = 1
    new: Ints = ()
    max_new_tokens: Ints | int = COUNT_MAX
    token_budget: int = COUNT_MAX
    num_lookahead_tokens: int = 0
    full_sequence_must_fit: bool = False
    reserved_blocks: int = 0
    stops_at_refusal: bool = False
    starts_step: bool = True


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Memory of the caller, pinned if it likes, that a step writes to.

    The arrays are writable, C-contiguous, and overlap neither each other nor the plan's.

    - `block_deltas`: int32, shape [n, 4], any n: rows (handle, group, index, block), meaning that
      entry `index` of the request's block list in `group` is `block` (KV-BATCH-10).
    - `slot_mappings`: for each group an int64 array [n] or None: the slot of each granted token, in
      the order of `StepResult.num_scheduled_tokens` (KV-BATCH-9). n is at least what the step may
      schedule. None for a group whose blocks do not hold one slot per token of the sequence
      (Mamba, cross attention, encoder-only).
    """

    block_deltas: Array | None = None
    slot_mappings: Sequence[Array | None] | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The tokens that a step granted.

    - `num_scheduled_tokens`: int64, for each entry of `decoding`, `prefilling` and `new`, in this
      order: new tokens granted; 0 when refused or not tried.
    - `hit_tokens`: int64, for each entry of `new`: tokens found cached; 0 when refused or not
      tried.
    - `num_slots`: slots written to each wanted mapping: the sum of `num_scheduled_tokens`.
    - `num_deltas`: rows written to `block_deltas`.
    - `num_deltas_left`: rows of this step's granted entries that did not fit; `take_deltas` hands
      them out (KV-BATCH-11).
    """

    num_scheduled_tokens: array[int]
    hit_tokens: array[int]
    num_slots: int = 0
    num_deltas: int = 0
    num_deltas_left: int = 0


@runtime_checkable
class BatchedManager(Protocol):
    """Whole steps on one manager; single calls on the same manager may be made between them.

    Only a registered request must be released here: a single `free` would leave its entries
    reported (KV-BATCH-10). Not thread-safe.
    """

    @property
    def manager(self) -> KVCacheManager:
        """The manager it works on, exactly as it was given."""

    def register(self, request: Request) -> int:
        """Return a handle: the one unregistered longest ago, else the next new one (KV-BATCH-4).

        The manager is not called or changed, except to check that the request is its own.
        InvalidArgumentError (`request`) if it is not, or if a request of this id is registered.
        """

    def unregister(self, handles: Ints) -> None:
        """Forget these requests. They must hold no blocks (`handles[i]`)."""

    def request_of(self, handle: int) -> Request:
        """Return the registered request; InvalidArgumentError (`handle`) if there is none."""

    def append(self, handles: Ints, token_ids: Ints, counts: Ints | int = 1) -> None:
        """Append `counts[i]` tokens, 0 or more, to each request (KV-BATCH-12).

        `token_ids`: those of all requests, one after another, 0 … 2^63 - 1; as many as the sum of
        the counts.
        """

    def follow(
        self,
        handles: Ints,
        num_tokens: Ints | int,
        hashes: Sequence[bytes] = (),
        *,
        num_prompt_tokens: Ints | int | None = None,
    ) -> None:
        """Report how many tokens each followed request has now (KV-BATCH-14).

        `hashes`: those of the newly full blocks of all requests, one after another. None: the
        prompts are as long as before. Errors name `num_tokens[i]`, `num_prompt_tokens[i]`, `hashes`
        and `hashes[i]`. UnsupportedError without Feature.GIVEN_HASHES.
        """

    def rewind(self, handles: Ints, num_tokens: Ints | int) -> None:
        """Take back computed tokens of each request: the drafts that were rejected (KV-BATCH-12).

        `num_tokens[i]`: 0 … its `num_computed_tokens`. Blocks stay with the request.
        """

    def lookup(self, handles: Ints) -> array[int]:
        """Return each request's hit length in tokens, by `get_computed_blocks` (KV-BATCH-12)."""

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
        """Make the `step` of a plan with `new=handles`, these options, and `starts_step=False`."""

    def decode(
        self,
        handles: Ints,
        num_new_tokens: Ints | int = 1,
        *,
        num_lookahead_tokens: int = 0,
        output: StepOutput | None = None,
    ) -> StepResult:
        """Make a `step` with `decoding=handles`, these options, and `starts_step=False`."""

    def free(self, handles: Ints) -> None:
        """Make a `step` with `finished=handles`, `starts_step=False`. They stay registered."""

    def preempt(self, handles: Ints) -> None:
        """Make the `step` of a plan with `preempted=handles`, `starts_step=False`."""

    def step(self, plan: StepPlan, output: StepOutput | None = None) -> StepResult:
        """Do what the plan says, write what the output asks for (KV-BATCH-1 … KV-BATCH-10)."""

    def take_deltas(self, block_deltas: Array) -> int:
        """Write as many unreported rows of registered requests as fit; returns their number
        (KV-BATCH-11).

        Requests are written in the order of their handles. The array is that of `StepOutput`.
        """

    def num_pending_deltas(self) -> int:
        """Return how many rows `take_deltas` would write with room for all."""

    def next_free_blocks(self, num_blocks: int, after: int | None = None) -> array[int]:
        """Return up to `num_blocks` blocks that will be taken next, in order (KV-BATCH-13). Pure.

        `after`: start after this free block (KV-BATCH-15). UnsupportedError if the manager cannot
        tell.
        """

    def list_lengths(self, handles: Ints) -> array[int]:
        """Return each request's number of entries per group: [requests, groups] (KV-BATCH-13)."""


@runtime_checkable
class BatchedImplementation(Protocol):
    """The additional methods of an `Implementation` with `Feature.BATCHED`."""

    def batched(self, manager: KVCacheManager) -> BatchedManager:
        """Return whole steps on a manager of this implementation, with no request registered yet.

        InvalidArgumentError (`manager`) for a manager made elsewhere.
        """
