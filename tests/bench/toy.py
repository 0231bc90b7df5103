"""kvref under a clock that only its calls move, and twins that do less than they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from kvref import ReferenceImplementation
from kvspec.bench.calls import Calls, contract_calls
from kvspec.bench.cases import DecodeCase, Plan, PromptCase
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.interface import KVCacheManager

COSTS_NS = {
    "make_request": 7,
    "append_tokens": 11,
    "look_up": 13,
    "allocate": 17,
    "allocate_with_hit": 19,
    "free": 23,
}
NOT_TIMED = ("make_input", "read_hashes", "read_hit", "read_blocks", "num_free_blocks")

SMALL = PromptCase(num_requests=2, prompt_tokens=64, hit_percent=50, num_blocks=17)
COLD = PromptCase(num_requests=2, prompt_tokens=128, hit_percent=50, num_blocks=129, cold=True)
STEPS = DecodeCase(num_requests=3, prompt_tokens=128, num_blocks=43)
PLAN = Plan((SMALL, COLD, STEPS), num_rounds=3)


class FakeClock:
    """Nanoseconds that pass only when somebody says so."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@dataclass
class Toy(ReferenceImplementation):
    """Every call costs what `COSTS_NS` says, `slowness` times; what is not timed costs a lot.

    `on_call` hears of each call by name; `change` may break the calls.
    """

    clock: FakeClock
    slowness: int = 1
    change: Callable[[Calls], Calls] = lambda calls: calls
    on_call: Callable[[str], None] = lambda name: None

    def __post_init__(self) -> None:
        super().__init__()

    def bench_calls(self, manager: KVCacheManager) -> Calls:
        """The contract's calls, and the clock moves."""
        calls = self.change(contract_calls(self, manager))
        ticking = {
            name: self._ticking(name, getattr(calls, name), COSTS_NS.get(name, 1_000_000))
            for name in (*COSTS_NS, *NOT_TIMED)
        }
        return replace(calls, **ticking, includes="ticks")

    def _ticking(self, name: str, call: Callable[..., Any], cost_ns: int) -> Callable[..., Any]:
        def ticked(*args: Any) -> Any:
            self.clock.now += cost_ns * self.slowness
            self.on_call(name)
            return call(*args)

        return ticked


def shorter_hits(calls: Calls) -> Calls:
    """Finds one block less than is cached."""

    def look_up(request: Any) -> PrefixHit:
        hit = calls.look_up(request)
        (ids,) = hit.blocks.groups
        length = max(0, hit.hit_length_tokens - 16)
        return PrefixHit(KVCacheBlocks((ids[: length // 16],)), length)

    return replace(calls, look_up=look_up)


def other_hashes(calls: Calls) -> Calls:
    """Hashes something else."""
    return replace(calls, read_hashes=lambda request: [b"short"] * len(request.block_hashes))


def other_blocks(calls: Calls) -> Calls:
    """Answers its new blocks in another order."""

    def read_blocks(answer: KVCacheBlocks | None) -> list[int] | None:
        return None if answer is None else answer.to_lists()[0][::-1]

    return replace(calls, read_blocks=read_blocks)


def keeps_blocks(calls: Calls) -> Calls:
    """Frees nothing."""
    return replace(calls, free=lambda request: None)


def refuses(calls: Calls) -> Calls:
    """Has no room for a decoding request."""

    def allocate(request: Any, num_new_tokens: int) -> Any:
        return None if num_new_tokens == 1 else calls.allocate(request, num_new_tokens)

    return replace(calls, allocate=allocate)
