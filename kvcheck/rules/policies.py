"""KV-POL: the choices, and that each has its effect."""

from __future__ import annotations

from dataclasses import replace

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.specs import chunked, full, mamba, sliding
from kvcheck.rules.steps import Steps
from kvspec.interface import Feature


@example("KV-POL-9", "KV-POOL-15", level=Level.SAFETY)
def free_blocks_and_those_in_use_add_up_whatever_is_declared(bench: Bench) -> None:
    wanted = (full(4), sliding(4, 6), chunked(4, 8), mamba(4))
    can = bench.subject.capabilities
    specs = [spec for spec in wanted if type(spec) in can.spec_types]
    if not bench.has(Feature.MULTIPLE_GROUPS):
        specs = specs[:1]
    manager = bench.manager(60, *specs)
    requests = [manager.request(name, range(60)) for name in "ab"]
    for new in (1, 9, 4, 7, 2):
        manager.new_step_starts()
        for request in requests:
            manager.run(request, new)
        lists = [lists for r in requests for lists in manager.get_blocks(r).to_lists()]
        in_use = {block for blocks in lists for block in blocks if block}
        equal(manager.num_free_blocks + len(in_use), 59, "free and in use")
    for request in requests:
        manager.free(request)
    equal(manager.num_free_blocks, 59, "free in the end")


@cases(("random", False), ("fixed", True))
@example("KV-POL-12", "KV-HASH-3")
def without_a_seed_first_parents_are_random_or_fixed(
    bench: Bench, chosen: str, is_equal: bool
) -> None:
    policy = replace(bench.policy, none_hash_without_seed=chosen)
    managers = [bench.manager(6, policy=policy, hash_seed=None) for _ in range(2)]
    equal(managers[0].none_hash == managers[1].none_hash, is_equal)
    if is_equal:
        seeded = bench.manager(6, policy=policy, hash_seed="vllm-none-hash")
        equal(managers[0].none_hash, seeded.none_hash)
        other = bench.manager(6, policy=policy, hash_seed="0")
        holds(other.none_hash != seeded.none_hash)


@example("KV-POL-18", "KV-BATCH-7")
def a_whole_step_counts_whom_it_admits(bench: Bench) -> None:
    """Check with two that ask and room for one of them."""
    policy = replace(bench.policy, lookups_counted="admitted")
    steps = Steps(bench, 4, policy=policy, log_stats=True)
    steps.batched.admit(steps.register(range(9), range(20, 31)))
    stats = steps.manager.make_prefix_cache_stats()
    equal((stats.requests, stats.queries_tokens), (1, 9))
