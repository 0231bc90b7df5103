"""The need of an allocation is what it takes: found by allocating, not by adding up."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestInput
from tests.brute_force.worlds import Lived, lived_worlds, text_length


@dataclass(frozen=True)
class Admission:
    """What a request asks for: its tokens of the text, and how it begins."""

    share: int
    uses_hit: bool
    external: int
    new: int
    lookahead: int

    def allocate(
        self, implementation: Implementation, manager: KVCacheManager, reserved_blocks: int
    ) -> tuple[int, bool]:
        """Free blocks used up, and whether the request was admitted."""
        request = self.request(implementation, manager)
        hit = manager.get_computed_blocks(request)
        length = hit.hit_length_tokens if self.uses_hit else 0
        before = manager.num_free_blocks
        answer = manager.allocate_slots(
            request,
            self.new,
            num_new_computed_tokens=length,
            new_computed_blocks=hit.blocks if length else None,
            num_external_computed_tokens=self.external,
            num_lookahead_tokens=self.lookahead,
            delay_cache_blocks=True,
            reserved_blocks=reserved_blocks,
        )
        return before - manager.num_free_blocks, answer is not None

    def request(self, implementation: Implementation, manager: KVCacheManager) -> Request:
        """A text that begins like that of the past requests and is long enough for everything."""
        own = range(1000, 1000 + self.external + self.new + text_length(manager.config))
        tokens = [*range(self.share), *own]
        return implementation.make_request(manager, RequestInput("new", tokens))


admissions = st.builds(
    Admission,
    share=st.integers(0, 30),
    uses_hit=st.booleans(),
    external=st.integers(0, 9) | st.just(0),
    new=st.integers(1, 12),
    lookahead=st.integers(0, 3),
)


@pytest.mark.rule(
    "KV-MGR-7",
    "KV-GRP-4",
    "KV-GRP-5",
    "KV-GRP-6",
    "KV-GRP-7",
    "KV-MAMBA-7",
    "KV-MAMBA-8",
)
@given(world=lived_worlds(), admission=admissions)
@settings(max_examples=2 * settings().max_examples)
def test_an_allocation_takes_what_it_was_said_to_need(
    implementation: Implementation, world: Lived, admission: Admission
) -> None:
    """With exactly as many free blocks it is admitted, with one less refused, nothing changed."""
    manager = world.build(implementation)
    manager.new_step_starts()
    roomy, exact, tight = (implementation.clone(manager) for _ in range(3))
    free = manager.num_free_blocks
    used, done = admission.allocate(implementation, roomy, 0)
    assert done
    event(f"{used} blocks" if used < 3 else "more blocks")
    assert admission.allocate(implementation, exact, free - used) == (used, True)
    assert exact.snapshot() == roomy.snapshot()
    if used > 0:
        assert admission.allocate(implementation, tight, free - used + 1) == (0, False)
        assert tight.snapshot() == manager.snapshot()
