"""Whole engine steps: slots, rows, tokens (KV-BATCH-9 … KV-BATCH-13)."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from kvspec.batched import StepOutput, StepPlan
from kvspec.errors import InvalidArgumentError
from tests.rules.batches import UNTOUCHED, MakeSteps, rows_of, slots_of
from tests.rules.builders import full
from tests.rules.specs import cross, encoder_only, mamba, sliding


@pytest.mark.rule("KV-BATCH-9")
def test_slots_are_those_of_the_granted_tokens_in_order(make_steps: MakeSteps) -> None:
    steps = make_steps()
    (a,), (b,) = steps.admitted(range(9)), steps.register([50, 51])
    steps.batched.append([a], [9, 10], [2])
    plan = StepPlan(decoding=[a], decode_tokens=2, new=[b])
    _, _, slots = steps.write(plan, g0=6)
    (third,), (first,) = steps.lists(a)[0][2:], steps.lists(b)[0]
    expected = [third * 4 + 1, third * 4 + 2, first * 4, first * 4 + 1]
    assert slots == [[*expected, UNTOUCHED, UNTOUCHED]]


@pytest.mark.rule("KV-BATCH-9")
def test_a_hit_has_no_slots(make_steps: MakeSteps) -> None:
    steps = make_steps()
    steps.admitted(range(9))
    (b,) = steps.register([*range(8), 99])
    _, _, slots = steps.write(StepPlan(new=[b]), g0=9)
    assert slots == [[steps.lists(b)[0][2] * 4, *[UNTOUCHED] * 8]]


@pytest.mark.rule("KV-BATCH-9", "KV-BATCH-10")
def test_each_group_has_its_slots_and_rows(make_steps: MakeSteps) -> None:
    steps = make_steps(30, specs=[full(4), sliding(2, 3), mamba(4)])
    (a,) = steps.register(range(7))
    _, rows, slots = steps.write(StepPlan(new=[a]), g0=7, g1=7)
    lists = steps.lists(a)
    assert rows == [
        (a, g, i, block) for g, blocks in enumerate(lists) for i, block in enumerate(blocks)
    ]
    assert slots[0] == [lists[0][p // 4] * 4 + p % 4 for p in range(7)]
    assert slots[1] == [lists[1][p // 2] * 2 + p % 2 for p in range(7)]
    assert slots[2] is None


@pytest.mark.rule("KV-BATCH-9")
def test_context_parallelism_widens_a_block(make_steps: MakeSteps) -> None:
    steps = make_steps(block_size=2, dcp_world_size=2)
    (a,) = steps.register(range(6))
    _, _, slots = steps.write(StepPlan(new=[a]), g0=6)
    assert slots == [[steps.lists(a)[0][p // 4] * 4 + p % 4 for p in range(6)]]


@pytest.mark.rule("KV-BATCH-9")
@pytest.mark.parametrize("other", [mamba(4), cross(4), encoder_only(4)], ids=lambda s: s.kind)
def test_blocks_without_a_slot_per_token_have_no_mapping(make_steps: MakeSteps, other: Any) -> None:
    steps = make_steps(specs=[full(4), other], enable_caching=False)
    handles = steps.register([1])
    output = StepOutput(slot_mappings=[slots_of(1), slots_of(1)])
    with pytest.raises(InvalidArgumentError) as error:
        steps.batched.admit(handles, output=output)
    assert error.value.field == "slot_mappings[1]"
    output = StepOutput(slot_mappings=[slots_of(1), None])
    assert steps.batched.admit(handles, output=output).num_slots == 1


@pytest.mark.rule("KV-BATCH-9")
def test_a_mapping_must_hold_what_the_step_may_schedule(make_steps: MakeSteps) -> None:
    steps = make_steps()
    (a,), new = steps.admitted(range(3)), steps.register(range(9), range(40, 49))
    plan = StepPlan(decoding=[a], decode_tokens=2, new=new, max_new_tokens=[4, 99], token_budget=9)
    for length in (8, 0):
        with pytest.raises(InvalidArgumentError) as error:
            steps.batched.step(plan, StepOutput(slot_mappings=[slots_of(length)]))
        assert error.value.field == "slot_mappings[0]"
    assert steps.batched.step(plan, StepOutput(slot_mappings=[slots_of(9)])).num_slots == 9


@pytest.mark.rule("KV-BATCH-10")
def test_rows_tell_each_entry_once(make_steps: MakeSteps) -> None:
    steps = make_steps()
    b, c = steps.register(range(9), [*range(8), 99])
    _, rows, _ = steps.write(StepPlan(new=[b, c]))
    told = [(h, 0, i, block) for h in (b, c) for i, block in enumerate(steps.lists(h)[0])]
    assert rows == told
    assert steps.lists(c)[0][:2] == steps.lists(b)[0][:2]
    steps.batched.append([b], [1])
    assert steps.write(StepPlan(decoding=[b]))[1] == []
    steps.batched.append([b], range(2, 5), 3)
    _, rows, _ = steps.write(StepPlan(decoding=[b], decode_tokens=3))
    assert rows == [(b, 0, 3, steps.lists(b)[0][3])]


@pytest.mark.rule("KV-BATCH-10")
def test_steps_without_output_are_reported_with_the_next_grant(make_steps: MakeSteps) -> None:
    steps = make_steps()
    (a,) = steps.register(range(12))
    steps.batched.admit([a], 3)
    request = steps.of(a)
    assert steps.manager.allocate_slots(request, 3) is not None
    request.num_computed_tokens += 3
    _, rows, _ = steps.write(StepPlan(prefilling=[a], prefill_tokens=3))
    assert [row[2] for row in rows] == [0, 1, 2]


@pytest.mark.rule("KV-BATCH-10")
def test_a_hit_in_a_window_is_reported_with_its_nulls(make_steps: MakeSteps) -> None:
    steps = make_steps(20, specs=[sliding(4, 5)])
    (a,) = steps.admitted(range(17))
    (b,) = steps.register([*range(16), 99])
    _, rows, _ = steps.write(StepPlan(new=[b]))
    assert [row[3] for row in rows] == steps.lists(b)[0]
    assert [row[3] for row in rows][:3] == [0, 0, 0]
    assert steps.of(a).num_computed_tokens == 17


@pytest.mark.rule("KV-BATCH-10")
def test_what_a_request_gave_back_is_told_anew(make_steps: MakeSteps) -> None:
    steps = make_steps()
    (a,) = steps.register(range(9))
    _, first, _ = steps.write(StepPlan(new=[a]))
    steps.batched.preempt([a])
    assert steps.batched.num_pending_deltas() == 0
    _, again, _ = steps.write(StepPlan(new=[a]))
    assert [row[:3] for row in again] == [row[:3] for row in first]


@pytest.mark.rule("KV-BATCH-11")
def test_rows_without_room_stay_for_later(make_steps: MakeSteps) -> None:
    steps = make_steps()
    b, c = steps.register(range(9), range(20, 29))
    result, _, _ = steps.write(StepPlan(new=[b, c]), num_rows=4)
    assert (result.num_deltas, result.num_deltas_left) == (4, 2)
    assert steps.batched.num_pending_deltas() == 2
    rest = rows_of(1)
    for index in (1, 2):
        assert steps.batched.take_deltas(rest) == 1
        assert rest.tolist() == [[c, 0, index, steps.lists(c)[0][index]]]
    assert steps.batched.take_deltas(rest) == 0


@pytest.mark.rule("KV-BATCH-11")
def test_the_rest_is_told_in_the_order_of_handles(make_steps: MakeSteps) -> None:
    steps = make_steps()
    handles = steps.register(range(5), range(20, 25), [1])
    steps.batched.admit(handles[::-1])
    assert steps.batched.num_pending_deltas() == 5
    rows = rows_of(6)
    assert steps.batched.take_deltas(rows) == 5
    assert [row[0] for row in rows.tolist()] == [0, 0, 1, 1, 2, UNTOUCHED]


@pytest.mark.rule("KV-BATCH-11")
def test_without_room_for_rows_nothing_is_left_over(make_steps: MakeSteps) -> None:
    steps = make_steps()
    result = steps.batched.admit(steps.register(range(9)))
    assert (result.num_deltas, result.num_deltas_left) == (0, 0)


@pytest.mark.rule("KV-BATCH-12")
def test_tokens_are_dealt_out_by_their_counts(make_steps: MakeSteps) -> None:
    steps = make_steps()
    a, b = steps.register([1], [2])
    steps.batched.append([a, b], array("i", [7, 8, 9]), [1, 2])
    steps.batched.append([a, b], [3], array("i", [0, 1]))
    steps.batched.append([], [])
    assert [list(steps.of(h).token_ids) for h in (a, b)] == [[1, 7], [2, 8, 9, 3]]


@pytest.mark.rule("KV-BATCH-12")
def test_a_lookup_counts_and_admits_nobody(make_steps: MakeSteps) -> None:
    steps = make_steps(log_stats=True)
    steps.admitted(range(9))
    b, c = steps.register([*range(8), 50], [99])
    steps.manager.make_prefix_cache_stats()
    assert steps.batched.lookup([c, b]).tolist() == [0, 8]
    stats = steps.manager.make_prefix_cache_stats()
    assert stats is not None
    assert (stats.requests, stats.queries_tokens, stats.hits_tokens) == (2, 10, 8)
    assert steps.lists(b) == [[]]


@pytest.mark.rule("KV-BATCH-12")
def test_no_more_is_taken_back_than_was_computed(make_steps: MakeSteps) -> None:
    steps = make_steps()
    a, b = steps.admitted(range(4), range(20, 22))
    steps.batched.rewind([a, b], [0, 2])
    with pytest.raises(InvalidArgumentError) as error:
        steps.batched.rewind([a, b], 1)
    assert error.value.field == "num_tokens[1]"
    assert [steps.of(h).num_computed_tokens for h in (a, b)] == [4, 0]


@pytest.mark.rule("KV-BATCH-13")
def test_the_blocks_taken_next_can_be_asked_for(make_steps: MakeSteps) -> None:
    steps = make_steps()
    a, _ = steps.admitted(range(9), range(20, 25))
    steps.batched.free([a])
    steps.state()  # empties the queues
    before = steps.state()
    queue = list(steps.manager.snapshot().free_queue)
    for number in (0, 1, 3, len(queue), 1000):
        assert steps.batched.next_free_blocks(number).tolist() == queue[:number]
    assert steps.state() == before
    (c,) = steps.register(range(40, 49))
    foreseen = steps.batched.next_free_blocks(3).tolist()
    steps.batched.admit([c])
    assert steps.lists(c) == [foreseen]


@pytest.mark.rule("KV-BATCH-13")
@pytest.mark.parametrize("number", [-1, True, 1.0, None, 2**53])
def test_a_number_of_blocks_is_an_int_from_0_on(make_steps: MakeSteps, number: Any) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        make_steps().batched.next_free_blocks(number)
    assert error.value.field == "num_blocks"


@pytest.mark.rule("KV-BATCH-13")
def test_lengths_of_lists_come_handle_after_handle(make_steps: MakeSteps) -> None:
    steps = make_steps(20, specs=[full(4), sliding(4, 5)])
    a, b, c = steps.register(range(17), [1], [2])
    steps.batched.admit([a, b])
    steps.batched.append([a], range(17, 30), 13)
    steps.batched.decode([a], 13)
    assert 0 in steps.lists(a)[1]
    assert steps.batched.list_lengths([b, c, a]).tolist() == [1, 1, 0, 0, 8, 8]
    assert steps.batched.list_lengths([]).tolist() == []
    with pytest.raises(InvalidArgumentError) as error:
        steps.batched.list_lengths([a, 7])
    assert error.value.field == "handles[1]"
