"""What may happen to a registered request between two steps (KV-BATCH-1, KV-BATCH-4)."""

from __future__ import annotations

from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.steps import Steps
from kvspec.batched import BatchedManager
from kvspec.errors import InvalidArgumentError
from kvspec.request import RequestStatus
from kvspec.sequential import batched_of


def decode(steps: Steps, *handles: int) -> list[int]:
    """A token more for each; what was granted."""
    steps.batched.append(handles, [7] * len(handles))
    return steps.batched.decode(handles).num_scheduled_tokens.tolist()


def is_refused(steps: Steps, handle: int, field: str) -> bool:
    """Whether a decode is illegal, with this field, and changes nothing."""
    with steps.manager.refuses(InvalidArgumentError) as caught:
        steps.batched.decode([handle])
    return caught.value.field == f"decoding[0]{field}"


@example("KV-BATCH-1")
def the_manager_is_the_one_that_was_given(bench: Bench) -> None:
    steps = Steps(bench)
    holds(steps.batched.manager is steps.manager.real)
    holds(isinstance(steps.batched, BatchedManager))


@example("KV-BATCH-1")
def a_request_of_a_copy_of_the_manager_is_the_same_object(bench: Bench) -> None:
    steps = Steps(bench)
    (a,) = steps.admitted(range(4))
    request = steps.of(a)
    copy = steps.manager.clone()
    other = batched_of(bench.subject, copy.real)
    b = other.register(request)
    equal(decode(steps, a), [1])
    equal(request.num_computed_tokens, 5)
    request.num_computed_tokens = 4
    equal(len(copy.get_blocks(request).to_lists()[0]), 1)
    equal(other.decode([b]).num_scheduled_tokens.tolist(), [1])
    equal(len(copy.get_blocks(request).to_lists()[0]), 2)
    equal(decode(steps, a), [1])
    equal(request.num_computed_tokens, 6)
    other.free([b])
    equal((request.num_computed_tokens, request.status), (0, RequestStatus.WAITING))
    equal(len(steps.lists(a)[0]), 2)
    request.num_computed_tokens = 6
    request.status = RequestStatus.RUNNING
    other.unregister([b])
    equal(decode(steps, a), [1])
    equal(request.num_computed_tokens, 7)


@example("KV-BATCH-1")
def a_single_free_is_seen_by_the_next_step(bench: Bench) -> None:
    steps = Steps(bench, 20)
    (a,) = steps.admitted(range(4))
    request = steps.of(a)
    equal(decode(steps, a), [1])
    steps.manager.free(request)
    holds(is_refused(steps, a, ".num_computed_tokens"))
    (b,) = steps.admitted(range(50, 54))  # what a had is b's now
    holds(is_refused(steps, a, ".num_computed_tokens"))
    request.num_computed_tokens = 0
    holds(is_refused(steps, a, ""))
    holds(steps.manager.allocate_slots(request, 5) is not None)
    request.num_computed_tokens = 5
    equal(decode(steps, a, b), [1, 1])
    equal((request.num_computed_tokens, steps.of(b).num_computed_tokens), (6, 5))
    holds(not set(steps.lists(a)[0]) & set(steps.lists(b)[0]))


@example("KV-BATCH-1")
def popped_blocks_are_no_longer_the_requests(bench: Bench) -> None:
    steps = Steps(bench)
    (a,) = steps.admitted(range(4))
    popped = steps.manager.pop_blocks_for_free(steps.of(a))
    holds(is_refused(steps, a, ".num_computed_tokens"))
    steps.manager.free_blocks(popped)
    steps.of(a).num_computed_tokens = 0
    equal(steps.batched.admit([a]).num_scheduled_tokens.tolist(), [4])


class Count(int):
    """A count of a class of its own, which is an int as any other (KV-ERR-6)."""


@example("KV-BATCH-1")
def counts_may_be_of_a_class_of_their_own(bench: Bench) -> None:
    steps = Steps(bench)
    (a,) = steps.admitted(range(4))
    request = steps.of(a)
    request.num_computed_tokens, request.num_preemptions = Count(4), Count(0)
    equal(decode(steps, a), [1])
    equal(request.num_computed_tokens, 5)
    request.num_computed_tokens = Count(2**53)
    holds(is_refused(steps, a, ".num_computed_tokens"))


@example("KV-BATCH-1")
def two_batches_share_a_manager_and_a_request(bench: Bench) -> None:
    steps = Steps(bench)
    (a,) = steps.admitted(range(4))
    request = steps.of(a)
    other = batched_of(bench.subject, steps.manager.real)
    b = other.register(request)
    for computed in range(5, 9):
        batch, handle = (other, b) if computed % 2 else (steps.batched, a)
        batch.append([handle], [9])
        equal(batch.decode([handle]).num_scheduled_tokens.tolist(), [1])
        equal(request.num_computed_tokens, computed)
    steps.batched.rewind([a], 1)
    other.rewind([b], 2)
    equal(request.num_computed_tokens, 5)
    other.free([b])
    holds(is_refused(steps, a, ""))
    equal(steps.batched.admit([a]).num_scheduled_tokens.tolist(), [4])  # another 4 are cached
    steps.batched.free([a])
    with raises(InvalidArgumentError):
        other.decode([b])


@example("KV-BATCH-1")
def blocks_go_by_the_name_of_a_request(bench: Bench) -> None:
    """An engine may have made the request anew: another object, the same name."""
    steps = Steps(bench)
    (a,) = steps.admitted(range(4))
    made = steps.manager.request(steps.of(a).request_id, range(4))
    steps.manager.free(made)
    holds(is_refused(steps, a, ".num_computed_tokens"))
    holds(steps.manager.allocate_slots(made, 4) is not None)
    equal(decode(steps, a), [1])
    equal(decode(steps, a), [1])
    equal(steps.lists(a), steps.manager.get_blocks(made).to_lists())
    equal((steps.of(a).num_computed_tokens, made.num_computed_tokens), (6, 0))


@example("KV-BATCH-4")
def counts_stay_with_their_requests_when_many_are_registered(bench: Bench) -> None:
    steps = Steps(bench, 200)
    handles: list[int] = []
    for k in range(70):
        handles += steps.admitted(range(100 * k, 100 * k + 3))
        if k % 10 == 9:
            equal(decode(steps, *handles), [1] * len(handles))
    for k, handle in enumerate(handles):
        equal(steps.of(handle).num_computed_tokens, 3 + 7 - k // 10)
    steps.of(handles[0]).num_computed_tokens = 2
    steps.of(handles[1]).status = RequestStatus.PREEMPTED
    steps.batched.rewind(handles[:2], 1)
    equal([steps.of(handle).num_computed_tokens for handle in handles[:2]], [1, 9])


@example("KV-BATCH-6")
def only_running_requests_pass_the_watermark(bench: Bench) -> None:
    steps = Steps(bench, watermark=0.9)
    (a,) = steps.admitted(range(4))
    request: Any = steps.of(a)
    equal(decode(steps, a), [1])
    steps.batched.append([a], [1] * 4, [4])
    granted = []
    for status in (RequestStatus.WAITING, RequestStatus.PREEMPTED, "RUNNING"):
        request.status = status
        granted += steps.batched.decode([a], 4).num_scheduled_tokens.tolist()
    equal(granted, [0, 0, 4])
    equal(request.status, "RUNNING")
    request.status = RequestStatus.RUNNING
    for wrong in (-1, True, 2.0):
        request.num_preemptions = wrong
        holds(is_refused(steps, a, ".num_preemptions"))
        holds(request.num_preemptions is wrong)
    request.num_preemptions = 1
    equal(decode(steps, a), [1])


@example("KV-BATCH-4")
def a_request_goes_on_by_single_calls_after_it_was_unregistered(bench: Bench) -> None:
    steps = Steps(bench, 20)
    (a,) = steps.admitted(range(4))
    request = steps.of(a)
    steps.batched.free([a])
    steps.batched.unregister([a])
    holds(steps.manager.allocate_slots(request, 4) is not None)
    request.num_computed_tokens = 4
    request.status = RequestStatus.RUNNING
    equal(steps.admitted(range(30, 33)), [a])  # the handle is another's now
    equal(decode(steps, a), [1])
    equal(request.num_computed_tokens, 4)
    request.num_computed_tokens = 3
    equal(steps.of(a).num_computed_tokens, 4)
    steps.manager.append(request, range(40))  # its memory moves
    equal(request.num_computed_tokens, 3)
    holds(steps.manager.allocate_slots(request, 8) is not None)
    b = steps.batched.register(request)
    equal(steps.batched.decode([b]).num_scheduled_tokens.tolist(), [1])
    equal(request.num_computed_tokens, 4)
