"""Batches that no caller may pass are typed errors and change nothing; outputs of both widths."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

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
from tests.contract.hostile import (
    LIARS,
    NO_COUNT,
    NO_FLAG,
    NO_INT,
    NO_INTS,
    NO_ROWS,
    NO_SLOTS,
    RANGES,
    UNREADABLE,
    Growing,
    GrowsWhenRead,
    Liar,
    Moody,
    Tensor,
)

CONFIGS: dict[str, dict[str, Any]] = {
    "full": {},
    "without_caching": {"enable_caching": False},
    "groups": {"specs": [full(4), sliding(8, 6), mamba(4)]},
}

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

    def refuse(self, field: str, call: Callable[..., object], *given: Any) -> None:
        """Check that the call raises InvalidArgumentError for the field and changes nothing."""
        if self.before is None:
            self.steps.state()
            self.before = self.steps.state()
        with pytest.raises(InvalidArgumentError) as error:
            call(*given)
        assert error.value.field == field or not field, (call, error.value)
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


def step_of(
    batched: BatchedManager, field: str, handles: Any, option: str = "", value: Any = None
) -> object:
    return batched.step(StepPlan(**{field: handles, **({option: value} if option else {})}))


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


Bad: TypeAlias = "tuple[str, Callable[[], object]]"
"""A call with one bad value, and the field that its error names; "" for any."""


def of_handles(scene: Scene) -> Iterator[Bad]:
    """An array of ints, each of which names a registered request, and no other place does."""
    for name, call in calls_with_handles(scene).items():
        field = name.split()[0]
        good = scene.idle if field == "new" or "unregister" in name else scene.a
        unknown = (*NO_HANDLE, scene.gone, good)
        yield from ((field, partial(call, value)) for value in NO_INTS)
        yield from (("", partial(call, value)) for value in RANGES)
        yield from ((f"{field}[1]", partial(call, [good, one])) for one in (*NO_INT, *unknown))
        yield from ((f"{field}[1]", partial(call, array("q", [good, one]))) for one in unknown)
        yield "", partial(call, Growing(good, 1000))
        yield "", partial(call, GrowsWhenRead([good] * 10))
    for value in (*NO_INT, *NO_HANDLE, scene.gone, []):
        yield "handle", partial(scene.steps.batched.request_of, value)
    for value in (None, 7, "r1", [], object(), *map(scene.steps.of, (scene.a, scene.idle))):
        yield "request", partial(scene.steps.batched.register, value)
    bare = type(scene.steps.of(scene.a))
    yield "request", partial(scene.steps.batched.register, bare.__new__(bare))


def numbers_of(scene: Scene) -> Iterator[tuple[str, Callable[[Any], object], list[int], Any, Any]]:
    """Of each argument with a number for each handle: field, call, legal numbers, and what neither
    the last of them nor all of them may be."""
    batched, pair = scene.steps.batched, [scene.a, scene.b]
    for field, entry, handle in (
        ("decode_tokens", "decoding", scene.a),
        ("prefill_tokens", "prefilling", scene.a),
        ("max_new_tokens", "new", scene.idle),
    ):
        call = partial(step_of, batched, entry, [handle], field)
        beyond = (0, -1, 2**53)
        yield field, call, [1], beyond, (*beyond, 2**99, *LIARS, array("i"), array("q", [1, 1]))
    yield "token_ids", partial(batched.append, pair), [1, 2], (-1,), ([1, 2, 3], *RANGES)
    above = (-1, 2**53)
    counts = partial(batched.append, pair, [1, 2])
    yield "counts", counts, [1, 1], above, (*above, *LIARS, [1, 1, 0], *RANGES)
    taken = (*above, 6, 2**52)
    yield "num_tokens", partial(batched.rewind, pair), [9, 1], taken, (*above, *LIARS, [1, 1, 1])


def of_numbers(scene: Scene) -> Iterator[Bad]:
    batched, pair = scene.steps.batched, [scene.a, scene.b]
    for field, call, legal, beyond, all_of_them in numbers_of(scene):
        for value in (*NO_INTS, [], legal[:-1], *all_of_them):
            yield "" if isinstance(value, range) else field, partial(call, value)
        for one in (*NO_INT, *beyond):
            is_token = field == "token_ids" and isinstance(one, Liar) and one in (2**53,)
            if not is_token:
                yield f"{field}[{len(legal) - 1}]", partial(call, [*legal[:-1], one])
    yield (
        "decode_tokens[0]",
        partial(step_of, batched, "decoding", [scene.a], "decode_tokens", array("i", [0])),
    )
    yield "token_ids[0]", partial(batched.append, pair, array("q", [-1, 1]))
    yield "token_ids", partial(batched.append, pair, [1, 2], [2, 1])
    yield "num_tokens[1]", partial(batched.rewind, pair, 6)
    yield "", partial(batched.append, [scene.a], Growing(1, 1000))


def of_options(scene: Scene) -> Iterator[Bad]:
    step = scene.steps.batched.step
    no_plans: tuple[Any, ...] = (None, {}, "plan", StepPlan, StepOutput())
    yield from (("plan", partial(step, plan)) for plan in no_plans)
    decoding = partial(step_of, scene.steps.batched, "decoding", [scene.a])
    for name in ("token_budget", "num_lookahead_tokens", "reserved_blocks"):
        yield from ((name, partial(decoding, name, value)) for value in NO_COUNT)
    for name in ("full_sequence_must_fit", "stops_at_refusal", "starts_step"):
        yield from ((name, partial(decoding, name, value)) for value in NO_FLAG)
    for value in NO_COUNT:
        yield "num_blocks", partial(scene.steps.batched.next_free_blocks, value)


def of_outputs(scene: Scene) -> Iterator[Bad]:
    batched = scene.steps.batched
    step = partial(batched.step, StepPlan(decoding=[scene.a, scene.b]))
    num_groups = len(scene.steps.manager.config.kv_cache.groups)
    rest: list[Any] = [None] * (num_groups - 1)
    no_outputs: tuple[Any, ...] = (7, {}, StepPlan(), rows_of(1))
    yield from (("output", partial(step, output)) for output in no_outputs)
    for rows in NO_ROWS:
        yield "block_deltas", partial(step, StepOutput(rows))
    for rows in (*NO_ROWS, None):
        yield "block_deltas", partial(batched.take_deltas, rows)
    for slots in NO_SLOTS:
        yield "slot_mappings[0]", partial(step, StepOutput(None, [slots, *rest]))
    wrong: tuple[Any, ...] = (
        (),
        [None] * (num_groups + 1),
        7,
        "",
        {},
        iter([None] * num_groups),
        *UNREADABLE,
    )
    for mappings in wrong:
        yield "slot_mappings", partial(step, StepOutput(None, mappings))


@pytest.mark.rule("KV-BATCH-2", "KV-BATCH-3", "KV-BATCH-4", "KV-BATCH-12", "KV-ERR-6")
@pytest.mark.rule("KV-BATCH-9", "KV-BATCH-10", "KV-BATCH-11")
@pytest.mark.parametrize("kind", [of_handles, of_numbers, of_options, of_outputs])
def test_a_bad_value_is_named_and_changes_nothing(
    scene: Scene, kind: Callable[[Scene], Iterator[Bad]]
) -> None:
    for field, call in kind(scene):
        scene.refuse(field, call)


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


@pytest.mark.rule("KV-BATCH-4")
def test_a_handle_stands_once_in_all_of_a_plan(scene: Scene) -> None:
    step = scene.steps.batched.step
    for number, field in enumerate(PLAN_FIELDS):
        for later in PLAN_FIELDS[number + 1 :]:
            handle = scene.idle if later == "new" else scene.a
            if field in ("decoding", "prefilling") and later == "new":
                continue  # wrong in two ways
            members: dict[str, Any] = {field: [handle], later: [handle]}
            plan = StepPlan(**members)
            scene.refuse(f"{later}[0]", step, plan)


@pytest.mark.rule("KV-BATCH-2")
def test_members_that_a_scheduler_left_wrong_are_found_before_anything_changes(
    scene: Scene,
) -> None:
    batched, step = scene.steps.batched, scene.steps.batched.step
    wrong = (("num_computed_tokens", 99), ("num_computed_tokens", -1), ("num_preemptions", -1))
    for member, value in wrong:
        right = scene.set(scene.b, member, value)
        for field in ("decoding", "prefilling"):
            call = partial(step_of, batched, field, [scene.a, scene.b])
            scene.refuse(f"{field}[1].{member}", call)
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


@pytest.mark.rule("KV-BATCH-3")
def test_arrays_of_both_widths_are_read_and_written(bench: Bench) -> None:
    for kind in (np.int32, np.int64):
        steps = Steps(bench)
        handles = np.array(steps.register(range(9), range(20, 23)), kind)
        rows, slots = np.full((5, 4), -7, np.int32), np.full(13, -7, np.int64)
        result = steps.batched.admit(
            handles, np.array([8, 3], kind), output=StepOutput(rows, [slots])
        )
        assert result.num_scheduled_tokens.tolist() == [8, 3]
        assert (rows[:3, 3] == [*steps.lists(0)[0], *steps.lists(1)[0]]).all()
        assert (slots[11:] == -7).all()
        assert (rows[3:] == -7).all()


@pytest.mark.rule("KV-BATCH-3")
def test_an_array_is_the_callers_again_after_the_call(bench: Bench) -> None:
    steps = Steps(bench)
    handles, slots = array("q", steps.register(range(9))), slots_of(9)
    steps.batched.admit(handles, output=StepOutput(None, [slots]))
    handles.append(7)
    slots.append(7)


@pytest.mark.rule("KV-BATCH-3")
def test_no_row_fits_an_array_without_rows(bench: Bench) -> None:
    steps = Steps(bench)
    output = StepOutput(np.zeros((0, 4), np.int32))
    result = steps.batched.admit(steps.register(range(9)), output=output)
    assert (result.num_deltas, result.num_deltas_left) == (0, 3)


def out_of_reach() -> None:
    raise TypeError("can't convert device memory")


@pytest.mark.rule("KV-BATCH-3")
def test_what_shares_its_memory_with_an_array_is_one(bench: Bench) -> None:
    steps = Steps(bench)
    handles = Tensor(np.array(steps.register(range(9)), np.int32))
    rows, slots = np.full((3, 4), -7, np.int32), np.full(9, -7, np.int64)
    output = StepOutput(Tensor(rows), [Tensor(slots)])
    assert steps.batched.admit(handles, output=output).num_deltas == 3
    assert rows[:, 3].tolist() == steps.lists(0)[0]
    assert slots[0] == steps.lists(0)[0][0] * 4
    on_a_device = Tensor(np.zeros(1, np.int32), out_of_reach)
    for call in (steps.batched.decode, steps.batched.take_deltas):
        with pytest.raises(InvalidArgumentError):
            call(on_a_device)


@pytest.mark.rule("KV-BATCH-3")
def test_tensors_on_the_host_are_arrays(bench: Bench) -> None:
    torch = pytest.importorskip("torch")
    steps = Steps(bench)
    handles = torch.tensor(steps.register(range(9)), dtype=torch.int32)
    rows = torch.full((3, 4), -7, dtype=torch.int32)
    slots = torch.full((9,), -7, dtype=torch.int64)
    result = steps.batched.admit(handles, output=StepOutput(rows, [slots]))
    assert result.num_deltas == 3
    assert rows[:, 3].tolist() == steps.lists(0)[0]
    assert int(slots[0]) == steps.lists(0)[0][0] * 4
    with pytest.raises(InvalidArgumentError):
        steps.batched.decode(torch.tensor([0.0]))
