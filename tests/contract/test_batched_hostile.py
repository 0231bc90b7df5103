"""Batches that no caller may pass: each is a typed error, and changes nothing (KV-BATCH-2)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest

import kvfast
import kvref
from kvcheck.rules.bench import Bench
from kvcheck.rules.specs import full, mamba, sliding
from kvcheck.rules.steps import Steps, rows_of, slots_of
from kvspec.batched import BatchedManager, StepOutput, StepPlan
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation
from kvspec.invariants import check_snapshot
from kvspec.request import RequestInput, RequestStatus
from kvspec.sequential import batched_of
from tests.contract.builders import make_config
from tests.fuzz.values import Moody

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {},
    "without_caching": {"enable_caching": False},
    "groups": {"specs": [full(4), sliding(8, 6), mamba(4)]},
}

NO_INTS: tuple[Any, ...] = (
    None, True, 1.0, float("nan"), "0", b"\0\0\0\0", {0}, {0: 1}, object, np.int64(0),
    array("d", [0.0]), array("f", [0.0]), array("I", [0]), array("Q", [0]), array("h", [0]),
    array("b", [0]), np.zeros(1), np.zeros(1, bool), np.zeros(1, np.uint32), np.zeros(1, np.int16),
    np.zeros(1, ">i8"), np.zeros(1, object), np.zeros((1, 1), int), np.zeros(4, int)[::2],
    np.array(0), np.zeros(1, "M8[s]"), (ctypes.c_uint64 * 1)(), memoryview(b"\0" * 8), iter([0]),
    slice(0), np.float32(0),
)  # fmt: skip
"""Values that are no array of ints: the error names the whole argument."""

NO_INT: tuple[Any, ...] = (
    None,
    True,
    False,
    1.0,
    float("nan"),
    "0",
    [0],
    np.int64(0),
    2**63,
    2**99,
)
"""Values that are no element of a list of ints: the error names the place."""

NO_HANDLE: tuple[int, ...] = (-1, -(2**63), 2**63 - 1, 2**31, 99)
"""Ints that name no registered request."""


@dataclass
class Scene:
    """Three requests: `a` and `b` under way, `idle` registered. `gone` is a released handle."""

    steps: Steps
    a: int
    b: int
    idle: int
    gone: int
    before: object = None

    def set(self, handle: int, member: str, value: Any) -> Any:
        request = self.steps.of(handle)
        old = getattr(request, member)
        setattr(request, member, value)
        self.before = None
        return old

    def refuse(self, field: str, call: Callable[..., object], *given: Any, **named: Any) -> None:
        """Check that the call raises InvalidArgumentError for the field and changes nothing."""
        if self.before is None:
            self.steps.state()
            self.before = self.steps.state()
        with pytest.raises(InvalidArgumentError) as error:
            call(*given, **named)
        assert error.value.field == field
        assert self.steps.state() == self.before


@pytest.fixture(params=CONFIGS)
def scene(request: pytest.FixtureRequest, bench: Bench) -> Scene:
    config = CONFIGS[request.param]
    steps = Steps(bench, 40, enable_events=True, log_stats=True, check_invariants=False, **config)
    a, b, idle, gone = steps.register(range(9), range(20, 25), range(9), [1])
    steps.batched.admit([a, b])
    steps.batched.append([a, b], [7, 8])
    steps.batched.unregister([gone])
    return Scene(steps, a, b, idle, gone)


PLAN_FIELDS = ("finished", "preempted", "decoding", "prefilling", "new")


def step_of(batched: BatchedManager, field: str, handles: Any) -> object:
    return batched.step(StepPlan(**{field: handles}))


def calls_with_handles(scene: Scene) -> dict[str, Callable[[Any], object]]:
    batched = scene.steps.batched
    calls: dict[str, Callable[[Any], object]] = {
        "handles (unregister)": batched.unregister,
        "handles (append)": lambda handles: batched.append(handles, [1]),
        "handles (rewind)": lambda handles: batched.rewind(handles, 1),
        "handles (lookup)": batched.lookup,
        "new (admit)": batched.admit,
        "decoding (decode)": batched.decode,
        "finished (free)": batched.free,
        "preempted (preempt)": batched.preempt,
    }
    for field in PLAN_FIELDS:
        calls[field] = partial(step_of, batched, field)
    return calls


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-3")
def test_handles_are_a_sequence_or_an_array_of_ints(scene: Scene) -> None:
    for name, call in calls_with_handles(scene).items():
        for values in NO_INTS:
            scene.refuse(name.split()[0], call, values)


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-3")
@pytest.mark.parametrize("values", [range(2**62), range(2**70), range(0, -(2**70), -1)])
def test_a_range_is_read_as_far_as_it_can_be_legal(scene: Scene, values: range) -> None:
    batched = scene.steps.batched
    calls: list[Callable[[Any], object]] = [
        *calls_with_handles(scene).values(),
        lambda given: batched.append([scene.a], given),
        lambda given: batched.append([scene.a], [1], given),
        lambda given: batched.rewind([scene.a], given),
        lambda given: batched.admit([scene.idle], given),
    ]
    scene.steps.state()  # empties queues
    before = scene.steps.state()
    for call in calls:
        with pytest.raises(InvalidArgumentError):
            call(values)
    assert scene.steps.state() == before


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-3")
@pytest.mark.parametrize("mood", ["shrinks", "grows", "more", "fewer"])
def test_a_sequence_that_changes_is_read_once_or_refused(scene: Scene, mood: str) -> None:
    """Change a sequence between check and use, where a handle could become anything."""
    for name, call in calls_with_handles(scene).items():
        refused = set()
        for handles in ([scene.a], [scene.gone], [scene.a, scene.b, scene.gone]):
            try:
                call(Moody(handles, mood))
            except InvalidArgumentError as error:
                refused.add(error.field.partition("[")[0])
        is_of_plan = name in (*PLAN_FIELDS, "new (admit)")
        assert refused <= {name.split()[0], *(["plan"] if is_of_plan else [])}
    check_snapshot(scene.steps.manager.config, scene.steps.manager.snapshot())


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-3")
def test_every_handle_is_an_int(scene: Scene) -> None:
    for name, call in calls_with_handles(scene).items():
        field = name.split()[0]
        good = scene.idle if field == "new" or "unregister" in name else scene.a
        for value in NO_INT:
            scene.refuse(f"{field}[1]", call, [good, value])


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-4")
def test_every_handle_is_registered_and_stands_once(scene: Scene) -> None:
    for name, call in calls_with_handles(scene).items():
        field = name.split()[0]
        good = scene.idle if field == "new" or "unregister" in name else scene.a
        for value in (*NO_HANDLE, scene.gone, good):
            scene.refuse(f"{field}[1]", call, [good, value])
            scene.refuse(f"{field}[1]", call, array("q", [good, value]))


@pytest.mark.rule("KV-BATCH-4")
def test_a_handle_stands_once_in_all_of_a_plan(scene: Scene) -> None:
    step = scene.steps.batched.step
    for number, field in enumerate(PLAN_FIELDS):
        for later in PLAN_FIELDS[number + 1 :]:
            handle = scene.idle if later == "new" else scene.a
            if field in ("decoding", "prefilling") and later == "new":
                continue  # wrong in two ways
            plan = plan_of(**{field: [handle], later: [handle]})
            scene.refuse(f"{later}[0]", step, plan)


def test_one_handle_is_an_int_of_a_registered_request(scene: Scene) -> None:
    for value in (*NO_INT, *NO_HANDLE, scene.gone, []):
        scene.refuse("handle", scene.steps.batched.request_of, value)


@pytest.mark.rule("KV-BATCH-4")
def test_only_a_request_of_the_manager_is_registered(scene: Scene) -> None:
    batched, steps = scene.steps.batched, scene.steps
    for value in (None, 7, "r1", [], object(), steps.of(scene.a), steps.of(scene.idle)):
        scene.refuse("request", batched.register, value)


def plan_of(**members: Any) -> StepPlan:
    return StepPlan(**members)


COUNTS: dict[str, tuple[str, str]] = {
    "decode_tokens": ("decoding", "a"),
    "prefill_tokens": ("prefilling", "a"),
    "max_new_tokens": ("new", "idle"),
}


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-3")
@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_ints_of_at_least_1_one_for_each(scene: Scene, name: str) -> None:
    step = scene.steps.batched.step
    field, entry = COUNTS[name]
    handles = [getattr(scene, entry)]
    for value in (*NO_INTS, 0, -1, 2**53, 2**99, [], [1, 1], array("i"), array("q", [1, 1])):
        scene.refuse(name, step, plan_of(**{field: handles, name: value}))
    for value in (*NO_INT, 0, -1, 2**53):
        scene.refuse(f"{name}[0]", step, plan_of(**{field: handles, name: [value]}))
    scene.refuse(f"{name}[0]", step, plan_of(**{field: handles, name: array("i", [0])}))


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-3", "KV-BATCH-12")
def test_tokens_and_their_counts_fit_together(scene: Scene) -> None:
    append, handles = scene.steps.batched.append, [scene.a, scene.b]
    for value in (*NO_INTS, [], [1], [1, 2, 3]):
        scene.refuse("token_ids", append, handles, value)
    for value in (*NO_INT, -1):
        scene.refuse("token_ids[1]", append, handles, [1, value])
    scene.refuse("token_ids[0]", append, handles, array("q", [-1, 1]))
    for value in (*NO_INTS, -1, 2**53, [], [1], [1, 1, 0]):
        scene.refuse("counts", append, handles, [1, 2], value)
    for value in (*NO_INT, -1, 2**53):
        scene.refuse("counts[1]", append, handles, [1, 2], [1, value])
    scene.refuse("token_ids", append, handles, [1, 2], [2, 1])


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-12")
def test_what_is_taken_back_was_computed(scene: Scene) -> None:
    rewind, handles = scene.steps.batched.rewind, [scene.a, scene.b]
    for value in (*NO_INTS, -1, 2**53, [], [1], [1, 1, 1]):
        scene.refuse("num_tokens", rewind, handles, value)
    for value in (*NO_INT, -1, 2**53, 6, 2**52):
        scene.refuse("num_tokens[1]", rewind, handles, [9, value])
    scene.refuse("num_tokens[1]", rewind, handles, 6)


BAD_OPTIONS: tuple[Any, ...] = (
    None, True, -1, 1.0, float("nan"), "1", 2**53, [1], np.int64(1)
)  # fmt: skip
BAD_FLAGS: tuple[Any, ...] = (None, 0, 1, "yes", [], np.True_)


@pytest.mark.rule("KV-BATCH-2")
def test_options_are_counts_and_flags(scene: Scene) -> None:
    step = scene.steps.batched.step
    no_plans: tuple[Any, ...] = (None, {}, "plan", StepPlan, StepOutput())
    for plan in no_plans:
        scene.refuse("plan", step, plan)
    for name in ("token_budget", "num_lookahead_tokens", "reserved_blocks"):
        for value in BAD_OPTIONS:
            scene.refuse(name, step, plan_of(decoding=[scene.a], **{name: value}))
    for name in ("full_sequence_must_fit", "stops_at_refusal", "starts_step"):
        for value in BAD_FLAGS:
            scene.refuse(name, step, plan_of(decoding=[scene.a], **{name: value}))


@pytest.mark.rule("KV-BATCH-2")
def test_members_that_a_scheduler_left_wrong_are_found_before_anything_changes(
    scene: Scene,
) -> None:
    batched, step = scene.steps.batched, scene.steps.batched.step
    wrong = (("num_computed_tokens", 99), ("num_computed_tokens", -1), ("num_preemptions", -1))
    for member, value in wrong:
        right = scene.set(scene.b, member, value)
        for field in ("decoding", "prefilling"):
            plan = plan_of(**{field: [scene.a, scene.b]})
            scene.refuse(f"{field}[1].{member}", step, plan)
        scene.set(scene.b, member, right)
    scene.set(scene.idle, "num_computed_tokens", 1)
    plan = StepPlan(decoding=[scene.a], new=[scene.idle])
    scene.refuse("new[0].num_computed_tokens", step, plan)
    scene.set(scene.idle, "num_computed_tokens", 0)
    scene.set(scene.idle, "num_preemptions", -1)
    scene.refuse("new[0].num_preemptions", step, plan)
    scene.refuse("handles[0].num_preemptions", batched.lookup, [scene.idle])
    scene.refuse("preempted[0].num_preemptions", batched.preempt, [scene.idle])


@pytest.mark.rule("KV-BATCH-2")
def test_a_status_is_one_of_the_three(scene: Scene) -> None:
    steps = scene.steps
    try:
        for handle in (scene.a, scene.idle):
            scene.set(handle, "status", "ENDED")
    except ValueError:
        return  # the request itself refuses
    scene.refuse("decoding[0].status", steps.batched.decode, [scene.a])
    scene.refuse("new[0].status", steps.batched.admit, [scene.idle])
    steps.batched.free([scene.a])
    assert steps.of(scene.a).status is RequestStatus.WAITING


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-7")
def test_a_new_request_fits_the_longest_sequence(bench: Bench) -> None:
    steps = Steps(bench, max_model_len_tokens=8)
    short, long = steps.register(range(8), range(9))
    with pytest.raises(InvalidArgumentError) as error:
        steps.batched.admit([short, long])
    assert error.value.field == "new[1].num_tokens"
    assert steps.batched.admit([short]).num_slots == 8


def read_only(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values.flags.writeable = False
    return values


BAD_ROWS: tuple[Any, ...] = (
    7, "rows", [[0, 0, 0, 0]], bytearray(64), array("i", [0] * 8), np.zeros((3, 4)),
    np.zeros((3, 4), np.int64), np.zeros((3, 4), np.uint32), np.zeros((3, 5), np.int32),
    np.zeros((4, 3), np.int32), np.zeros(12, np.int32), np.zeros((3, 2, 2), np.int32),
    np.zeros((4, 3), np.int32).T, np.zeros((6, 4), np.int32)[::2], np.zeros((3, 4), ">i4"),
    read_only(np.zeros((3, 4), np.int32)), memoryview(bytes(48)).cast("i", [3, 4]),
)  # fmt: skip

BAD_SLOTS: tuple[Any, ...] = (
    7, "slots", [0] * 40, bytes(320), bytearray(320), array("i", [0] * 40), array("d", [0.0] * 40),
    array("Q", [0] * 40), np.zeros(40), np.zeros(40, np.int32), np.zeros((40, 1), np.int64),
    np.zeros(80, np.int64)[::2], np.zeros(40, ">i8"), read_only(np.zeros(40, np.int64)),
    memoryview(bytes(320)).cast("q"), slots_of(0), slots_of(1), np.zeros(1, np.int64), np.array(0),
)  # fmt: skip


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-9", "KV-BATCH-10", "KV-BATCH-11")
def test_outputs_are_writable_arrays_of_the_right_shape(scene: Scene) -> None:
    batched = scene.steps.batched
    plan = StepPlan(decoding=[scene.a, scene.b])
    num_groups = len(scene.steps.manager.config.kv_cache.groups)
    rest: list[Any] = [None] * (num_groups - 1)
    no_outputs: tuple[Any, ...] = (7, {}, StepPlan(), rows_of(1))
    for output in no_outputs:
        scene.refuse("output", batched.step, plan, output)
    for rows in BAD_ROWS:
        scene.refuse("block_deltas", batched.step, plan, StepOutput(rows))
        scene.refuse("block_deltas", batched.take_deltas, rows)
    scene.refuse("block_deltas", batched.take_deltas, None)
    for slots in BAD_SLOTS:
        given = StepOutput(None, [slots, *rest])
        scene.refuse("slot_mappings[0]", batched.step, plan, given)
    wrong: tuple[Any, ...] = ((), [None] * (num_groups + 1), 7, "", {}, iter([None] * num_groups))
    for mappings in wrong:
        scene.refuse("slot_mappings", batched.step, plan, StepOutput(None, mappings))


@pytest.mark.parametrize(
    "kv", [kvref.implementation(), kvfast.implementation(), kvfast.uncompiled()]
)
def test_without_caching_hashes_of_another_manager_are_not_read(kv: Implementation) -> None:
    """Give 34 hashes of 8 bytes each to a manager whose hashes have 32."""
    short = make_config(specs=[full(1)], hash_function="sha256_cbor_64bit", trusted_tenants=True)
    other = kv.create(short)
    batched = batched_of(kv, kv.create(make_config(40, enable_caching=False)))
    requests = [kv.make_request(other, RequestInput(name, range(34))) for name in "ab"]
    handles = [batched.register(request) for request in requests]
    result = batched.step(StepPlan(new=handles, max_new_tokens=34))
    assert list(result.num_scheduled_tokens) == [34, 34]
