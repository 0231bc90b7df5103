"""Results of queries are not the state: changing one changes nothing."""

from __future__ import annotations

from copy import deepcopy

import pytest

import kvref
from kvcheck.rules.specs import full, mamba, sliding
from kvref.groups.base import Group
from kvref.manager import ReferenceManager
from kvref.request import ReferenceRequest
from kvspec.audit import unwrapped
from tests.contract.builders import new_manager, new_request


def story() -> tuple[ReferenceManager, ReferenceRequest]:
    implementation = kvref.implementation()
    specs = [full(4), sliding(4, 8), mamba(4, "align", speculative=1)]
    manager = new_manager(implementation, 30, specs=specs, enable_events=True)
    request = new_request(implementation, manager, "r", range(13))
    manager.allocate_slots(request, 8)
    inner = unwrapped(manager)
    assert isinstance(inner, ReferenceManager)
    assert isinstance(request, ReferenceRequest)
    return inner, request


def handed_out(manager: ReferenceManager, request: ReferenceRequest) -> list[object]:
    hit = manager.get_computed_blocks(request)
    groups: list[Group] = manager.groups
    return [
        request.token_ids,
        request.block_hashes,
        *hit.blocks.groups,
        *manager.find_longest_cache_hit_per_group(request, 8).blocks.groups,
        *manager.get_blocks(request).groups,
        *(group.blocks_of("r") for group in groups),
        *(group.keys_of_step() for group in groups),
        *manager.coordinator.longest_hit(request, 8).blocks.groups,
        manager.get_num_common_prefix_blocks(request),
        *manager.get_unhashed_block_ids(request),
    ]


def test_a_list_that_a_query_handed_out_is_nobodys() -> None:
    manager, request = story()
    before = deepcopy(manager.snapshot())
    number = len(handed_out(manager, request))
    for index in range(number):
        answer = handed_out(manager, request)[index]
        if isinstance(answer, list):
            answer.append(7)
            answer[0] = 5
        else:
            assert isinstance(answer, tuple | frozenset)
    assert manager.snapshot() == before
    assert [*request.token_ids] == [*range(13)]
    assert len(request.block_hashes) == 3


def test_new_blocks_that_were_handed_out_are_nobodys() -> None:
    manager, request = story()
    before = manager.get_blocks(request)
    request.num_computed_tokens = 8
    answer = manager.allocate_slots(request, 4)
    assert answer is not None
    after = deepcopy(manager.snapshot())
    for blocks in answer.groups:
        if isinstance(blocks, list):
            blocks.clear()
    assert manager.snapshot() == after
    assert isinstance(manager.take_events(), tuple)
    assert isinstance(manager.take_new_block_ids(), tuple)
    assert [len(blocks) for blocks in before.groups] == [2, 2, 3]


def test_a_state_that_a_query_handed_out_would_be_seen_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def own_list(self: Group, request_id: str) -> list[int]:
        return self.block_lists.get(request_id, [])

    monkeypatch.setattr(Group, "blocks_of", own_list)
    with pytest.raises(AssertionError):
        test_a_list_that_a_query_handed_out_is_nobodys()
