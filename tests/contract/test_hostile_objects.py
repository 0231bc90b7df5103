"""Objects that lie about their length, their number or their class (KV-ERR-2)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvspec.audit import AuditedManager
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, InvariantViolation, KVSpecError
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import LoRA, MultimodalItem, Request, RequestInput, RequestStatus
from tests.contract.builders import (
    MakeManager,
    MakeRequest,
    admit,
    make_config,
    new_request,
)
from tests.contract.hostile import Liar


def refused(
    manager: KVCacheManager, call: Callable[..., Any], *args: Any, **how: Any
) -> KVSpecError:
    before = manager.snapshot()
    with pytest.raises(KVSpecError) as caught:
        call(*args, **how)
    assert not isinstance(caught.value, InvariantViolation)
    assert manager.snapshot() == before
    return caught.value


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


@pytest.mark.rule("KV-MGR-20")
def test_no_key_of_a_restored_state_covers_more_than_can_be_numbered(
    implementation: Implementation, make_request: MakeRequest
) -> None:
    manager = implementation.create(make_config(20, 4), check_invariants=False)
    request = make_request(manager, "r", range(9))
    admit(manager, request)
    manager.free(request)
    state = manager.snapshot()
    most, rest = (2**31 - 1) * 4, state.covered_tokens[2:]
    near = replace(state, covered_tokens=(0, most, *rest))
    assert implementation.restore(manager.config, near).snapshot() == near
    far = replace(state, covered_tokens=(0, most + 4, *rest))
    with pytest.raises(InvalidArgumentError, match="snapshot"):
        implementation.restore(manager.config, far)
