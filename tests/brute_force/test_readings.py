"""The hardest rules read token by token, beside the reading by tails and beside both twins.

Every case within small bounds: what is worth caching and handed over (KV-RET-*, KV-COORD-13), the
most that admission counts (KV-SW-7, KV-CHUNK-5), which states a request of mode align has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest

import kvref
from kvcheck.discovery import find_implementation
from kvcheck.rules.specs import chunked, full, mamba, sliding
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.request import RequestInput
from kvspec.specs import LayerSpec
from tests.brute_force import by_token
from tests.brute_force.agreement import attention_groups
from tests.brute_force.by_token import is_handed_over, is_read, most_held, tokens_of, tokens_read
from tests.brute_force.caching import cached_positions

ALIGNMENT = 4
RETENTIONS = (None, 0, ALIGNMENT, 2 * ALIGNMENT)
LENGTHS = range(1, 3 * ALIGNMENT + 2)
WINDOWED: tuple[LayerSpec, ...] = (
    *(sliding(size, window) for size in (1, 2, 4) for window in (1, 2, 3, 4, 5, 9)),
    *(mamba(size) for size in (1, 2, 4)),
)


def hybrids() -> Iterator[ManagerConfig]:
    """Full attention beside every small window and state, flagged or not, with every retention."""
    for spec, is_eagle, retention in product(WINDOWED, (False, True), RETENTIONS):
        groups = (
            KVCacheGroup(("layer0",), full(ALIGNMENT)),
            KVCacheGroup(("layer1",), spec, is_eagle_group=is_eagle),
        )
        config = ManagerConfig(KVCacheConfig(9, groups), 100, retention_interval_tokens=retention)
        yield kvref.implementation().create(config).config


def disagreement() -> object:
    """The first configuration and length of which the two readings say something else."""
    for config in hybrids():
        for group, spec in enumerate(config.managed_specs):
            (own,) = [found for found in attention_groups(config) if group in found.members]
            for length in LENGTHS:
                read = {
                    block
                    for block in range(length)
                    if is_handed_over(config, spec.block_size, block, length, is_eagle=own.is_eagle)
                    and by_token.is_worth_caching(
                        config, spec, block, length, is_eagle=own.is_eagle
                    )
                }
                if read != cached_positions(config, group, length):
                    return config, group, length
    return None


@pytest.mark.rule("KV-RET-1", "KV-RET-2", "KV-RET-3", "KV-RET-4", "KV-RET-5", "KV-COORD-13")
def test_what_is_cached_is_the_same_by_tokens_and_by_tails() -> None:
    assert disagreement() is None


def test_another_reading_of_a_boundary_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the last token of a prompt could hit."""
    right = by_token.boundaries
    monkeypatch.setattr(
        by_token, "boundaries", lambda config, prompt, end: right(config, prompt + 1, end)
    )
    assert disagreement() is not None


@pytest.mark.rule("KV-SW-7", "KV-CHUNK-5", "KV-MGR-5")
def test_admission_counts_what_can_be_held_at_once() -> None:
    """By trying every step from every place: never too few, and at most one block too many."""
    config = next(hybrids())
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
    """A step leaves the state at its end, and blocks for drafts; one that is read stays."""
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
