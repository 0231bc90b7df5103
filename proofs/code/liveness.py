"""Every request that fits an idle pool ends, whoever shares the pool (KV-LIVE-1, KV-LIVE-2).

Model checking by enumeration: for each small configuration below and each triple of requests out
of a small set, a first-come-first-served scheduler (admission by `full_sequence_must_fit`, a
budget of tokens per step, the youngest preempted on a refusal) runs kvref until all have ended.
The run is deterministic, so this covers every input within the bounds. A run that does not end
within the bound on steps would be a deadlock or a livelock.

The requests are all those that an idle pool admits, so that a cap which counts too few blocks shows
as a run that gets stuck. An idle pool admits each request that fits: the most blocks it ever holds
at once (`most_blocks`, summed over the groups) are at most num_blocks - 1.

Assumptions: a step asks for at most `max_num_batched_tokens` tokens of a request; beside a Mamba
group in mode align, a request fits. Such a group passes through a step with two states, old and
new, while admission counts one, so without this assumption runs do get stuck.

Twins, which the same check must find: requests that do not fit but are admitted (align), and a
window whose cap in kvref lacks the `+ 1`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from unittest.mock import patch

import kvref
from kvref.groups.sliding_window import SlidingWindowGroup
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import KVCacheManager
from kvspec.request import Request, RequestInput, RequestStatus
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)

ASSUMES = ("a request fits an idle pool",)
GUARANTEES = ("every request that fits is admitted and ends",)

FULL = FullAttentionSpec(2, 1, 8, "float16")
WINDOW = SlidingWindowSpec(2, 1, 8, "float16", sliding_window=4)
CHUNKED = ChunkedLocalAttentionSpec(2, 1, 8, "float16", attention_chunk_size=4)
ALIGNED = MambaSpec(2, ((2,),), ("float32",), mamba_cache_mode="align")
MODELS: dict[str, tuple[LayerSpec, ...]] = {
    "full": (FULL,),
    "window": (WINDOW,),
    "chunked": (CHUNKED,),
    "full and window": (FULL, WINDOW),
    "full and chunked": (FULL, CHUNKED),
    "full and Mamba": (FULL, ALIGNED),
}
POOL_SIZES = (4, 5, 6, 8, 10)
LENGTHS = ((1, 1), (3, 2), (4, 3), (7, 2), (9, 1))
"""Prompt and output tokens."""
MAX_TOKENS_PER_STEP = 3
MAX_MODEL_LEN_TOKENS = 16
MAX_STEPS = 300


@dataclass(eq=False)
class Running:
    """A request and how many tokens it still has to generate."""

    request: Request
    num_left: int


class Scheduler:
    """The driver: `run` says whether all requests ended."""

    def __init__(self, manager: KVCacheManager) -> None:
        self.implementation = kvref.implementation()
        self.manager = manager
        self.waiting: list[Running] = []
        self.running: list[Running] = []

    def add(self, name: str, num_prompt: int, num_output: int, *, first_token: int) -> Running:
        """Queue a request whose prompt is a run of ints."""
        prompt = [first_token + n for n in range(num_prompt)]
        request = self.implementation.make_request(self.manager, RequestInput(name, prompt))
        self.waiting.append(Running(request, num_output))
        return self.waiting[-1]

    def run(self) -> bool:
        """Step until everything ended, or for MAX_STEPS."""
        for _ in range(MAX_STEPS):
            if not self.waiting and not self.running:
                return True
            self.step()
        return False

    def step(self) -> None:
        """One step: running requests first, then admission, then the computed tokens."""
        self.manager.new_step_starts()
        budget = MAX_TOKENS_PER_STEP
        scheduled: dict[Running, int] = {}
        preempted = False
        for item in list(self.running):
            if item not in self.running or budget == 0:
                continue
            wanted = item.request.num_tokens - item.request.num_computed_tokens
            num_new = min(wanted, budget)
            while item in self.running and not self.allocate(item, num_new):
                self.preempt(self.running[-1])
                preempted = True
            if item in self.running:
                scheduled[item] = num_new
                budget -= num_new
        while not preempted and budget > 0 and self.waiting and self.admit(budget, scheduled):
            budget -= scheduled[self.running[-1]]
        for item, num_new in scheduled.items():
            self.compute(item, num_new)

    def allocate(self, item: Running, num_new: int) -> bool:
        return self.manager.allocate_slots(item.request, num_new) is not None

    def preempt(self, item: Running) -> None:
        """Give up everything and wait in front."""
        self.manager.free(item.request)
        item.request.num_computed_tokens = 0
        item.request.status = RequestStatus.PREEMPTED
        self.running.remove(item)
        self.waiting.insert(0, item)

    def admit(self, budget: int, scheduled: dict[Running, int]) -> bool:
        """Admit the head of the queue, if the whole of it would fit."""
        item = self.waiting[0]
        hit = self.manager.get_computed_blocks(item.request)
        num_new = min(item.request.num_tokens - hit.hit_length_tokens, budget)
        answer = self.manager.allocate_slots(
            item.request,
            num_new,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks if hit.hit_length_tokens else None,
            full_sequence_must_fit=True,
            has_scheduled_reqs=bool(scheduled),
        )
        if answer is None:
            return False
        item.request.num_computed_tokens = hit.hit_length_tokens
        item.request.status = RequestStatus.RUNNING
        self.waiting.pop(0)
        self.running.append(item)
        scheduled[item] = num_new
        return True

    def compute(self, item: Running, num_new: int) -> None:
        """The tokens are computed; the last one of the sequence gives the next token."""
        item.request.num_computed_tokens += num_new
        if item.request.num_computed_tokens < item.request.num_tokens:
            return
        item.num_left -= 1
        if item.num_left <= 0:
            self.manager.free(item.request)
            self.running.remove(item)
        else:
            self.implementation.append_tokens(self.manager, item.request, [999])


def configuration(specs: tuple[LayerSpec, ...], num_blocks: int) -> ManagerConfig:
    """A pool of `num_blocks` blocks for these groups."""
    groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(specs))
    return ManagerConfig(
        KVCacheConfig(num_blocks, groups),
        max_model_len_tokens=MAX_MODEL_LEN_TOKENS,
        max_num_batched_tokens=MAX_TOKENS_PER_STEP,
        hash_seed="0",
    )


def most_blocks(spec: LayerSpec, num_tokens: int) -> int:
    """The most blocks a request of this final length holds at once in a group of this spec."""
    tokens = num_tokens
    spare = 0
    if isinstance(spec, MambaSpec):
        return 2 + spec.num_speculative_blocks
    if isinstance(spec, SlidingWindowSpec):
        tokens, spare = spec.sliding_window - 1 + MAX_TOKENS_PER_STEP, 1
    elif isinstance(spec, ChunkedLocalAttentionSpec):
        tokens = spec.attention_chunk_size + MAX_TOKENS_PER_STEP
    capped = -(-min(tokens, MAX_MODEL_LEN_TOKENS) // spec.block_size) + spare
    return min(-(-num_tokens // spec.block_size), capped)


def fits(config: ManagerConfig, num_prompt: int, num_output: int) -> bool:
    """Whether an idle pool has room for the most the request ever holds."""
    specs = [group.spec for group in config.kv_cache.groups]
    needed = sum(most_blocks(spec, num_prompt + num_output - 1) for spec in specs)
    return needed <= config.kv_cache.num_blocks - 1


def is_admitted_alone(config: ManagerConfig, num_prompt: int, num_output: int) -> bool:
    """Whether an idle pool takes the request at its final length."""
    implementation = kvref.implementation()
    manager = implementation.create(config, check_invariants=False)
    whole = RequestInput("whole", list(range(num_prompt + num_output - 1)))
    request = implementation.make_request(manager, whole)
    first = min(request.num_tokens, MAX_TOKENS_PER_STEP)
    return manager.allocate_slots(request, first, full_sequence_must_fit=True) is not None


def first_stuck_run(
    config: ManagerConfig, is_taken: Callable[[ManagerConfig, int, int], bool]
) -> tuple[int, str | None]:
    """Runs made with the requests that `is_taken`, and the first that did not end, in words."""
    implementation = kvref.implementation()
    taken = [lengths for lengths in LENGTHS if is_taken(config, *lengths)]
    num_runs = 0
    for triple in itertools.product(taken, repeat=3):
        for shared in (True, False):
            manager = implementation.create(config, check_invariants=False)
            scheduler = Scheduler(manager)
            for number, lengths in enumerate(triple):
                first_token = 0 if shared else 100 * number
                scheduler.add(f"r{number}", *lengths, first_token=first_token)
            num_runs += 1
            if not scheduler.run():
                return num_runs, f"{triple}, {'equal' if shared else 'different'} prefixes"
    return num_runs, None


def some_run_is_stuck(model: str) -> bool:
    """Return whether admission alone lets something in that never ends."""
    return any(
        first_stuck_run(configuration(MODELS[model], num_blocks), is_admitted_alone)[1] is not None
        for num_blocks in POOL_SIZES
    )


def cap_without_plus_one_is_caught() -> bool:
    """Return whether a run gets stuck if kvref's cap of a window is one block less."""
    cap = SlidingWindowGroup.max_admission_blocks
    with patch.object(SlidingWindowGroup, "max_admission_blocks", lambda self: cap(self) - 1):
        return some_run_is_stuck("window")


def main() -> int:
    """Run the check and its twins; 0 if all answer as they must."""
    problems: list[str] = []
    num_runs = num_checks = 0
    for name, specs in MODELS.items():
        for num_blocks in POOL_SIZES:
            config = configuration(specs, num_blocks)
            for lengths in LENGTHS:  # KV-LIVE-1
                num_checks += 1
                if fits(config, *lengths) and not is_admitted_alone(config, *lengths):
                    problems.append(f"{name}, {num_blocks} blocks: refuses {lengths} when idle")
            taken = fits if ALIGNED in specs else is_admitted_alone
            runs, stuck = first_stuck_run(config, taken)  # KV-LIVE-2
            num_runs, num_checks = num_runs + runs, num_checks + 1
            if stuck is not None:
                problems.append(f"{name}, {num_blocks} blocks: never ends: {stuck}")
    twins = {
        "align without room for two states": some_run_is_stuck("full and Mamba"),
        "a window's cap without the + 1": cap_without_plus_one_is_caught(),
    }
    problems += [f"twin not caught: {name}" for name, caught in twins.items() if not caught]
    for problem in problems:
        print(problem)
    print(f"{num_runs} runs of three requests")
    print(f"{num_checks + len(twins) - len(problems)} passed, {len(problems)} failed")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
