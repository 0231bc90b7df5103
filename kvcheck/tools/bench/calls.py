"""The phases, the calls that are timed in them, and functions that read results, untimed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import RequestInput

HASH, LOOK_UP, FIND, LOOK_UP_AGAIN = "hash", "look up", "hash + look up", "look up again"
ALLOCATE, ADMIT, CHUNK, FREE = "allocate + cache", "admit", "prefill chunk", "free"
PROMPT_PHASES = (HASH, LOOK_UP, FIND, LOOK_UP_AGAIN, ALLOCATE, ADMIT, CHUNK, FREE)
DECODE_PHASES = APPEND, DECODE = "append", "decode step"
REPLAY_PHASES = MANAGER, REPLAY_ADMIT, REPLAY_RUN, REPLAY_FREE, REPLAY_HASH, REPLAY_APPEND = (
    *("replay: manager, in all", "replay: admit", "replay: running requests", "replay: free"),
    *("replay: hash", "replay: append"),
)
SUMS: Mapping[str, tuple[str, ...]] = {
    FIND: (HASH, LOOK_UP),
    MANAGER: (REPLAY_ADMIT, REPLAY_RUN, REPLAY_FREE),
}
"""Phases that are the sums of others, by the units of the last."""

PER_BLOCK = frozenset({HASH, ALLOCATE, ADMIT, CHUNK, FREE})
"""Phases whose times are per block; others are per request, those of a replay undivided."""

HOOK = "bench_calls"
"""An implementation that translates for another project has a method of this name, from a manager
to `Calls` that leave the translation out. Without it `contract_calls` are timed. One whose policy
is not `Policy()` has it as `bench_policy`."""


@dataclass(frozen=True)
class Calls:
    """One manager's calls. Requests, hits and results may be of any type, which only it reads.

    Timed: `make_request(input)`, `append_tokens(request, token_ids)`, `look_up(request)`,
    `allocate(request, num_new_tokens)`, `allocate_with_hit(request, num_new_tokens, hit)`,
    `free(request)`. Requests have a settable `num_computed_tokens`.

    Never timed: `make_input(request_id, token_ids)`, `read_hashes(request)`, `read_hit(hit)`
    (length in tokens and ids), `read_blocks(answer)` (ids of the only group, None for a refusal),
    `num_free_blocks()`, `new_step_starts()`, `end_step()`, which takes what an engine takes each
    step (the blocks to be zeroed), and `around()`, entered before a turn and left after it.

    `includes`: in one line, what the times include.
    """

    make_request: Callable[[Any], Any]
    append_tokens: Callable[[Any, list[int]], Any]
    look_up: Callable[[Any], Any]
    allocate: Callable[[Any, int], Any]
    allocate_with_hit: Callable[[Any, int, Any], Any]
    free: Callable[[Any], Any]
    make_input: Callable[[str, list[int]], Any]
    read_hashes: Callable[[Any], list[bytes]]
    read_hit: Callable[[Any], tuple[int, list[int]]]
    read_blocks: Callable[[Any], list[int] | None]
    num_free_blocks: Callable[[], int]
    includes: str
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    new_step_starts: Callable[[], Any] = lambda: None
    end_step: Callable[[], Any] = lambda: None


def new_manager(implementation: Implementation, config: ManagerConfig) -> KVCacheManager:
    """Make a manager without audits, under the implementation's policy."""
    policy = getattr(implementation, "bench_policy", config.policy)
    return implementation.create(replace(config, policy=policy), check_invariants=False)


def calls_of(implementation: Implementation, manager: KVCacheManager) -> Calls:
    """Return the calls that the implementation offers for timing, or those of the contract."""
    hook = getattr(implementation, HOOK, None)
    calls: Calls = hook(manager) if hook is not None else contract_calls(implementation, manager)
    return calls


def contract_calls(implementation: Implementation, manager: KVCacheManager) -> Calls:
    """Return the calls of `kvspec.interface`, as bound methods wherever the arguments allow it."""

    def make_request(given: RequestInput) -> Any:
        return implementation.make_request(manager, given)

    def append_tokens(request: Any, token_ids: list[int]) -> None:
        implementation.append_tokens(manager, request, token_ids)

    def allocate_with_hit(request: Any, num_new_tokens: int, hit: Any) -> Any:
        return manager.allocate_slots(
            request,
            num_new_tokens,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks,
        )

    return Calls(
        make_request=make_request,
        append_tokens=append_tokens,
        look_up=manager.get_computed_blocks,
        allocate=manager.allocate_slots,
        allocate_with_hit=allocate_with_hit,
        free=manager.free,
        make_input=RequestInput,
        read_hashes=lambda request: list(request.block_hashes),
        read_hit=lambda hit: (hit.hit_length_tokens, hit.blocks.to_lists()[0]),
        read_blocks=lambda blocks: None if blocks is None else blocks.to_lists()[0],
        num_free_blocks=lambda: manager.num_free_blocks,
        new_step_starts=manager.new_step_starts,
        end_step=manager.take_new_block_ids,
        includes="calls of the contract's interface, its checks of arguments included",
    )


class UnequalWorkError(KVSpecError):
    """Two managers gave different results, or not those the case demands, so their times mean
    nothing.

    `phase` and `case` say where, `first` and `other` name the two, `expected` and `got` are the
    first results that differ.
    """

    def __init__(
        self, phase: str, case: str, first: str, other: str, expected: object, got: object
    ) -> None:
        super().__init__(
            f"{phase}, {case}: {other} answers {got!r} where {first} has {expected!r};"
            " times of unequal work are not compared (kvspec check shows which rules are broken)"
        )
        self.phase = phase
        self.case = case
        self.first = first
        self.other = other
        self.expected = expected
        self.got = got
