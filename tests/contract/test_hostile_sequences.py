"""Sequences that no list can hold, that can't be read, or that turn out empty (KV-ERR-2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import pytest

from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError, UnknownBlockError
from kvspec.interface import Implementation
from kvspec.request import RequestInput
from tests.contract.builders import MakeManager, MakeRequest
from tests.contract.test_hostile_objects import refused

UNREADABLE = (
    np.array([1]).astype(">i8").data,
    np.zeros((2, 2), dtype="int32").data,
    np.zeros(()).data,
)


@pytest.mark.rule("KV-ERR-2", "KV-ERR-3", "KV-MGR-8")
@pytest.mark.parametrize("ids", [range(2**70), range(2**40), range(-(2**70), 0), *UNREADABLE])
def test_ids_that_no_list_can_hold(
    make_manager: MakeManager, make_request: MakeRequest, ids: Any
) -> None:
    manager = make_manager(20, 4)
    request = make_request(manager, "r", range(9))
    for call in (manager.evict_blocks, manager.free_blocks):
        assert isinstance(refused(manager, call, ids), InvalidArgumentError | UnknownBlockError)
    for groups in ((ids,), ids):
        blocks = KVCacheBlocks.empty(1)
        object.__setattr__(blocks, "groups", groups)
        given = {"num_new_computed_tokens": 4, "new_computed_blocks": blocks}
        refused(manager, manager.allocate_slots, request, 1, **given)


@pytest.mark.rule("KV-REQ-1", "KV-ERR-2")
def test_more_tokens_than_memory(
    implementation: Implementation, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    manager = make_manager(20, 4)
    request = make_request(manager, "r", range(9))
    for tokens in (range(2**70), range(-(2**70), 0)):
        refused(manager, implementation.append_tokens, manager, request, tokens)
        with pytest.raises(InvalidArgumentError):
            implementation.make_request(manager, RequestInput("more", tokens))
    assert list(request.token_ids) == [*range(9)]


class Emptied(Sequence[int]):
    def __len__(self) -> int:
        return 9

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        raise IndexError


@pytest.mark.rule("KV-REQ-2")
def test_a_prompt_that_was_emptied_meanwhile(
    implementation: Implementation, make_manager: MakeManager
) -> None:
    manager = make_manager(20, 4)
    request = implementation.make_request(manager, RequestInput("r", Emptied()))
    assert (request.num_tokens, list(request.block_hashes)) == (0, [])
    implementation.append_tokens(manager, request, [*range(9)])
    again = implementation.make_request(manager, RequestInput("again", [*range(9)]))
    assert list(request.block_hashes) == list(again.block_hashes)
