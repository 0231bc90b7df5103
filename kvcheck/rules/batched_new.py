"""Whole engine steps: new requests, and the budget (KV-BATCH-7, KV-BATCH-8)."""

from __future__ import annotations

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.steps import UNTOUCHED, Steps
from kvspec.batched import StepPlan
from kvspec.interface import Feature
from kvspec.request import RequestStatus


@example("KV-BATCH-7")
def a_new_request_hits_what_one_before_it_cached(bench: Bench) -> None:
    steps = Steps(bench, log_stats=True)
    b, c = steps.register(range(9), [*range(8), 99])
    result = steps.batched.admit([b, c], token_budget=12)
    equal(result.num_scheduled_tokens.tolist(), [9, 1])
    equal(result.hit_tokens.tolist(), [0, 8])
    equal([steps.of(handle).status for handle in (b, c)], [RequestStatus.RUNNING] * 2)
    stats = steps.manager.make_prefix_cache_stats()
    holds(stats is not None)
    equal((stats.requests, stats.hits_tokens), (2, 8))


@example("KV-BATCH-7")
def the_watermark_counts_beside_what_the_step_granted(bench: Bench) -> None:
    """11 free, 4 kept: a request of 9 blocks is admitted alone, and refused beside another."""
    granted = []
    for alone in (True, False):
        steps = Steps(bench, watermark=0.34)
        other, long = steps.register([1], range(100, 136))
        new = [long] if alone else [other, long]
        granted.append(steps.batched.admit(new).num_scheduled_tokens.tolist())
    equal(granted, [[36], [1, 0]])


@example("KV-BATCH-7")
def options_for_new_requests_do_not_bind_others(bench: Bench) -> None:
    bench.need(Feature.ADMISSION)
    steps = Steps(bench)
    (a,), (b,) = steps.admitted(range(4)), steps.register(range(20, 60))
    steps.batched.append([a], [4])
    plan = StepPlan(
        decoding=[a], new=[b], max_new_tokens=4, reserved_blocks=9, full_sequence_must_fit=True
    )
    equal(steps.batched.step(plan).num_scheduled_tokens.tolist(), [1, 0])
    equal(steps.batched.admit([b], 4, full_sequence_must_fit=True).num_slots, 0)
    equal(steps.batched.admit([b], 4, reserved_blocks=9).num_slots, 0)
    equal(steps.batched.admit([b], 4, reserved_blocks=8).num_slots, 4)


@example("KV-BATCH-7")
def a_refused_hit_is_told_as_none(bench: Bench) -> None:
    steps = Steps(bench, num_blocks=6, log_stats=True)
    a, b, c = steps.register(range(12), [*range(8), *range(50, 62)], [7])
    steps.batched.admit([a])
    result = steps.batched.admit([b, c])
    equal(result.num_scheduled_tokens.tolist(), [0, 1])
    equal(result.hit_tokens.tolist(), [0, 0])
    stats = steps.manager.make_prefix_cache_stats()
    holds(stats is not None)
    equal(stats.hits_tokens, 8 if bench.policy.lookups_counted == "asked" else 0)
    holds(steps.of(b).status is RequestStatus.WAITING)


@example("KV-BATCH-8")
def new_requests_share_what_running_ones_leave_of_the_budget(bench: Bench) -> None:
    steps = Steps(bench, 20, log_stats=True)
    running = steps.admitted(range(3), range(10, 13))
    new = steps.register(range(20, 40), range(50, 54))
    steps.batched.append(running, [1, 2])
    steps.manager.make_prefix_cache_stats()
    plan = StepPlan(decoding=running, new=new, token_budget=16)
    result = steps.batched.step(plan)
    equal(result.num_scheduled_tokens.tolist(), [1, 1, 14, 0])
    stats = steps.manager.make_prefix_cache_stats()
    holds(stats is not None)
    equal(stats.requests, 1)


@example("KV-BATCH-8")
def running_requests_are_served_beyond_the_budget(bench: Bench) -> None:
    bench.need(Feature.DRAFTING)
    steps = Steps(bench)
    (a,), (b,) = steps.admitted(range(3)), steps.register([1, 2])
    result = steps.batched.step(StepPlan(decoding=[a], decode_tokens=3, new=[b], token_budget=2))
    equal(result.num_scheduled_tokens.tolist(), [3, 0])


@example("KV-BATCH-8")
def after_a_refusal_later_ones_are_tried_unless_told_otherwise(bench: Bench) -> None:
    for stops, granted in ((True, [0, 0]), (False, [0, 3])):
        steps = Steps(bench, num_blocks=4)
        handles = steps.register(range(30), range(50, 53))
        result = steps.batched.admit(handles, stops_at_refusal=stops)
        equal(result.num_scheduled_tokens.tolist(), granted)


@example("KV-BATCH-8")
def a_refused_decode_leaves_its_tokens_in_the_budget(bench: Bench) -> None:
    bench.need(Feature.DRAFTING)
    steps = Steps(bench, num_blocks=4)
    (a,), (b,) = steps.admitted(range(8)), steps.register(range(20, 24))
    plan = StepPlan(decoding=[a], decode_tokens=8, new=[b], token_budget=8)
    _, _, slots = steps.write(plan, g0=8)
    block = steps.lists(b)[0][0]
    equal(slots, [[*(block * 4 + p for p in range(4)), *[UNTOUCHED] * 4]])
