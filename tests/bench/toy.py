"""kvref under a clock that only its calls move, and twins that do less than they are asked for."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from kvcheck.tools.bench.calls import Calls, contract_calls
from kvcheck.tools.bench.measure import Measured, contestants, measure
from kvcheck.tools.bench.script import Case, Decoding, Plan, Prompts
from kvref import ReferenceImplementation
from kvspec.batched import BatchedManager, StepOutput, StepResult
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.interface import Capabilities, Feature, KVCacheManager

COSTS_NS = {
    "make_request": 7,
    "append_tokens": 11,
    "look_up": 13,
    "allocate": 17,
    "allocate_with_hit": 19,
    "free": 23,
}
BATCHED_COSTS_NS = {
    "register": 3,
    "unregister": 5,
    "append": 110,
    "lookup": 130,
    "admit": 190,
    "decode": 170,
    "free": 230,
}
"""Of a call, however many handles it has."""
NOT_TIMED = ("make_input", "read_hashes", "read_hit", "read_blocks", "num_free_blocks")

SMALL = Prompts(num_requests=2, prompt_tokens=64, hit_percent=50, num_blocks=17).case()
COLD = Prompts(2, 128, 50, num_blocks=129, cold=True).case()
STEPS = Decoding(num_requests=3, prompt_tokens=128, num_blocks=43).case()
FRESH = Prompts(2, 64, 0, num_blocks=17).case()
PLAN = Plan((SMALL, FRESH, COLD, STEPS), num_rounds=3)


class FakeClock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@dataclass
class Toy(ReferenceImplementation):
    """Every call costs `COSTS_NS` times `slowness`; untimed calls cost a lot.

    `on_call` gets the name of each call; `change` and `change_batched` may break the calls.
    """

    clock: FakeClock
    slowness: int = 1
    change: Callable[[Calls], Calls] = lambda calls: calls
    on_call: Callable[[str], None] = lambda name: None
    is_batched: bool = True
    change_batched: Callable[[BatchedManager], Any] = lambda batched: batched

    def __post_init__(self) -> None:
        super().__init__()

    @property
    def capabilities(self) -> Capabilities:
        whole = super().capabilities
        if self.is_batched:
            return whole
        return replace(whole, features=whole.features - {Feature.BATCHED})

    def bench_calls(self, manager: KVCacheManager) -> Calls:
        calls = self.change(contract_calls(self, manager))
        ticking: dict[str, Any] = {
            name: self.ticking(name, getattr(calls, name), COSTS_NS.get(name, 1_000_000))
            for name in (*COSTS_NS, *NOT_TIMED)
        }
        return replace(calls, **ticking, includes="ticks")

    def batched(self, manager: KVCacheManager) -> BatchedManager:
        inner = self.change_batched(super().batched(manager))
        return cast(BatchedManager, TickingBatched(inner, self))

    def ticking(self, name: str, call: Callable[..., Any], cost_ns: int) -> Callable[..., Any]:
        def ticked(*args: Any, **options: Any) -> Any:
            self.clock.now += cost_ns * self.slowness
            self.on_call(name)
            return call(*args, **options)

        return ticked


class TickingBatched:
    def __init__(self, inner: BatchedManager, toy: Toy) -> None:
        self._inner = inner
        self._toy = toy

    def __getattr__(self, name: str) -> Any:
        cost_ns = BATCHED_COSTS_NS.get(name, 1_000_000)
        return self._toy.ticking(f"batched {name}", getattr(self._inner, name), cost_ns)


def measured(*cases: Case, rounds: int = 2, **toys: Toy) -> Measured:
    playing = [each for name, toy in toys.items() for each in contestants(name, toy)]
    return measure(Plan(cases, rounds), playing, clock=next(iter(toys.values())).clock)


def shorter_hits(calls: Calls) -> Calls:
    def look_up(request: Any) -> PrefixHit:
        hit = calls.look_up(request)
        length = max(0, hit.hit_length_tokens - 16)
        return PrefixHit(KVCacheBlocks((hit.blocks.groups[0][: length // 16],)), length)

    return replace(calls, look_up=look_up)


def forgets(calls: Calls) -> Calls:
    """Find less when a request is looked up again."""
    asked: list[Any] = []

    def look_up(request: Any) -> Any:
        asked.append(request)
        is_first = sum(each is request for each in asked) == 1
        return (calls if is_first else shorter_hits(calls)).look_up(request)

    return replace(calls, look_up=look_up)


def other_hashes(calls: Calls) -> Calls:
    return replace(calls, read_hashes=lambda request: [b"short"] * len(request.block_hashes))


def other_blocks(calls: Calls) -> Calls:
    return replace(calls, read_blocks=lambda got: None if got is None else got.to_lists()[0][::-1])


def keeps_blocks(calls: Calls) -> Calls:
    return replace(calls, free=lambda request: None)


def refuses(calls: Calls) -> Calls:
    return replace(calls, allocate=lambda one, num: None if num == 1 else calls.allocate(one, num))


@dataclass
class Changed:
    inner: BatchedManager
    name: str
    call: Callable[..., Any]

    def __getattr__(self, name: str) -> Any:
        return self.call if name == self.name else getattr(self.inner, name)


def shorter_lengths(batched: BatchedManager) -> Any:
    return Changed(
        batched, "lookup", lambda given: array("q", [n - 16 for n in batched.lookup(given)])
    )


def forgets_lengths(batched: BatchedManager) -> Any:
    last: list[list[int]] = []

    def lookup(handles: Any) -> Any:
        last.append(list(handles))
        is_first = last.count(last[-1]) == 1
        return (batched if is_first else shorter_lengths(batched)).lookup(handles)

    return Changed(batched, "lookup", lookup)


def other_rows(batched: BatchedManager) -> Any:
    def admit(*args: Any, output: StepOutput) -> Any:
        result = batched.admit(*args, output=output)
        cast(Any, output.block_deltas)[0, 3] += 1
        return result

    return Changed(batched, "admit", admit)


def no_rows(batched: BatchedManager) -> Any:
    return Changed(batched, "decode", lambda handles, counts, *, output: batched.decode(handles))


def no_hashes(batched: BatchedManager) -> Any:
    return Changed(batched, "append", lambda handles, tokens: None)


def grants_less(batched: BatchedManager) -> Any:
    def decode(handles: Any, counts: Any, *, output: StepOutput) -> StepResult:
        result = batched.decode(handles, counts, output=output)
        result.num_scheduled_tokens[-1] = 0
        return result

    return Changed(batched, "decode", decode)
