"""Objects that lie about their length, their number or their class (KV-ERR-2)."""

from __future__ import annotations

import copy
import pickle
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import pytest

from kvspec.batched import StepPlan
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, InvariantViolation, KVSpecError, UnknownBlockError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import LoRA, MultimodalItem, Request, RequestInput, RequestStatus
from kvspec.sequential import batched_of
from tests.contract.builders import (
    MakeManager,
    MakeRequest,
    admit,
    everything,
    make_config,
    new_request,
)


def answering(number: int) -> Callable[..., Any]:
    return lambda self, *others: number


class Liar(int):
    """An int that stores one number, reports 8 everywhere, and equals everything."""

    __hash__ = int.__hash__
    __index__ = __int__ = __add__ = __radd__ = __sub__ = __rsub__ = answering(8)
    __mul__ = __rmul__ = __floordiv__ = __mod__ = __neg__ = answering(8)
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = answering(True)
    __ne__ = __bool__ = answering(True)

    def __repr__(self) -> str:
        return "liar"


class Pretender:
    __class__ = int  # type: ignore[assignment]

    def __index__(self) -> int:
        return 1

    __int__ = __index__


class Growing(Sequence[int]):
    """Says that it has one element, and yields as many as one likes."""

    def __init__(self, block: int, num: int) -> None:
        self.block, self.num = block, num

    def __len__(self) -> int:
        return 1

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        return self.block

    def __iter__(self) -> Iterator[int]:
        return iter([self.block] * self.num)


class GrowsWhenRead(list[int]):
    def __iter__(self) -> Iterator[int]:
        for block in self[:]:
            self.append(block)
            yield block

    def __len__(self) -> int:
        return 1


def refused(
    manager: KVCacheManager, call: Callable[..., Any], *args: Any, **how: Any
) -> KVSpecError:
    before = manager.snapshot()
    with pytest.raises(KVSpecError) as caught:
        call(*args, **how)
    assert not isinstance(caught.value, InvariantViolation)
    assert manager.snapshot() == before
    return caught.value


@pytest.mark.rule("KV-MGR-8", "KV-ERR-2")
@pytest.mark.parametrize("num", [2, 100, 100_000])
def test_hits_may_yield_more_than_their_length(
    make_manager: MakeManager, make_request: MakeRequest, num: int
) -> None:
    manager = make_manager(20, 4)
    request = make_request(manager, "r", range(9))
    for ids in (Growing(1, num), GrowsWhenRead([1] * num)):
        given = {"num_new_computed_tokens": 4, "new_computed_blocks": KVCacheBlocks((ids,))}
        error = refused(manager, manager.allocate_slots, request, 1, **given)
        assert isinstance(error, InvalidArgumentError)
    assert manager.allocate_slots(request, 9) is not None


@pytest.mark.rule("KV-MGR-8")
def test_a_hit_whose_groups_were_replaced_is_refused(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    manager = make_manager(20, 4)
    request = make_request(manager, "r", range(9))
    objects = np.array([1], dtype=object).data
    for groups in (None, 7, Growing(1, 50), [], {1}, [[1], [2]], [objects]):
        blocks = KVCacheBlocks.empty(1)
        object.__setattr__(blocks, "groups", groups)
        error = refused(manager, manager.allocate_slots, request, 1, new_computed_blocks=blocks)
        assert getattr(error, "field", "").startswith("new_computed_blocks")


@pytest.mark.rule("KV-ERR-3")
@pytest.mark.parametrize("block", [-7, -1, 20, 2**31, 2**32 + 1, 2**63, -(2**63), 2**200])
def test_an_id_is_the_number_that_it_stores(
    make_manager: MakeManager, make_request: MakeRequest, block: int
) -> None:
    manager = make_manager(20, 4)
    request = make_request(manager, "r", range(9))
    admit(manager, request)
    other = make_request(manager, "other", range(9))
    lists: tuple[list[Any], ...] = ([Liar(block)], [Pretender()], [1, Liar(block)])
    for ids in lists:
        for call in (manager.evict_blocks, manager.free_blocks):
            assert isinstance(refused(manager, call, ids), UnknownBlockError)
        hits = {"num_new_computed_tokens": 4, "new_computed_blocks": KVCacheBlocks((ids,))}
        error = refused(manager, manager.allocate_slots, other, 1, **hits)
        assert isinstance(error, UnknownBlockError)
    manager.evict_blocks([Liar(1)])
    assert manager.get_computed_blocks(other).hit_length_tokens == 0


@pytest.mark.rule("KV-ERR-6")
@pytest.mark.parametrize("number", [-(2**63), -1, 2**53, 2**63, 2**200])
def test_a_count_is_the_number_that_it_stores(
    implementation: Implementation,
    make_manager: MakeManager,
    make_request: MakeRequest,
    number: int,
) -> None:
    manager = make_manager(20, 4)
    request = make_request(manager, "r", range(9))
    admit(manager, request)
    allocate = manager.allocate_slots
    bad: Any
    for bad in (Liar(number), Pretender()):
        for name in (
            "num_new_computed_tokens",
            "num_lookahead_tokens",
            "num_external_computed_tokens",
            "num_encoder_tokens",
            "reserved_blocks",
        ):
            refused(manager, allocate, request, 1, **{name: bad})
        refused(manager, allocate, request, bad)
        refused(manager, manager.cache_blocks, request, bad)
        refused(manager, manager.cache_partial_block, request, bad, 4)
        refused(manager, manager.cache_partial_block, request, 0, bad)
        refused(manager, manager.remove_skipped_blocks, request, bad)
        batched = batched_of(implementation, manager)
        handle = batched.register(request)
        plans: list[dict[str, Any]] = [
            {"decoding": [bad]},
            {"decoding": [handle], "decode_tokens": bad},
            {"decoding": [handle], "decode_tokens": [bad]},
            {"finished": (bad,)},
            {"token_budget": bad},
            {"num_lookahead_tokens": bad},
            {"reserved_blocks": bad},
        ]
        for plan in plans:
            refused(manager, batched.step, StepPlan(**plan))
        if not 0 <= number < 2**63:
            refused(manager, batched.append, [handle], [bad])
        refused(manager, batched.append, [handle], [1], bad)
        refused(manager, batched.rewind, [handle], bad)
        refused(manager, batched.next_free_blocks, bad)
        refused(manager, batched.request_of, bad)
        for member in ("num_computed_tokens", "num_preemptions"):
            was = getattr(request, member)
            setattr(request, member, bad)
            refused(manager, allocate, request, 1)
            refused(manager, batched.decode, [handle])
            setattr(request, member, was)
        refused(manager, implementation.append_tokens, manager, request, [bad])
    request.num_computed_tokens = Liar(9)
    assert allocate(request, Liar(1), reserved_blocks=Liar(0)) is not None


class Flag:
    __class__ = bool  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise RuntimeError


@pytest.mark.rule("KV-ERR-2")
def test_a_flag_is_a_bool(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    manager = make_manager(20, 4)
    request = make_request(manager, "r", range(9))
    bad: Any = Flag()
    for name in ("delay_cache_blocks", "full_sequence_must_fit", "has_scheduled_reqs"):
        refused(manager, manager.allocate_slots, request, 1, **{name: bad})
    batched = batched_of(implementation, manager)
    refused(manager, batched.step, StepPlan(stops_at_refusal=bad))


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
        plain = {
            "cache_salt": "salt",
            "lora": LoRA("a", 1),
            "multimodal": (MultimodalItem("image", 0, 2),),
        }
        same = make_request(manager, "name", range(9), **plain)
        assert request.block_hashes == same.block_hashes
        assert manager.allocate_slots(request, 9) is not None
        assert manager.get_blocks(same).to_lists() == manager.get_blocks(request).to_lists()
        manager.free(same)
    with pytest.raises(KVSpecError):
        make_config(20, hash_function=Text("md5"))
    assert implementation.create(make_config(20, hash_function=Text("sha256_cbor"))) is not None
    request.status = Text("unknown")  # type: ignore[assignment]  # the point of the test
    refused(manager, manager.allocate_slots, request, 1)
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


@pytest.mark.rule("KV-ERR-2")
def test_what_no_factory_made_is_refused(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    manager = make_manager(20, 4)
    request = make_request(manager, "r", range(9))
    batched = batched_of(implementation, manager)
    bare: Any = type(request).__new__(type(request))
    calls: list[Callable[[], object]] = [
        lambda: manager.get_computed_blocks(bare),
        lambda: manager.allocate_slots(bare, 1),
        lambda: manager.free(bare),
        lambda: manager.get_blocks(bare),
        lambda: batched.register(bare),
        lambda: implementation.append_tokens(manager, bare, [1]),
    ]
    for call in calls:
        refused(manager, call)


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


@pytest.mark.rule("KV-BATCH-3")
def test_arrays_are_read_once(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    manager = make_manager(20, 4)
    request = make_request(manager, "r", range(9))
    batched = batched_of(implementation, manager)
    handle = batched.register(request)
    for handles in (Growing(handle, 1000), GrowsWhenRead([handle] * 10)):
        refused(manager, batched.admit, handles)
        refused(manager, batched.append, [handle], handles)
    assert batched.admit(array("i", [handle])).num_scheduled_tokens.tolist() == [9]
    before = everything(manager).snapshot
    implementation.append_tokens(manager, request, Growing(5, 100))
    assert request.num_tokens == 109
    assert everything(manager).snapshot == before


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
