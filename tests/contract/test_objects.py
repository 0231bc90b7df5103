"""Objects of Python that lie, copies, and memory that others own: what is refused or used."""

from __future__ import annotations

import copy
import pickle
from array import array
from typing import Any

import numpy as np
import pytest

from kvcheck.rules.bench import Bench
from kvcheck.rules.steps import Steps, slots_of
from kvspec.audit import AuditedManager
from kvspec.batched import StepOutput
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, KVSpecError
from kvspec.interface import Implementation
from kvspec.request import LoRA, MultimodalItem, Request, RequestInput, RequestStatus
from tests.contract.builders import MakeManager, MakeRequest, admit, make_config, new_request
from tests.contract.hostile import Growing, Liar, Tensor


def test_what_a_liar_stores_is_used(bench: Bench) -> None:
    manager = bench.manager(20)
    running, waiting = (manager.request(name, range(10)) for name in ("running", "waiting"))
    manager.admit(running)
    assert manager.get_computed_blocks(waiting).hit_length_tokens == 8
    manager.evict_blocks([Liar(1)])
    assert manager.get_computed_blocks(waiting).hit_length_tokens == 0
    running.num_computed_tokens = Liar(10)
    assert manager.allocate_slots(running, Liar(1), reserved_blocks=Liar(0)) is not None
    request = manager.make_request(RequestInput("emptied", Growing(0, 0)))
    assert (request.num_tokens, list(request.block_hashes)) == (0, [])
    manager.append(request, Growing(5, 100))
    same = manager.request("same", [5] * 100)
    assert (request.num_tokens, list(request.block_hashes)) == (100, list(same.block_hashes))


class Text(str):
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


@pytest.mark.rule("KV-ERR-2", "KV-REQ-1")
def test_a_text_is_what_it_stores(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    manager = make_manager(30, 4)
    for kind in (Text, np.str_):
        item = MultimodalItem(kind("image"), 0, 2)
        content = {"cache_salt": kind("salt"), "lora": LoRA(kind("a"), 1), "multimodal": (item,)}
        request = make_request(manager, kind("name"), range(9), **content)
        assert type(request.request_id) is str
        item = MultimodalItem("image", 0, 2)
        plain = {"cache_salt": "salt", "lora": LoRA("a", 1), "multimodal": (item,)}
        same = make_request(manager, "name", range(9), **plain)
        assert request.block_hashes == same.block_hashes
        assert manager.allocate_slots(request, 9) is not None
        assert manager.get_blocks(same).to_lists() == manager.get_blocks(request).to_lists()
        manager.free(same)
    with pytest.raises(KVSpecError):
        make_config(20, hash_function=Text("md5"))
    assert implementation.create(make_config(20, hash_function=Text("sha256_cbor"))) is not None
    request.status = Text("unknown")  # type: ignore[assignment]  # the point of the test
    before = manager.snapshot()
    with pytest.raises(KVSpecError):
        manager.allocate_slots(request, 1)
    assert manager.snapshot() == before
    request.status = RequestStatus.RUNNING
    assert manager.allocate_slots(request, 9) is not None


def test_values_keep_what_was_checked(implementation: Implementation) -> None:
    for config in (
        make_config(Liar(20), Liar(4), max_model_len_tokens=Liar(64)),
        make_config(20, 4, max_model_len_tokens=64),
    ):
        manager = implementation.create(config)
        request = new_request(implementation, manager, "r", range(40))
        assert admit(manager, request, 33) == KVCacheBlocks(([*range(1, 10)],))
    for block_size in (0, -4, 2**53):
        with pytest.raises(InvalidArgumentError):
            make_config(20, Liar(block_size))
    assert type(MultimodalItem("image", Liar(3), Liar(2)).offset) is int


@pytest.mark.rule("KV-MGR-20", "KV-REQ-1")
def test_a_request_is_not_copied(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Refuse copies: two objects over one list of tokens would lose their hashes."""
    request = make_request(make_manager(20, 4), "r", range(9))
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(KVSpecError):
            make(request)


@pytest.mark.rule("KV-MGR-20")
def test_a_manager_is_copied_whole_or_not_at_all(
    implementation: Implementation, make_request: MakeRequest
) -> None:
    manager = implementation.create(make_config(20, 4), check_invariants=False)
    request = make_request(manager, "r", range(9))
    admit(manager, request)
    with pytest.raises(KVSpecError):
        copy.copy(manager)
    copied = copy.deepcopy(manager)
    assert copied.snapshot() == manager.snapshot()
    for check in (True, False):
        clone = implementation.clone(implementation.create(manager.config, check_invariants=check))
        assert isinstance(clone, AuditedManager) is check
    manager.free(request)
    assert copied.snapshot() != manager.snapshot()


@pytest.mark.rule("KV-REQ-1")
def test_no_token_is_read_beside_the_request(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    request: Any = make_request(make_manager(20, 4), "r", range(9))
    assert [*request.token_ids[-100:100_000]] == [*range(9)]
    for index in (-10, 9, 2**40):
        with pytest.raises(IndexError):
            request.token_ids[index]
    if hasattr(request, "tokens_between"):
        for start, stop in ((-100, 100_000), (-1, 3), (0, 10), (2**62, 2**62 + 1)):
            with pytest.raises((InvalidArgumentError, OverflowError)):
                request.tokens_between(start, stop)
        for number in (-1, 2, 2**40):
            with pytest.raises(InvalidArgumentError):
                request.hash_at(number)


def test_an_input_of_a_class_of_its_own_is_checked_too(
    implementation: Implementation, make_manager: MakeManager
) -> None:
    class Moving(MultimodalItem):
        @property
        def offset(self) -> Any:
            return Liar(2**40)

        @offset.setter
        def offset(self, value: int) -> None: ...

        def __init__(self) -> None:
            object.__setattr__(self, "identifier", "image")
            object.__setattr__(self, "length", 2)

    manager = make_manager(20, 4)
    request = RequestInput("r", [*range(40)], multimodal=(MultimodalItem("image", 0, 2),))
    object.__setattr__(request, "multimodal", (Moving(), Moving()))
    try:
        made: Request = implementation.make_request(manager, request)
    except (KVSpecError, OverflowError):
        return
    assert len(made.block_hashes) == 10


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
