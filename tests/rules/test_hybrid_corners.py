"""KV-COORD and KV-SW at the edges: alignments of three blocks, drops that leave next to nothing."""

from __future__ import annotations

import pytest

from tests.rules.builders import full
from tests.rules.hybrids import Cache, first
from tests.rules.specs import mamba, sliding


@pytest.mark.rule("KV-SW-2", "KV-COORD-7")
def test_a_run_ends_on_the_alignment_when_its_last_block_is_dropped(cache: Cache) -> None:
    """A = 12, r = 3: of blocks 6 … 11 the run is 7, 8, 9; without 9 it ends at 36."""
    cached = cache([full(12), sliding(4, 6)], [first(4), set(range(6, 12))], eagle_groups=[1])
    assert cached.hit() == cached.expected(36, [first(3), {7, 8}])
    lengths = cached.manager.find_longest_cache_hit_per_group(cached.request, 59)
    assert lengths.hit_lengths_tokens == (48, 36)


@pytest.mark.rule("KV-SW-4", "KV-SW-5")
@pytest.mark.parametrize("positions", [{1, 2}, {1}, {0, 2, 3}])
def test_blocks_behind_a_missing_first_one_are_no_hit(cache: Cache, positions: set[int]) -> None:
    """A = 8, r = 5: of 1 and 2 nothing counts; of 0, 2 and 3 only 0, which ends at no boundary."""
    cached = cache([full(8), sliding(4, 14)], [first(7), positions], eagle_groups=[1])
    assert cached.hit() == cached.expected(0, [set(), set()])
    found = cached.manager.find_longest_cache_hit_per_group(cached.request, 59)
    assert found.hit_lengths_tokens == (56, 0)


@pytest.mark.rule("KV-SW-4", "KV-SW-5")
def test_a_short_run_is_cut_before_and_after_the_drop(cache: Cache) -> None:
    """A = 12, r = 9: k = 7 passes the first cut, for (7 - 1) · 4 = 24; then 6, 5, 3."""
    cached = cache([full(12), sliding(4, 30)], [first(4), first(7)], eagle_groups=[1])
    assert cached.hit() == cached.expected(12, [first(1), first(3)])


@pytest.mark.rule("KV-COORD-10", "KV-SW-6")
def test_one_round_is_all_even_if_another_would_shorten_the_hit(cache: Cache) -> None:
    """W = 1 with a drop: block 5 is found and dropped. A second round would find no block."""
    cached = cache([full(4), sliding(4, 1)], [first(14), {5}], eagle_groups=[1])
    assert cached.hit() == cached.expected(20, [first(5), set()])


@pytest.mark.rule("KV-COORD-8")
def test_an_answer_of_the_same_length_clears_no_marks(cache: Cache) -> None:
    """Window 6: 52. Window 10: drops to 40. Mamba has just that, so 8, 9 confirm it, without 10."""
    specs = [full(4), sliding(4, 6), sliding(4, 10), mamba(4)]
    positions = [first(13), first(14) - {10}, {7, 8, 9, 10}, {9}]
    cached = cache(specs, positions, eagle_groups=[1, 2])
    assert cached.hit() == cached.expected(40, [first(10), {8, 9}, {7, 8, 9}, {9}])
