"""Whole engine steps: what is granted, in which order (KV-BATCH-1, KV-BATCH-4 … KV-BATCH-6)."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import chunked, encoder_only, full, mamba, sliding
from kvcheck.rules.steps import UNTOUCHED, Steps, rows_of, slots_of
from kvspec.batched import BatchedManager, StepOutput, StepPlan
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature
from kvspec.request import RequestStatus


@example("KV-BATCH-1")
def what_ends_in_a_step_makes_room_for_what_begins_in_it(bench: Bench) -> None:
    steps = Steps(bench)
    (a,) = steps.admitted(range(12))
    (b,) = steps.register(range(100, 136))
    equal(steps.batched.admit([b]).num_scheduled_tokens.tolist(), [0])
    result = steps.batched.step(StepPlan(finished=[a], new=[b]))
    equal(result.num_scheduled_tokens.tolist(), [36])
    equal(result.num_slots, 36)


@example("KV-BATCH-1")
def a_step_is_done_in_the_order_of_its_plan(bench: Bench) -> None:
    """The block that decoding takes is the one that the preempted request gave back."""
    steps = Steps(bench, num_blocks=5)
    a, b = steps.admitted(range(8), range(20, 28))
    steps.batched.append([b], [1])
    result, rows, _ = steps.write(StepPlan(preempted=[a], decoding=[b]), num_rows=9)
    equal(result.num_scheduled_tokens.tolist(), [1])
    equal(rows[-1], (b, 0, 2, steps.lists(b)[0][2]))
    equal(steps.lists(a), [[]])


@example("KV-BATCH-1")
def a_step_starts_when_the_plan_says_so(bench: Bench) -> None:
    """A Mamba state that was registered in this step cannot be hit in it (KV-MAMBA-2)."""
    texts = [list(range(9)), list(range(9))]
    granted = {}
    for starts in (True, False):
        steps = Steps(bench, 20, specs=[full(4), mamba(4)])
        a, b = steps.register(*texts)
        steps.batched.admit([a])
        plan = StepPlan(new=[b], starts_step=starts)
        granted[starts] = steps.batched.step(plan).num_scheduled_tokens.tolist()
    equal(granted, {True: [1], False: [0]})


@example("KV-BATCH-1")
def the_manager_is_the_one_that_was_given(bench: Bench) -> None:
    steps = Steps(bench)
    holds(steps.batched.manager is steps.manager.real)
    holds(isinstance(steps.batched, BatchedManager))


@example("KV-BATCH-1")
def an_empty_step_does_nothing(bench: Bench) -> None:
    steps = Steps(bench, enable_events=True)
    steps.admitted(range(9))
    steps.state()
    before = steps.state()
    result = steps.batched.step(StepPlan(), StepOutput(rows_of(1), [slots_of(0)]))
    holds(result.num_scheduled_tokens.tolist() == result.hit_tokens.tolist() == [])
    equal((result.num_slots, result.num_deltas, result.num_deltas_left), (0, 0, 0))
    equal(steps.state(), before)


@example("KV-BATCH-4")
def the_handle_released_longest_ago_is_given_out_again(bench: Bench) -> None:
    steps = Steps(bench)
    equal(steps.register([1], [2], [3]), [0, 1, 2])
    steps.batched.unregister([2, 0])
    equal(steps.register([4], [5], [6]), [2, 0, 3])


@example("KV-BATCH-4")
def one_request_and_one_name_are_registered_once(bench: Bench) -> None:
    steps = Steps(bench)
    request = steps.request([1, 2])
    handle = steps.batched.register(request)
    steps.num_requests -= 1
    for same in (request, steps.request([3, 4])):
        with raises(InvalidArgumentError, field="request"):
            steps.batched.register(same)
    steps.batched.unregister([handle])
    equal(steps.batched.register(request), handle)


@example("KV-BATCH-4")
def a_request_that_holds_blocks_stays_registered(bench: Bench) -> None:
    steps = Steps(bench)
    a, b = steps.register([1], range(5))
    steps.batched.admit([b])
    with raises(InvalidArgumentError, field="handles[1]"):
        steps.batched.unregister([a, b])
    equal(steps.of(a).num_tokens, 1)
    steps.batched.free([b])
    steps.batched.unregister([a, b])
    with raises(InvalidArgumentError):
        steps.of(a)


@example("KV-BATCH-5")
def finished_and_preempted_requests_start_anew(bench: Bench) -> None:
    steps = Steps(bench)
    a, b, idle = steps.register(range(9), range(20, 29), [1])
    steps.batched.admit([a, b])
    steps.batched.step(StepPlan(finished=[a, idle], preempted=[b]))
    equal(steps.manager.num_free_blocks, 11)
    owned = [(steps.of(h).num_computed_tokens, steps.of(h).num_preemptions) for h in (a, b)]
    equal(owned, [(0, 0), (0, 1)])
    equal([steps.of(h).status for h in (a, b)], [RequestStatus.WAITING, RequestStatus.PREEMPTED])
    result = steps.batched.admit([b])
    equal(result.hit_tokens.tolist(), [8])
    holds(steps.of(b).status is RequestStatus.RUNNING)


@example("KV-BATCH-6", "KV-BATCH-12")
def drafts_count_as_computed_until_they_are_taken_back(bench: Bench) -> None:
    bench.need(Feature.DRAFTING)
    steps = Steps(bench)
    (a,) = steps.register(range(11))
    steps.batched.admit([a], 10)
    equal(steps.batched.decode([a], 3).num_scheduled_tokens.tolist(), [3])
    equal(steps.of(a).num_computed_tokens, 13)
    equal(len(steps.lists(a)[0]), 4)
    steps.batched.rewind([a], 1)
    steps.batched.append([a], [11, 12], [2])
    equal((steps.of(a).num_computed_tokens, steps.of(a).num_tokens), (12, 13))


@example("KV-BATCH-6")
def lookahead_slots_are_taken_and_not_scheduled(bench: Bench) -> None:
    bench.need(Feature.DRAFTING)
    steps = Steps(bench)
    (a,) = steps.admitted(range(4))
    steps.batched.append([a], [9])
    equal(steps.batched.decode([a], num_lookahead_tokens=4).num_scheduled_tokens.tolist(), [1])
    equal(len(steps.lists(a)[0]), 3)
    # No slot lies beyond the longest sequence, here of requests that are not cached.
    short = Steps(bench, max_model_len_tokens=7, enable_caching=False)
    (b,) = short.admitted(range(4))
    short.batched.append([b], [9])
    equal(short.batched.decode([b], num_lookahead_tokens=4).num_scheduled_tokens.tolist(), [1])
    equal(len(short.lists(b)[0]), 2)


@example("KV-BATCH-6")
def a_refused_entry_keeps_everything_and_others_go_on(bench: Bench) -> None:
    """Out of space in the middle: the second needs a block that is not there, the third none."""
    steps = Steps(bench, num_blocks=5)
    a, b, c = steps.admitted(range(4), range(10, 14), range(20, 23))
    steps.batched.append([a, b, c], [1, 2, 3])
    result, rows, slots = steps.write(StepPlan(decoding=[a, b, c]), g0=3)
    equal(result.num_scheduled_tokens.tolist(), [1, 0, 1])
    equal(steps.of(b).num_computed_tokens, 4)
    equal(slots[0][2], UNTOUCHED)
    equal({row[0] for row in rows}, {a, c})


@example("KV-BATCH-6")
def a_refusal_releases_what_fell_out_of_the_window(bench: Bench) -> None:
    """KV-MGR-6: window of 6, 12 computed, 16 more do not fit."""
    steps = Steps(bench, 5, specs=[sliding(4, 6)])
    (a,) = steps.register(range(28))
    steps.batched.admit([a], 12)
    plan = StepPlan(prefilling=[a], prefill_tokens=16)
    equal(steps.batched.step(plan).num_scheduled_tokens.tolist(), [0])
    equal(steps.lists(a)[0][0], 0)
    equal(steps.of(a).num_computed_tokens, 12)


@example("KV-BATCH-6")
def a_prompt_is_computed_in_chunks(bench: Bench) -> None:
    steps = Steps(bench)
    (a,) = steps.register(range(22))
    granted = [steps.batched.admit([a], 9).num_scheduled_tokens[0]]
    while steps.of(a).num_computed_tokens < 22:
        left = 22 - steps.of(a).num_computed_tokens
        plan = StepPlan(prefilling=[a], prefill_tokens=[min(9, left)])
        granted.append(steps.batched.step(plan).num_scheduled_tokens[0])
    equal(granted, [9, 9, 4])
    holds(steps.of(a).status is RequestStatus.RUNNING)


@example("KV-BATCH-6")
def no_token_is_granted_without_a_slot(bench: Bench) -> None:
    bench.need(Feature.DRAFTING)
    steps = Steps(bench, max_model_len_tokens=10)
    (a,) = steps.admitted(range(8))
    with raises(InvalidArgumentError, field="decode_tokens[0]"):
        steps.batched.decode([a], 3)
    equal(steps.batched.decode([a], 2, num_lookahead_tokens=9).num_scheduled_tokens.tolist(), [2])


@example("KV-REQ-9", "KV-BATCH-6", level=Level.SAFETY, since="0.3")
def a_step_does_not_begin_behind_the_window(bench: Bench) -> None:
    """A window of 4 at 12 of 13 tokens keeps tokens 8 … 12: token 11 may be next, token 10 not."""
    steps = Steps(bench, 12, sliding(4, 4))
    (handle,) = steps.admitted(range(13))
    steps.batched.append([handle], [13])
    steps.batched.step(StepPlan(decoding=[handle]))
    request = steps.of(handle)
    for computed in (10, 11):
        request.num_computed_tokens = computed
        plan = StepPlan(prefilling=[handle], prefill_tokens=[1])
        if computed == 11:
            equal(steps.batched.step(plan).num_slots, 1)
            break
        with raises(InvalidArgumentError, field="prefilling[0].num_computed_tokens"):
            steps.batched.step(plan)


@example("KV-BATCH-6", "KV-BATCH-7", level=Level.SAFETY)
def new_and_running_are_told_apart(bench: Bench) -> None:
    bench.need(Feature.DRAFTING)
    steps = Steps(bench)
    (running,), (idle,) = steps.admitted(range(5)), steps.register(range(5))
    for plan, field in (
        (StepPlan(decoding=[idle]), "decoding[0]"),
        (StepPlan(prefilling=[running, idle]), "prefilling[1]"),
        (StepPlan(new=[idle, running]), "new[1].num_computed_tokens"),
        (StepPlan(finished=[idle], new=[idle]), "new[0]"),
    ):
        with raises(InvalidArgumentError, field=field):
            steps.batched.step(plan)
    steps.of(running).num_computed_tokens = 0
    with raises(InvalidArgumentError, field="new[0]"):
        steps.batched.admit([running])


@example("KV-BATCH-6")
def a_request_without_blocks_of_its_own_is_running_by_its_tokens(bench: Bench) -> None:
    """Encoder-only layers keep nothing."""
    steps = Steps(bench, specs=[encoder_only(4)], enable_caching=False)
    (a,) = steps.admitted(range(5))
    equal(steps.lists(a), [[]])
    steps.batched.append([a], [1])
    equal(steps.batched.decode([a]).num_scheduled_tokens.tolist(), [1])


@example("KV-BATCH-1")
def chunked_local_attention_forgets_between_steps(bench: Bench) -> None:
    steps = Steps(bench, 20, specs=[chunked(4, 8)], enable_caching=False)
    (a,) = steps.register(range(20))
    steps.batched.admit([a], 8)
    steps.batched.step(StepPlan(prefilling=[a], prefill_tokens=8))
    equal(steps.lists(a)[0][:2], [0, 0])
