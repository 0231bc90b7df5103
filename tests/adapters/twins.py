"""The same calls to kvref and to vLLM, side by side."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import strategies as st

import kvref
from kvcheck.adapters.vllm import VLLMImplementation
from kvspec.config import ManagerConfig
from kvspec.interface import KVCacheManager
from kvspec.request import Request, RequestInput, RequestStatus

Step: TypeAlias = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["arrive", "arrive", "admit", "admit", "decode", "free", "evict", "reset"]),
        st.integers(0, 9),
        st.integers(0, 9),
    ),
    max_size=25,
)


class Twin:
    """One implementation's side of a run: its results as plain values."""

    def __init__(self, made_by: VLLMImplementation | kvref.ReferenceImplementation) -> None:
        self.implementation = made_by
        self.manager: KVCacheManager
        self.requests: list[Request] = []

    def play(self, name: str, which: int, amount: int) -> object:
        if name == "arrive":
            text = [0] * amount + [which % 2] * (1 + which)
            made = RequestInput(f"r{len(self.requests)}", text)
            self.requests.append(self.implementation.make_request(self.manager, made))
            return list(self.requests[-1].block_hashes)
        if name == "evict":
            self.manager.evict_blocks([which, amount])
            return None
        if name == "reset":
            return self.manager.reset_prefix_cache()
        if not self.requests:
            return None
        request = self.requests[which % len(self.requests)]
        holds_blocks = not self.manager.get_blocks(request).is_empty
        if name == "remove":
            self.manager.remove_skipped_blocks(request, request.num_computed_tokens)
            return None
        if name == "free":
            request.num_computed_tokens = 0
            request.status = RequestStatus.PREEMPTED
            self.manager.free(request)
            return None
        if name == "admit" and not holds_blocks:
            hit = self.manager.get_computed_blocks(request)
            length = hit.hit_length_tokens
            new = request.num_tokens - length
            answer = self.manager.allocate_slots(
                request, new, num_new_computed_tokens=length, new_computed_blocks=hit.blocks
            )
            if answer is not None:
                request.num_computed_tokens = request.num_tokens
                request.status = RequestStatus.RUNNING
            return hit, answer
        if name == "decode" and holds_blocks and request.num_tokens < 31:
            self.implementation.append_tokens(self.manager, request, [amount % 2])
            answer = self.manager.allocate_slots(request, 1)
            if answer is not None:
                request.num_computed_tokens = request.num_tokens
            else:
                self.manager.free(request)
                request.num_computed_tokens = 0
                request.status = RequestStatus.PREEMPTED
            return answer, self.manager.get_num_common_prefix_blocks(request)
        return None


def compare_twins(vllm: VLLMImplementation, config: ManagerConfig, steps: list[Step]) -> None:
    """Make the same calls on both; compare results, states, events and statistics."""
    pair = [Twin(kvref.implementation()), Twin(vllm)]
    for twin in pair:
        twin.manager = twin.implementation.create(config)
    for step in steps:
        reference, other = (twin.play(*step) for twin in pair)
        assert reference == other, step
        assert pair[0].manager.snapshot() == pair[1].manager.snapshot(), step
    assert pair[0].manager.take_events() == pair[1].manager.take_events()
    assert pair[0].manager.make_prefix_cache_stats() == pair[1].manager.make_prefix_cache_stats()
