"""Every request that fits an idle pool ends, whoever shares the pool (KV-LIVE-1, 2, 4, 5).

For each small configuration below and each triple of requests out of a small set, a scheduler
(admission by `full_sequence_must_fit`, a budget of tokens per step, the last one preempted on a
refusal) runs kvref until all have ended, or to a bound on steps: that is a deadlock or a livelock.
The triples of `LOADS` arrive one by one, the latest is served first, tokens are loaded, some
loads fail, a drafter asks for a slot, and frees are deferred.

The requests are all those that an idle pool admits, so a cap that counts too few blocks shows. It
admits each request that fits: the most blocks it ever holds at once (`most_blocks`, summed over the
groups) are at most num_blocks - 1.

Assumptions: a step asks for at most `max_num_batched_tokens` tokens of a request; beside a Mamba
group in mode align, and beside loads, a request fits. An align group passes through a step with two
states, old and new, while admission counts one; without this assumption runs do get stuck.

Twins, which the same check must find: requests that do not fit but are admitted (align), and a
window whose cap in kvref lacks the `+ 1`.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
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
MAX_TOKENS_PER_STEP = 3
MAX_MODEL_LEN_TOKENS = 16
MAX_STEPS = 300


class Job(NamedTuple):
    """A future request. `num_stored` tokens of it can be loaded, unless its first load `fails`."""

    num_prompt: int
    num_output: int
    num_stored: int = 0
    fails: bool = False

    @property
    def num_final(self) -> int:  # tokens that get slots, without those of a drafter
        return self.num_prompt + self.num_output - 1


JOBS = (Job(1, 1), Job(3, 2), Job(4, 3), Job(7, 2), Job(9, 1))
LOADS = (Job(3, 2), Job(4, 3, 4), Job(8, 2, 8), Job(9, 2, 6, fails=True))


@dataclass(eq=False)
class Running:
    """A request, its place in the order of service, and the tokens it has yet to generate."""

    request: Request
    place: int
    job: Job
    num_left: int
    num_stored: int


class Scheduler:
    """The scheduler of KV-LIVE-2 and, `with_loads`, of KV-LIVE-4 and KV-LIVE-5."""

    def __init__(self, manager: KVCacheManager, *, with_loads: bool = False) -> None:
        self.implementation = kvref.implementation()
        self.manager = manager
        self.with_loads = with_loads
        self.lookahead = 0
        if with_loads and not any(g.spec.is_state for g in manager.config.kv_cache.groups):
            self.lookahead = 1
        self.coming: list[Running] = []
        self.waiting: list[Running] = []
        self.loading: list[Running] = []
        self.running: list[Running] = []
        self.deferred: list[tuple[int, ...]] = []

    def add(self, name: str, job: Job, *, first_token: int, place: int) -> None:
        """Queue a request whose prompt is a run of ints."""
        prompt = [first_token + n for n in range(job.num_prompt)]
        request = self.implementation.make_request(self.manager, RequestInput(name, prompt))
        self.coming.append(Running(request, place, job, job.num_output, job.num_stored))

    def run(self) -> bool:
        """Step until everything ended, or for MAX_STEPS; return whether it did."""
        for _ in range(MAX_STEPS):
            come = self.coming[:1] if self.with_loads else self.coming
            self.insert(self.waiting, *come)
            self.coming = self.coming[len(come) :]
            if not (self.waiting or self.loading or self.running or self.deferred):
                return True
            self.step()
        return False

    def step(self) -> None:
        """Serve running requests, admit, compute. Frees deferred in the last step are done."""
        self.manager.new_step_starts()
        self.end_loads()
        scheduled: dict[Running, int] = {}
        deferred, self.deferred = self.deferred, []
        for blocks in deferred:
            self.manager.free_blocks(blocks[::-1])
        refused = self.serve(scheduled)
        if not refused:
            while self.waiting and self.room(scheduled) > 0 and self.admit(scheduled):
                pass
        for item, num_new in scheduled.items():
            self.compute(item, num_new)

    def room(self, scheduled: dict[Running, int]) -> int:
        """Return how many tokens the step has left."""
        return MAX_TOKENS_PER_STEP - self.lookahead - sum(scheduled.values())

    def serve(self, scheduled: dict[Running, int]) -> bool:
        """Schedule running requests in their order; return whether one was refused."""
        refused = False
        for item in list(self.running):
            if item not in self.running or self.room(scheduled) == 0:
                continue
            wanted = item.request.num_tokens - item.request.num_computed_tokens
            num_new = min(wanted, self.room(scheduled))
            while not (is_granted := self.allocate(item, num_new)):
                refused = True
                if self.returns_suffice(item, num_new) or self.running == [item]:
                    break
                last = self.running[-1]
                self.give_back(self.running, last)
                if last is item:
                    break
            if is_granted:
                scheduled[item] = num_new
        return refused

    def allocate(self, item: Running, num_new: int) -> bool:
        lookahead = self.lookahead
        asked = self.manager.allocate_slots(item.request, num_new, num_lookahead_tokens=lookahead)
        return asked is not None

    def returns_suffice(self, item: Running, num_new: int) -> bool:
        """Check that free blocks and returning ones are enough (KV-LIVE-5)."""
        computed = item.request.num_computed_tokens
        need = self.manager.get_num_blocks_to_allocate(
            item.request,
            num_tokens=min(computed + num_new + self.lookahead, MAX_MODEL_LEN_TOKENS),
            total_computed_tokens=computed,
            num_tokens_main_model=computed + num_new,
        )
        returning = [block for blocks in self.deferred for block in blocks]
        unshared = [b for b in returning if self.manager.get_block(b).references == 1]
        return need <= self.manager.num_free_blocks + len(unshared)

    def give_back(self, held: list[Running], item: Running) -> None:
        """Take a request's blocks away; it waits again."""
        if self.with_loads:
            self.deferred.append(self.manager.pop_blocks_for_free(item.request))
        else:
            self.manager.free(item.request)
        item.request.num_computed_tokens = 0
        item.request.status = RequestStatus.PREEMPTED
        held.remove(item)
        self.insert(self.waiting, item)

    def insert(self, queue: list[Running], *items: Running) -> None:
        """Put requests where they belong in the order of service."""
        queue.extend(items)
        queue.sort(key=lambda item: item.place)

    def end_loads(self) -> None:
        """Let the loads of the step before end. A request whose load failed loads nothing more."""
        for item in list(self.loading):
            if item.job.fails and item.num_stored:
                item.num_stored = 0
                self.give_back(self.loading, item)
                continue
            request = item.request
            self.manager.cache_blocks(request, request.num_computed_tokens)
            request.num_computed_tokens = min(request.num_computed_tokens, request.num_tokens - 1)
            self.loading.remove(item)
            self.insert(self.running, item)  # at once (KV-LIVE-4)

    def admit(self, scheduled: dict[Running, int]) -> bool:
        """Admit the first that waits, if the whole of it would fit."""
        item = self.waiting[0]
        hit = self.manager.get_computed_blocks(item.request)
        external = max(item.num_stored - hit.hit_length_tokens, 0)
        num_new = item.request.num_tokens - hit.hit_length_tokens
        num_new = 0 if external else min(num_new, self.room(scheduled))
        granted = self.manager.allocate_slots(
            item.request,
            num_new,
            num_new_computed_tokens=hit.hit_length_tokens,
            new_computed_blocks=hit.blocks if hit.hit_length_tokens else None,
            num_external_computed_tokens=external,
            delay_cache_blocks=external > 0,
            num_lookahead_tokens=0 if external else self.lookahead,
            full_sequence_must_fit=True,
            has_scheduled_reqs=bool(scheduled),
        )
        if granted is None:
            return False
        item.request.num_computed_tokens = hit.hit_length_tokens + external
        item.request.status = RequestStatus.RUNNING
        self.waiting.pop(0)
        if external:
            self.loading.append(item)
        else:
            self.insert(self.running, item)
            scheduled[item] = num_new
        return True

    def compute(self, item: Running, num_new: int) -> None:
        """Compute the tokens; the last one of the sequence yields the next token."""
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
    """Configure a pool of `num_blocks` blocks for these groups."""
    groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(specs))
    return ManagerConfig(
        KVCacheConfig(num_blocks, groups),
        max_model_len_tokens=MAX_MODEL_LEN_TOKENS,
        max_num_batched_tokens=MAX_TOKENS_PER_STEP,
        hash_seed="0",
    )


def most_blocks(spec: LayerSpec, num_tokens: int) -> int:
    """Return the most blocks that a request of this final length holds in such a group."""
    tokens = num_tokens
    spare = 0
    if spec.is_state:
        return 2 + spec.num_speculative_blocks
    if spec.window_tokens:
        tokens, spare = spec.window_tokens - 1 + MAX_TOKENS_PER_STEP, 1
    elif spec.chunk_tokens:
        tokens = spec.chunk_tokens + MAX_TOKENS_PER_STEP
    capped = -(-min(tokens, MAX_MODEL_LEN_TOKENS) // spec.block_size) + spare
    return min(-(-num_tokens // spec.block_size), capped)


def fits(config: ManagerConfig, job: Job) -> bool:
    """Check that an idle pool has room for the most that the request ever holds."""
    specs = [group.spec for group in config.kv_cache.groups]
    num_tokens = job.num_final + (job in LOADS and ALIGNED not in specs)
    needed = sum(most_blocks(spec, num_tokens) for spec in specs)
    return needed <= config.kv_cache.num_blocks - 1


def is_admitted_alone(config: ManagerConfig, job: Job) -> bool:
    """Check that an idle pool takes the request at its final length."""
    implementation = kvref.implementation()
    manager = implementation.create(config, check_invariants=False)
    whole = RequestInput("whole", list(range(job.num_final)))
    request = implementation.make_request(manager, whole)
    first = min(request.num_tokens, MAX_TOKENS_PER_STEP)
    return manager.allocate_slots(request, first, full_sequence_must_fit=True) is not None


def first_stuck_run(config: ManagerConfig, jobs: Sequence[Job]) -> tuple[int, str | None]:
    """Return how many runs were made with these, and the first that did not end, in words."""
    implementation = kvref.implementation()
    num_runs = 0
    for triple in itertools.product(jobs, repeat=3):
        for shared in (True, False):
            manager = implementation.create(config, check_invariants=False)
            scheduler = Scheduler(manager, with_loads=set(jobs) <= set(LOADS))
            for number, job in enumerate(triple):
                first_token = 0 if shared else 100 * number
                place = -number if scheduler.with_loads else number
                scheduler.add(f"r{number}", job, first_token=first_token, place=place)
            num_runs += 1
            if not scheduler.run():
                return num_runs, f"{triple}, {'equal' if shared else 'different'} prefixes"
    return num_runs, None


def some_run_is_stuck(model: str) -> bool:
    """Return whether admission alone lets something in that never ends."""
    return any(
        first_stuck_run(config, taken)[1]
        for config in (configuration(MODELS[model], num_blocks) for num_blocks in POOL_SIZES)
        if (taken := [job for job in JOBS if is_admitted_alone(config, job)])
    )


def cap_without_plus_one_is_caught() -> bool:
    """Return whether a run gets stuck if kvref's cap of a window is one block less."""
    cap = SlidingWindowGroup.max_admission_blocks
    with patch.object(SlidingWindowGroup, "max_admission_blocks", lambda self: cap(self) - 1):
        return some_run_is_stuck("window")


def main() -> int:
    """Run the check and its twins; return 0 if all give the expected result."""
    problems: list[str] = []
    num_runs = num_checks = 0
    for name, specs in MODELS.items():
        for num_blocks in POOL_SIZES:
            config = configuration(specs, num_blocks)
            for job in JOBS:  # KV-LIVE-1
                num_checks += 1
                if fits(config, job) and not is_admitted_alone(config, job):
                    problems.append(f"{name}, {num_blocks} blocks: refuses {job} when idle")
            taken = fits if ALIGNED in specs else is_admitted_alone
            for jobs in (  # KV-LIVE-2, and KV-LIVE-4
                [job for job in JOBS if taken(config, job)],
                [job for job in LOADS if fits(config, job)],
            ):
                runs, stuck = first_stuck_run(config, jobs)
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
