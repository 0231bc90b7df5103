"""Whole engine steps: slots, rows, tokens (KV-BATCH-9 … KV-BATCH-13)."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import cross, encoder_only, full, mamba, sliding
from kvcheck.rules.steps import UNTOUCHED, Steps, rows_of, slots_of
from kvspec.batched import StepOutput, StepPlan
from kvspec.errors import InvalidArgumentError, UnknownBlockError
from kvspec.interface import Feature
from kvspec.specs import LayerSpec


@example("KV-BATCH-9")
def slots_are_those_of_the_granted_tokens_in_order(bench: Bench) -> None:
    steps = Steps(bench)
    (a,), (b,) = steps.admitted(range(9)), steps.register([50, 51])
    steps.batched.append([a], [9, 10], [2])
    plan = StepPlan(decoding=[a], decode_tokens=2, new=[b])
    _, _, slots = steps.write(plan, g0=6)
    (third,), (first,) = steps.lists(a)[0][2:], steps.lists(b)[0]
    expected = [third * 4 + 1, third * 4 + 2, first * 4, first * 4 + 1]
    equal(slots, [[*expected, UNTOUCHED, UNTOUCHED]])


@example("KV-BATCH-9")
def a_hit_has_no_slots(bench: Bench) -> None:
    steps = Steps(bench)
    steps.admitted(range(9))
    (b,) = steps.register([*range(8), 99])
    _, _, slots = steps.write(StepPlan(new=[b]), g0=9)
    equal(slots, [[steps.lists(b)[0][2] * 4, *[UNTOUCHED] * 8]])


@example("KV-BATCH-9", "KV-BATCH-10")
def each_group_has_its_slots_and_rows(bench: Bench) -> None:
    steps = Steps(bench, 30, specs=[full(4), sliding(2, 3), mamba(4)])
    (a,) = steps.register(range(7))
    _, rows, slots = steps.write(StepPlan(new=[a]), g0=7, g1=7)
    lists = steps.lists(a)
    equal(
        rows, [(a, g, i, block) for g, blocks in enumerate(lists) for i, block in enumerate(blocks)]
    )
    equal(slots[0], [lists[0][p // 4] * 4 + p % 4 for p in range(7)])
    equal(slots[1], [lists[1][p // 2] * 2 + p % 2 for p in range(7)])
    equal(slots[2], None)


@example("KV-BATCH-9")
def context_parallelism_widens_the_slots_of_a_block(bench: Bench) -> None:
    steps = Steps(bench, block_size=2, dcp_world_size=2)
    (a,) = steps.register(range(6))
    _, _, slots = steps.write(StepPlan(new=[a]), g0=6)
    equal(slots, [[steps.lists(a)[0][p // 4] * 4 + p % 4 for p in range(6)]])


@cases(mamba(4), cross(4), encoder_only(4))
@example("KV-BATCH-9")
def blocks_without_a_slot_per_token_have_no_mapping(bench: Bench, other: Any) -> None:
    steps = Steps(bench, specs=[full(4), other], enable_caching=False)
    handles = steps.register([1])
    output = StepOutput(slot_mappings=[slots_of(1), slots_of(1)])
    with raises(InvalidArgumentError, field="slot_mappings[1]"):
        steps.batched.admit(handles, output=output)
    output = StepOutput(slot_mappings=[slots_of(1), None])
    equal(steps.batched.admit(handles, output=output).num_slots, 1)


@example("KV-BATCH-9")
def a_mapping_must_hold_what_the_step_may_schedule(bench: Bench) -> None:
    bench.need(Feature.DRAFTING)
    steps = Steps(bench)
    (a,), new = steps.admitted(range(3)), steps.register(range(9), range(40, 49))
    plan = StepPlan(decoding=[a], decode_tokens=2, new=new, max_new_tokens=[4, 99], token_budget=9)
    for length in (8, 0):
        with raises(InvalidArgumentError, field="slot_mappings[0]"):
            steps.batched.step(plan, StepOutput(slot_mappings=[slots_of(length)]))
    equal(steps.batched.step(plan, StepOutput(slot_mappings=[slots_of(9)])).num_slots, 9)


@example("KV-BATCH-10")
def rows_tell_each_entry_once(bench: Bench) -> None:
    steps = Steps(bench)
    b, c = steps.register(range(9), [*range(8), 99])
    _, rows, _ = steps.write(StepPlan(new=[b, c]))
    told = [(h, 0, i, block) for h in (b, c) for i, block in enumerate(steps.lists(h)[0])]
    equal(rows, told)
    equal(steps.lists(c)[0][:2], steps.lists(b)[0][:2])
    steps.batched.append([b], [1])
    equal(steps.write(StepPlan(decoding=[b]))[1], [])
    steps.batched.append([b], range(2, 5), 3)
    _, rows, _ = steps.write(StepPlan(decoding=[b], decode_tokens=3))
    equal(rows, [(b, 0, 3, steps.lists(b)[0][3])])


@example("KV-BATCH-10")
def steps_without_output_are_reported_with_the_next_grant(bench: Bench) -> None:
    steps = Steps(bench)
    (a,) = steps.register(range(12))
    steps.batched.admit([a], 3)
    request = steps.of(a)
    holds(steps.manager.allocate_slots(request, 3) is not None)
    request.num_computed_tokens += 3
    _, rows, _ = steps.write(StepPlan(prefilling=[a], prefill_tokens=3))
    equal([row[2] for row in rows], [0, 1, 2])
    steps.batched.append([a], [1, 2], 2)
    steps.batched.decode([a], 4)  # begins a block
    _, rows, _ = steps.write(StepPlan(decoding=[a]))  # begins none
    equal(rows, [(a, 0, 3, steps.lists(a)[0][3])])


@cases(True, False)
@example("KV-BATCH-10")
def a_list_that_grew_is_reported_though_the_next_step_begins_no_block(
    bench: Bench, alone: Any
) -> None:
    """Slots for drafts are taken by a single call, or by a step without output."""
    bench.need(Feature.DRAFTING)
    steps = Steps(bench)
    (a,) = steps.register(range(9))
    steps.write(StepPlan(new=[a]))
    steps.batched.append([a], [1])
    equal(steps.write(StepPlan(decoding=[a]))[1], [])
    steps.batched.append([a], [2])
    if alone:
        holds(steps.manager.allocate_slots(steps.of(a), 1, num_lookahead_tokens=2) is not None)
    else:
        steps.batched.step(StepPlan(decoding=[a], num_lookahead_tokens=3))
        steps.batched.rewind([a], 1)
    equal(len(steps.lists(a)[0]), 4)
    equal(steps.write(StepPlan(decoding=[a]))[1], [(a, 0, 3, steps.lists(a)[0][3])])
    equal(steps.batched.num_pending_deltas(), 0)


@example("KV-BATCH-6")
def a_request_that_single_calls_freed_and_admitted_again_has_the_slots_of_its_new_list(
    bench: Bench,
) -> None:
    steps = Steps(bench, 20)
    (a,) = steps.register(range(14))
    steps.write(StepPlan(new=[a]))
    request = steps.of(a)
    steps.manager.free(request)
    request.num_computed_tokens = 0
    holds(steps.manager.allocate_slots(request, 3) is not None)
    request.num_computed_tokens = 3
    steps.batched.step(StepPlan(prefilling=[a], prefill_tokens=1))
    steps.batched.step(StepPlan(prefilling=[a], prefill_tokens=1))
    equal(request.num_computed_tokens, 5)
    equal(len(steps.lists(a)[0]), 2)


@example("KV-BATCH-10")
def a_hit_in_a_window_is_reported_with_its_nulls(bench: Bench) -> None:
    steps = Steps(bench, 20, specs=[sliding(4, 5)])
    (a,) = steps.admitted(range(17))
    (b,) = steps.register([*range(16), 99])
    _, rows, _ = steps.write(StepPlan(new=[b]))
    equal([row[3] for row in rows], steps.lists(b)[0])
    equal([row[3] for row in rows][:3], [0, 0, 0])
    equal(steps.of(a).num_computed_tokens, 17)


@example("KV-BATCH-10")
def what_a_request_gave_back_is_told_anew(bench: Bench) -> None:
    steps = Steps(bench)
    (a,) = steps.register(range(9))
    _, first, _ = steps.write(StepPlan(new=[a]))
    steps.batched.preempt([a])
    equal(steps.batched.num_pending_deltas(), 0)
    _, again, _ = steps.write(StepPlan(new=[a]))
    equal([row[:3] for row in again], [row[:3] for row in first])


@example("KV-BATCH-11")
def rows_without_room_stay_for_later(bench: Bench) -> None:
    steps = Steps(bench)
    b, c = steps.register(range(9), range(20, 29))
    result, _, _ = steps.write(StepPlan(new=[b, c]), num_rows=4)
    equal((result.num_deltas, result.num_deltas_left), (4, 2))
    equal(steps.batched.num_pending_deltas(), 2)
    rest = rows_of(1)
    for index in (1, 2):
        equal(steps.batched.take_deltas(rest), 1)
        equal(rest.tolist(), [[c, 0, index, steps.lists(c)[0][index]]])
    equal(steps.batched.take_deltas(rest), 0)
    (d,) = steps.register(range(40, 49))
    steps.write(StepPlan(new=[d]), num_rows=1)
    steps.batched.append([d], [1])
    _, rows, _ = steps.write(StepPlan(decoding=[d]))  # a step that needs no block tells them, too
    equal(rows, [(d, 0, index, steps.lists(d)[0][index]) for index in (1, 2)])


@example("KV-BATCH-11")
def the_rest_is_told_in_the_order_of_handles(bench: Bench) -> None:
    steps = Steps(bench)
    handles = steps.register(range(5), range(20, 25), [1])
    steps.batched.admit(handles[::-1])
    equal(steps.batched.num_pending_deltas(), 5)
    rows = rows_of(6)
    equal(steps.batched.take_deltas(rows), 5)
    equal([row[0] for row in rows.tolist()], [0, 0, 1, 1, 2, UNTOUCHED])


@example("KV-BATCH-11")
def without_room_for_rows_nothing_is_left_over(bench: Bench) -> None:
    steps = Steps(bench)
    result = steps.batched.admit(steps.register(range(9)))
    equal((result.num_deltas, result.num_deltas_left), (0, 0))


@example("KV-BATCH-12")
def tokens_are_dealt_out_by_their_counts(bench: Bench) -> None:
    steps = Steps(bench)
    a, b = steps.register([1], [2])
    steps.batched.append([a, b], array("i", [7, 8, 9]), [1, 2])
    steps.batched.append([a, b], [3], array("i", [0, 1]))
    steps.batched.append([], [])
    with raises(InvalidArgumentError):
        steps.batched.append([a, b], [1, 2, 3])
    equal([list(steps.of(h).token_ids) for h in (a, b)], [[1, 7], [2, 8, 9, 3]])


@cases(("asked", (2, 10, 8)), ("admitted", (0, 0, 0)))
@example("KV-BATCH-12", "KV-POL-18")
def a_lookup_counts_and_admits_nobody(
    bench: Bench, counted: str, told: tuple[int, int, int]
) -> None:
    bench.need(Feature.BATCHED, Feature.LATER_CHOICES)
    policy = replace(bench.policy, lookups_counted=counted)
    steps = Steps(bench, policy=policy, log_stats=True)
    steps.admitted(range(9))
    b, c = steps.register([*range(8), 50], [99])
    steps.manager.make_prefix_cache_stats()
    equal(steps.batched.lookup([c, b]).tolist(), [0, 8])
    stats = steps.manager.make_prefix_cache_stats()
    holds(stats is not None)
    equal((stats.requests, stats.queries_tokens, stats.hits_tokens), told)
    equal(steps.lists(b), [[]])


@example("KV-BATCH-12")
def no_more_is_taken_back_than_was_computed(bench: Bench) -> None:
    steps = Steps(bench)
    a, b = steps.admitted(range(4), range(20, 22))
    steps.batched.rewind([a, b], [0, 2])
    with raises(InvalidArgumentError, field="num_tokens[1]"):
        steps.batched.rewind([a, b], 1)
    equal([steps.of(h).num_computed_tokens for h in (a, b)], [4, 0])


@cases([full(4)], [full(4), sliding(4, 8)])
@example("KV-BATCH-6", "KV-BATCH-12")
def a_request_that_was_rewound_to_its_start_is_running(
    bench: Bench, specs: list[LayerSpec]
) -> None:
    """It still holds its block, which has slots for the tokens that are computed again."""
    steps = Steps(bench, specs=specs)
    (a,) = steps.admitted(range(4))
    held = steps.lists(a)
    steps.batched.rewind([a], [4])
    equal(steps.of(a).num_computed_tokens, 0)
    equal(steps.batched.decode([a], 3).num_scheduled_tokens.tolist(), [3])
    equal(steps.of(a).num_computed_tokens, 3)
    equal(steps.lists(a), held)


@example("KV-BATCH-13", level=Level.IDENTITY)
def the_blocks_taken_next_can_be_asked_for(bench: Bench) -> None:
    steps = Steps(bench)
    a, _ = steps.admitted(range(9), range(20, 25))
    steps.batched.free([a])
    steps.state()  # empties the queues
    before = steps.state()
    queue = list(steps.manager.snapshot().free_queue)
    for number in (0, 1, 3, len(queue), 1000):
        equal(steps.batched.next_free_blocks(number).tolist(), queue[:number])
    equal(steps.state(), before)
    (c,) = steps.register(range(40, 49))
    foreseen = steps.batched.next_free_blocks(3).tolist()
    steps.batched.admit([c])
    equal(steps.lists(c), [foreseen])


@example("KV-BATCH-15", level=Level.IDENTITY)
def the_queue_can_be_walked_along(bench: Bench) -> None:
    """Behind each free block stands the rest of the queue."""
    steps = Steps(bench)
    a, _ = steps.admitted(range(9), range(20, 25))
    steps.batched.free([a])
    before = steps.manager.snapshot()
    queue = list(before.free_queue)
    for place, block in enumerate(queue):
        for number in (0, 2, 1000):
            behind = steps.batched.next_free_blocks(number, after=block).tolist()
            equal(behind, queue[place + 1 :][:number])
    equal(steps.batched.next_free_blocks(2, after=None).tolist(), queue[:2])
    equal(steps.manager.snapshot(), before)


@cases(
    (0, InvalidArgumentError),
    (5, InvalidArgumentError),
    (-1, UnknownBlockError),
    (12, UnknownBlockError),
    (True, UnknownBlockError),
    ("7", UnknownBlockError),
)
@example("KV-BATCH-15", level=Level.IDENTITY)
def what_is_not_in_the_queue_has_nothing_behind_it(
    bench: Bench, after: Any, error: type[Exception]
) -> None:
    """Null, a block in use, and what is no block of the 12."""
    steps = Steps(bench)
    steps.admitted(range(20))
    with steps.manager.refuses(error):
        steps.batched.next_free_blocks(2, after=after)


@cases(-1, True, 1.0, None, 2**53)
@example("KV-BATCH-13", level=Level.SAFETY)
def a_number_of_blocks_is_an_int_from_0_on(bench: Bench, number: Any) -> None:
    with raises(InvalidArgumentError, field="num_blocks"):
        Steps(bench).batched.next_free_blocks(number)


@example("KV-BATCH-13")
def lengths_of_lists_come_handle_after_handle(bench: Bench) -> None:
    steps = Steps(bench, 20, specs=[full(4), sliding(4, 5)])
    a, b, c = steps.register(range(17), [1], [2])
    steps.batched.admit([a, b])
    steps.batched.append([a], range(17, 30), 13)
    steps.batched.decode([a], 13)
    holds(0 in steps.lists(a)[1])
    equal(steps.batched.list_lengths([b, c, a]).tolist(), [1, 1, 0, 0, 8, 8])
    equal(steps.batched.list_lengths([]).tolist(), [])
    with raises(InvalidArgumentError, field="handles[1]"):
        steps.batched.list_lengths([a, 7])
