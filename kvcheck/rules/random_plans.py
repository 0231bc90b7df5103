"""Random models to plan for: check what holds for every plan, and compare with an oracle's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from random import Random

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import Example
from kvcheck.rules.judging import equal, holds
from kvspec.errors import ConfigError
from kvspec.planning import AUTO_FIT, Layers, Plan, Planner, PlanningConfig
from kvspec.policy import Policy
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    SlidingWindowSpec,
)

NAME = "random plan"
RULES = tuple(f"KV-PLAN-{number}" for number in (19, 20, 12, 15, 5, 9, 10, 13, 17, 18))


@dataclass(frozen=True)
class Case:
    workers: tuple[Layers, ...]
    config: PlanningConfig
    memory: tuple[int, ...]

    @property
    def layers(self) -> Layers:
        return tuple(layer for layers in self.workers for layer in layers)

    def plan(self, planner: Planner) -> Plan | None:
        try:
            return planner.plan(self.workers, self.config, self.memory)
        except ConfigError:
            return None


def random_plan(seed: int, number: int) -> Example:
    """Return random model `number` of a run with this seed."""
    check = partial(check_plan, seed=seed, number=number)
    return Example(f"{NAME} {seed}.{number}", RULES, check, Level.SAFETY)


def plan_of_name(name: str) -> Example:
    seed, _, number = name.removeprefix(NAME).partition(".")
    return random_plan(int(seed), int(number))


def random_case(random: Random, policy: Policy) -> Case:
    """Draw a model of one to eight layers of a few kinds, on one to three workers."""
    kinds = [_spec(random) for _ in range(random.choice((1, 2, 2, 3)))]
    mode = random.choice(("none", "all", "align"))
    kinds = [
        replace(kind, mamba_cache_mode=mode) if isinstance(kind, MambaSpec) else kind
        for kind in kinds
    ]
    layers = tuple((f"layer.{n}", random.choice(kinds)) for n in range(random.randint(1, 8)))
    cuts = sorted(random.randint(0, len(layers)) for _ in range(random.randrange(3)))
    edges = [0, *cuts, len(layers)]
    workers = tuple(layers[first:end] for first, end in pairwise(edges))
    config = PlanningConfig(
        max_model_len_tokens=random.randint(1, 90),
        max_num_batched_tokens=random.randint(1, 30),
        original_max_model_len_tokens=random.choice((None, AUTO_FIT)),
        max_encoder_tokens=random.choice((0, 9)),
        disable_hybrid=random.random() < 0.15,
        num_blocks_override=random.choice((None, None, None, random.randint(1, 120))),
        mamba_cache_mode=mode,
        block_size=4,
        dcp_world_size=random.choice((1, 1, 1, 1, 2)),
        enable_caching=random.random() < 0.5,
        packed_layout=random.random() < 0.25,
        use_eagle=random.choice((None, None, True)),
        policy=policy,
    )
    plenty = random.random() < 0.5  # half of all would be refused otherwise
    room = (20_000, 100_000) if plenty else (1, 20_000)
    return Case(workers, config, tuple(random.randint(*room) for _ in workers))


def _spec(random: Random) -> LayerSpec:
    size, head = random.choice((2, 4, 8)), random.choice((8, 8, 8, 16))
    makers: tuple[Callable[[], LayerSpec], ...] = (
        lambda: FullAttentionSpec(size, 1, head, "float16"),
        lambda: FullAttentionSpec(size, 1, head, "float16", sliding_window=random.choice((4, 8))),
        lambda: SlidingWindowSpec(
            size, 1, head, "float16", sliding_window=random.choice((1, 3, 6, 8, 16))
        ),
        lambda: ChunkedLocalAttentionSpec(
            size, 1, head, "float16", attention_chunk_size=random.choice((8, 16))
        ),
        lambda: SinkFullAttentionSpec(size, 1, head, "float16", sink_len=size),
        lambda: MLAAttentionSpec(size, 1, head, "float16"),
        lambda: CrossAttentionSpec(4, 1, 8, "float16"),
        lambda: MambaSpec(
            random.choice((2, 8, 64)), ((2, 2),), ("float32",),
            page_size_padded=random.choice((None, 256, 512)),
            num_speculative_blocks=random.randrange(3),
        ),
    )  # fmt: skip
    return random.choices(makers, (4, 1, 4, 1, 1, 2, 1, 2))[0]()


def check_plan(bench: Bench, *, seed: int, number: int) -> None:
    """Check one random model: what holds for every plan, then the oracle's results."""
    case = random_case(Random(f"{seed}.{number}"), bench.policy)
    before, planner = copy.deepcopy(case), bench.planner
    plan = case.plan(planner)
    equal(case, before, "the inputs afterwards", rule="KV-PLAN-19")
    equal(case.plan(planner), plan, "the answer again", rule="KV-PLAN-19")
    if plan is not None:
        _check_memory(bench, case, plan)
        if bench.policy.capacity_counts_null_block:
            _check_service(bench, case, plan)
    if bench.oracle is not None and bench.oracle.planner is not None:
        _compare(bench, bench.oracle.planner, case, plan)


def _check_memory(bench: Bench, case: Case, plan: Plan) -> None:
    """Check that no worker takes more than it has, and all take equally many blocks."""
    counts = {cache.num_blocks for cache in plan.configs}
    equal(len(counts), 1, "different numbers of blocks", rule="KV-PLAN-15")
    if case.config.num_blocks_override is not None:
        return
    for cache, available in zip(plan.configs, case.memory, strict=True):
        packed = {t.size_bytes for t in cache.tensors if t.block_stride_bytes is not None}
        taken = sum(t.size_bytes for t in cache.tensors if t.block_stride_bytes is None)
        taken += max(packed, default=0)
        within = taken <= available or not cache.tensors
        holds(within, f"{taken} of {available} bytes are taken", rule="KV-PLAN-12")


def _check_service(bench: Bench, case: Case, plan: Plan) -> None:
    """Check that a request of full length is served to its end in the idle pool (KV-PLAN-20)."""
    length = plan.max_model_len_tokens
    groups = bench.planner.scheduler_config(plan.configs).groups
    if not groups or not any(cache.tensors for cache in plan.configs):
        return
    manager = bench.manager(
        plan.configs[0].num_blocks,
        *(group.spec for group in groups),
        max_model_len_tokens=length,
        max_num_batched_tokens=case.config.max_num_batched_tokens,
        dcp_world_size=case.config.dcp_world_size,
        enable_caching=False,
    )
    request = manager.request("r", range(1, length + 1))
    while request.num_computed_tokens < length:
        left = length - request.num_computed_tokens
        new = min(case.config.max_num_batched_tokens, left)
        granted = manager.allocate_slots(
            request, new, num_encoder_tokens=case.config.max_encoder_tokens
        )
        what = f"{request.num_computed_tokens} of {length} tokens, then {new} more are granted"
        holds(granted is not None, what, rule="KV-PLAN-20")
        request.num_computed_tokens += new
        manager.new_step_starts()


def _compare(bench: Bench, oracle: Planner, case: Case, plan: Plan | None) -> None:
    expected = case.plan(oracle)
    equal(plan is None, expected is None, "the plan is refused", rule="KV-PLAN-9")
    if expected is not None and plan is not None:
        length = plan.max_model_len_tokens
        equal(length, expected.max_model_len_tokens, "length", rule="KV-PLAN-10")
        for right, mine in zip(expected.configs, plan.configs, strict=True):
            equal(mine.groups, right.groups, "groups", rule="KV-PLAN-5")
            equal(mine.num_blocks, right.num_blocks, "blocks", rule="KV-PLAN-12")
            equal(mine.tensors, right.tensors, "tensors", rule="KV-PLAN-13")
    questions: tuple[tuple[str, Callable[[Planner], object]], ...] = (
        ("KV-PLAN-2", lambda p: p.is_uniform(case.layers)),
        ("KV-PLAN-3", lambda p: p.uniform_type(case.layers)),
        ("KV-PLAN-7", lambda p: p.unify_hybrid(case.layers)),
        ("KV-PLAN-4", lambda p: p.unify_page_size(case.layers)),
        ("KV-PLAN-6", lambda p: p.groups(case.layers, case.config)),
        ("KV-PLAN-8", lambda p: p.max_memory_usage_bytes(case.layers, case.config)),
        (
            "KV-PLAN-10",
            lambda p: p.estimate_max_model_len(case.layers, case.config, case.memory[0]),
        ),
    )
    if plan is not None:
        cache = plan.configs[0]
        questions += (
            ("KV-PLAN-16", lambda p: p.scheduler_config(plan.configs)),
            ("KV-PLAN-17", lambda p: p.capacity(cache, case.config)),
            ("KV-PLAN-18", lambda p: p.block_sizes(cache, case.config)),
        )
    for rule, ask in questions:
        theirs, ours = _said(oracle, ask), _said(bench.planner, ask)
        equal(ours, theirs, f"the answer to {rule}", rule=rule)


def _said(planner: Planner, ask: Callable[[Planner], object]) -> object:
    """Return the result, or ConfigError if it is refused."""
    try:
        return ask(planner)
    except ConfigError:
        return ConfigError
