"""What may happen to a registered request between two steps (KV-BATCH-1, KV-BATCH-4)."""

from __future__ import annotations

from typing import Any

import pytest

from kvspec.errors import InvalidArgumentError
from kvspec.request import RequestStatus
from kvspec.sequential import batched_of
from tests.rules.batches import MakeSteps, Steps
from tests.rules.builders import new_request


def decode(steps: Steps, *handles: int) -> list[int]:
    """A token more for each; what was granted."""
    steps.batched.append(handles, [7] * len(handles))
    return steps.batched.decode(handles).num_scheduled_tokens.tolist()


def is_refused(steps: Steps, handle: int, field: str) -> bool:
    """Whether a decode is illegal, with this field, and changes nothing."""
    before = steps.manager.snapshot()
    with pytest.raises(InvalidArgumentError) as caught:
        steps.batched.decode([handle])
    assert steps.manager.snapshot() == before
    return caught.value.field == f"decoding[0]{field}"


@pytest.mark.rule("KV-BATCH-1")
def test_a_request_of_a_copy_of_the_manager_is_the_same_object(make_steps: MakeSteps) -> None:
    steps = make_steps()
    (a,) = steps.admitted(range(4))
    request = steps.of(a)
    copy = steps.implementation.clone(steps.manager)
    other = batched_of(steps.implementation, copy)
    b = other.register(request)
    assert decode(steps, a) == [1]
    assert request.num_computed_tokens == 5
    request.num_computed_tokens = 4
    assert len(copy.get_blocks(request).to_lists()[0]) == 1
    assert other.decode([b]).num_scheduled_tokens.tolist() == [1]
    assert len(copy.get_blocks(request).to_lists()[0]) == 2
    assert decode(steps, a) == [1]
    assert request.num_computed_tokens == 6
    other.free([b])
    assert (request.num_computed_tokens, request.status) == (0, RequestStatus.WAITING)
    assert len(steps.lists(a)[0]) == 2
    request.num_computed_tokens = 6
    request.status = RequestStatus.RUNNING
    other.unregister([b])
    assert decode(steps, a) == [1]
    assert request.num_computed_tokens == 7


@pytest.mark.rule("KV-BATCH-1")
def test_a_single_free_is_seen_by_the_next_step(make_steps: MakeSteps) -> None:
    steps = make_steps(20)
    (a,) = steps.admitted(range(4))
    request = steps.of(a)
    assert decode(steps, a) == [1]
    steps.manager.free(request)
    assert is_refused(steps, a, ".num_computed_tokens")
    (b,) = steps.admitted(range(50, 54))  # what a had is b's now
    assert is_refused(steps, a, ".num_computed_tokens")
    request.num_computed_tokens = 0
    assert is_refused(steps, a, "")
    assert steps.manager.allocate_slots(request, 5) is not None
    request.num_computed_tokens = 5
    assert decode(steps, a, b) == [1, 1]
    assert (request.num_computed_tokens, steps.of(b).num_computed_tokens) == (6, 5)
    assert not set(steps.lists(a)[0]) & set(steps.lists(b)[0])


@pytest.mark.rule("KV-BATCH-1")
def test_popped_blocks_are_no_longer_the_requests(make_steps: MakeSteps) -> None:
    steps = make_steps()
    (a,) = steps.admitted(range(4))
    popped = steps.manager.pop_blocks_for_free(steps.of(a))
    assert is_refused(steps, a, ".num_computed_tokens")
    steps.manager.free_blocks(popped)
    steps.of(a).num_computed_tokens = 0
    assert steps.batched.admit([a]).num_scheduled_tokens.tolist() == [4]


class Count(int):
    """A count of a class of its own, which is an int as any other (KV-ERR-6)."""


@pytest.mark.rule("KV-BATCH-1")
def test_counts_may_be_of_a_class_of_their_own(make_steps: MakeSteps) -> None:
    steps = make_steps()
    (a,) = steps.admitted(range(4))
    request = steps.of(a)
    request.num_computed_tokens, request.num_preemptions = Count(4), Count(0)
    assert decode(steps, a) == [1]
    assert request.num_computed_tokens == 5
    request.num_computed_tokens = Count(2**53)
    assert is_refused(steps, a, ".num_computed_tokens")


@pytest.mark.rule("KV-BATCH-1")
def test_two_batches_share_a_manager_and_a_request(make_steps: MakeSteps) -> None:
    steps = make_steps()
    (a,) = steps.admitted(range(4))
    request = steps.of(a)
    other = batched_of(steps.implementation, steps.manager)
    b = other.register(request)
    for computed in range(5, 9):
        batch, handle = (other, b) if computed % 2 else (steps.batched, a)
        batch.append([handle], [9])
        assert batch.decode([handle]).num_scheduled_tokens.tolist() == [1]
        assert request.num_computed_tokens == computed
    steps.batched.rewind([a], 1)
    other.rewind([b], 2)
    assert request.num_computed_tokens == 5
    other.free([b])
    assert is_refused(steps, a, "")
    assert steps.batched.admit([a]).num_scheduled_tokens.tolist() == [4]  # another 4 are cached
    steps.batched.free([a])
    with pytest.raises(InvalidArgumentError):
        other.decode([b])


@pytest.mark.rule("KV-BATCH-1")
def test_blocks_go_by_the_name_of_a_request(make_steps: MakeSteps) -> None:
    """An engine may have made the request anew: another object, the same name."""
    steps = make_steps()
    (a,) = steps.admitted(range(4))
    made = new_request(steps.implementation, steps.manager, steps.of(a).request_id, range(4))
    steps.manager.free(made)
    assert is_refused(steps, a, ".num_computed_tokens")
    assert steps.manager.allocate_slots(made, 4) is not None
    assert decode(steps, a) == [1]
    assert decode(steps, a) == [1]
    assert steps.lists(a) == steps.manager.get_blocks(made).to_lists()
    assert (steps.of(a).num_computed_tokens, made.num_computed_tokens) == (6, 0)


@pytest.mark.rule("KV-BATCH-4")
def test_counts_stay_with_their_requests_when_many_are_registered(make_steps: MakeSteps) -> None:
    steps = make_steps(200)
    handles: list[int] = []
    for k in range(70):
        handles += steps.admitted(range(100 * k, 100 * k + 3))
        if k % 10 == 9:
            assert decode(steps, *handles) == [1] * len(handles)
    for k, handle in enumerate(handles):
        assert steps.of(handle).num_computed_tokens == 3 + 7 - k // 10
    steps.of(handles[0]).num_computed_tokens = 2
    steps.of(handles[1]).status = RequestStatus.PREEMPTED
    steps.batched.rewind(handles[:2], 1)
    assert [steps.of(handle).num_computed_tokens for handle in handles[:2]] == [1, 9]


@pytest.mark.rule("KV-BATCH-6")
def test_only_running_requests_pass_the_watermark(make_steps: MakeSteps) -> None:
    steps = make_steps(watermark=0.9)
    (a,) = steps.admitted(range(4))
    request: Any = steps.of(a)
    assert decode(steps, a) == [1]
    steps.batched.append([a], [1] * 4, [4])
    granted = []
    for status in (RequestStatus.WAITING, RequestStatus.PREEMPTED, "RUNNING"):
        request.status = status
        granted += steps.batched.decode([a], 4).num_scheduled_tokens.tolist()
    assert granted == [0, 0, 4]
    assert request.status == "RUNNING"
    request.status = RequestStatus.RUNNING
    for wrong in (-1, True, 2.0):
        request.num_preemptions = wrong
        assert is_refused(steps, a, ".num_preemptions")
        assert request.num_preemptions is wrong
    request.num_preemptions = 1
    assert decode(steps, a) == [1]


@pytest.mark.rule("KV-BATCH-4")
def test_a_request_goes_on_by_single_calls_after_it_was_unregistered(make_steps: MakeSteps) -> None:
    steps = make_steps(20)
    (a,) = steps.admitted(range(4))
    request = steps.of(a)
    steps.batched.free([a])
    steps.batched.unregister([a])
    assert steps.manager.allocate_slots(request, 4) is not None
    request.num_computed_tokens = 4
    request.status = RequestStatus.RUNNING
    assert steps.admitted(range(30, 33)) == [a]  # the handle is another's now
    assert decode(steps, a) == [1]
    assert request.num_computed_tokens == 4
    request.num_computed_tokens = 3
    assert steps.of(a).num_computed_tokens == 4
    steps.implementation.append_tokens(steps.manager, request, range(40))  # its memory moves
    assert request.num_computed_tokens == 3
    assert steps.manager.allocate_slots(request, 8) is not None
    b = steps.batched.register(request)
    assert steps.batched.decode([b]).num_scheduled_tokens.tolist() == [1]
    assert request.num_computed_tokens == 4
