"""The hardest rules read token by token, in every case within small bounds.

The most that admission counts (KV-SW-7, KV-CHUNK-5), which states a request of mode align has.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.rules.specs import chunked, mamba, sliding
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.request import RequestInput
from tests.brute_force.by_token import is_read, most_held, tokens_of, tokens_read


@pytest.mark.rule("KV-SW-7", "KV-CHUNK-5", "KV-MGR-5")
def test_admission_counts_what_can_be_held_at_once() -> None:
    config = ManagerConfig(KVCacheConfig(9, ()), 100)
    for size, reach, step, longest in product((1, 2, 3), range(1, 7), range(1, 6), (9, 14)):
        bounded = replace(config, max_num_batched_tokens=step, max_model_len_tokens=longest)
        for spec in (sliding(size, reach), chunked(size, size * reach)):
            held = max(
                len({token // size for token in range(min([*tokens_read(spec, at), at]), end)})
                for at in range(longest)
                for end in range(at + 1, min(at + step, longest) + 1)
            )
            counted = most_held(bounded, spec, size)
            assert counted is not None
            assert held <= counted <= held + 1, (spec, step, longest)


@pytest.mark.rule("KV-MAMBA-6", "KV-MAMBA-9", "KV-MAMBA-11", "KV-MAMBA-5")
@pytest.mark.parametrize("name", ["kvref", "kvfast"])
def test_the_states_of_mode_align_are_those_where_steps_ended(name: str) -> None:
    implementation = find_implementation(name)
    for drafted, *steps in product((0, 1, 2), *[(1, 3, 4, 5, 8)] * 3):
        spec = mamba(4, "align", speculative=drafted)
        groups = (KVCacheGroup(("layer0",), spec),)
        config = ManagerConfig(KVCacheConfig(30, groups), 100, hash_seed="0")
        manager = implementation.create(config, check_invariants=False)
        request = implementation.make_request(manager, RequestInput("r", range(sum(steps))))
        there: set[int] = set()
        for step in steps:
            computed = request.num_computed_tokens
            sure = max(0, computed - drafted)
            there = {entry for entry in there if is_read(spec, tokens_of(entry, 4), sure)}
            assert manager.allocate_slots(request, step) is not None
            request.num_computed_tokens = computed + step
            last = (computed + step - 1) // 4
            there.add(last)
            (blocks,) = manager.get_blocks(request).groups
            held = {entry for entry, block in enumerate(blocks) if block}
            assert held == there | set(range(last + 1, last + 1 + drafted)), (drafted, steps)
