"""KV-COORD: attention groups, and the search for the hit that they agree on."""

from __future__ import annotations

from typing import Any

import pytest

from kvspec.errors import ConfigError
from kvspec.specs import LayerSpec, MLAAttentionSpec
from tests.rules.builders import MakeManager, MakeRequest, admit, full
from tests.rules.hybrids import THREE_CACHED, THREE_KINDS, Cache, first
from tests.rules.specs import lists_of, mamba, sliding


@pytest.mark.rule("KV-COORD-3", "KV-ERR-5")
@pytest.mark.parametrize("num_groups", [2, 3])
def test_several_groups_of_one_spec_are_refused(make_manager: MakeManager, num_groups: int) -> None:
    """With caching on they belong into one group; with caching off they are legal."""
    with pytest.raises(ConfigError) as caught:
        make_manager(20, specs=[full(4)] * num_groups)
    assert caught.value.field == "kv_cache.groups"
    make_manager(20, specs=[full(4)] * num_groups, enable_caching=False)
    make_manager(20, specs=[*[full(4)] * num_groups, sliding(4, 8)])


@pytest.mark.rule("KV-COORD-3", "KV-CFG-6", "KV-ERR-5")
@pytest.mark.parametrize("field", ["dcp_world_size", "pcp_world_size"])
@pytest.mark.parametrize("caching", [True, False])
def test_context_parallelism_of_several_groups_is_refused(
    make_manager: MakeManager, field: str, caching: bool
) -> None:
    """Full attention and a window on 2 ranks."""
    specs = [full(4), sliding(4, 8)]
    ranks: dict[str, Any] = {field: 2}
    with pytest.raises(ConfigError) as caught:
        make_manager(20, specs=specs, enable_caching=caching, **ranks)
    assert (caught.value.field, caught.value.value) == (field, 2)


@pytest.mark.rule("KV-COORD-4")
def test_groups_with_equal_specs_are_looked_up_jointly(cache: Cache) -> None:
    """Full 1 and 4: of 0 … 3, 5 and 0 … 4 the joint hit is 0 … 3; windows 0 and 2 likewise."""
    specs = [sliding(4, 6), full(4), sliding(4, 6), mamba(4), full(4)]
    cached = cache(specs, [first(14), {0, 1, 2, 3, 5}, first(14), first(14), first(5)])
    assert cached.hit() == cached.expected(16, [{2, 3}, first(4), {2, 3}, {3}, first(4)])
    assert cached.hit().uncached_common_prefix_tokens == 0
    cached = cache(specs, [first(14), first(14), first(14) - {3}, first(14), first(4)])
    assert cached.hit() == cached.expected(12, [{1, 2}, first(3), {1, 2}, {2}, first(3)])


@pytest.mark.rule("KV-COORD-4", "KV-CFG-8")
@pytest.mark.parametrize("flagged", [0, 2])
def test_one_flag_counts_for_all_groups_of_a_spec(cache: Cache, flagged: int) -> None:
    """Windows 0 and 2 drop both, whichever is flagged; full attention between them does not."""
    specs = [sliding(4, 6), full(4), sliding(4, 6)]
    cached = cache(specs, [first(10), first(14), first(10)], eagle_groups=[flagged])
    lengths = cached.manager.find_longest_cache_hit_per_group(cached.request, 59)
    assert lengths.hit_lengths_tokens == (36, 56, 36)


@pytest.mark.rule("KV-COORD-4", "KV-COORD-12")
@pytest.mark.parametrize(
    "spec", [full(4), MLAAttentionSpec(4, 1, 8, "float16")], ids=["plain", "mla"]
)
def test_full_attention_is_asked_first(cache: Cache, spec: LayerSpec) -> None:
    """Configured last, it still bounds the window: 56 was its answer, 24 is the hit."""
    cached = cache([sliding(4, 6), spec], [first(6), first(14)])
    hit = cached.hit()
    assert (hit.hit_length_tokens, hit.uncached_common_prefix_tokens) == (24, 32)


@pytest.mark.rule("KV-COORD-4", "KV-COORD-12")
@pytest.mark.parametrize(("order", "uncached"), [((0, 1), 32), ((1, 0), 0)])
def test_other_groups_are_asked_in_the_order_of_first_members(
    cache: Cache, order: tuple[int, int], uncached: int
) -> None:
    """The state after 40 counts as answered only if Mamba is asked before the window."""
    both = [(mamba(4), {1, 9}), (sliding(4, 6), {0, 1})]
    specs, positions = zip(*(both[i] for i in order), strict=True)
    hit = cache(specs, positions).hit()
    assert (hit.hit_length_tokens, hit.uncached_common_prefix_tokens) == (8, uncached)


@pytest.mark.rule("KV-COORD-5", "KV-COORD-10", "KV-COORD-12")
def test_groups_are_asked_again_until_all_agree(cache: Cache) -> None:
    """56, 48, 40 in the first round; 32 in the second; the third shortens nothing."""
    cached = cache(THREE_KINDS, THREE_CACHED)
    assert cached.hit() == cached.expected(32, [first(8), {6, 7}, {3}])
    assert cached.hit().uncached_common_prefix_tokens == 24


@pytest.mark.rule("KV-COORD-5", "KV-GRP-8")
def test_an_agreed_hit_is_taken_by_all_groups(cache: Cache, make_request: MakeRequest) -> None:
    """The lists of the second request begin with the 8, 8 and 4 entries of the answer."""
    cached = cache(THREE_KINDS, THREE_CACHED)
    cached.manager.new_step_starts()
    request = make_request(cached.manager, "second", range(60))
    hit = cached.manager.get_computed_blocks(request).blocks.to_lists()
    assert admit(cached.manager, request) is not None
    lists = lists_of(cached.manager, request)
    assert [blocks[:n] for blocks, n in zip(lists, (8, 8, 4), strict=True)] == hit
    assert [len(blocks) for blocks in lists] == [15, 15, 8]


@pytest.mark.rule("KV-COORD-6", "KV-FULL-3")
def test_full_attention_drops_its_block_once(cache: Cache) -> None:
    """Flagged, 13 of 14 blocks are cut to 48; three rounds later the hit is 32, not less."""
    cached = cache(THREE_KINDS, THREE_CACHED, eagle_groups=[0])
    assert cached.hit() == cached.expected(32, [first(8), {6, 7}, {3}])
    assert cached.hit().uncached_common_prefix_tokens == 48 - 32


@pytest.mark.rule("KV-COORD-7", "KV-COORD-8", "KV-COORD-12")
def test_an_eagle_group_drops_again_at_another_length(cache: Cache) -> None:
    """52, 44, 28 in the first round; 20 in the second, dropped anew; the third confirms."""
    specs = [full(4), sliding(4, 6), sliding(4, 10)]
    positions = [first(13), {2, 3, 4, 5, 7, 8, 9, 10, 11}, {1, 2, 3, 4, 5, 6, 8, 9}]
    cached = cache(specs, positions, eagle_groups=[1])
    assert cached.hit() == cached.expected(20, [first(5), {3, 4}, {2, 3, 4}])
    assert cached.hit().uncached_common_prefix_tokens == 32


@pytest.mark.rule("KV-COORD-7")
@pytest.mark.parametrize(("cached_blocks", "length"), [(11, 40), (10, 36), (14, 40)])
def test_an_eagle_group_looks_one_block_further(
    cache: Cache, cached_blocks: int, length: int
) -> None:
    """Full has 40 tokens. The window keeps 40 if its block 10 is there too, and then drops it."""
    cached = cache([full(4), sliding(4, 6)], [first(10), first(cached_blocks)], eagle_groups=[1])
    assert cached.hit().hit_length_tokens == length


@pytest.mark.rule("KV-COORD-7", "KV-MGR-1")
def test_an_eagle_group_never_looks_beyond_the_limit(
    cache: Cache, make_request: MakeRequest
) -> None:
    """48 tokens, L = 47: block 11 would end at 48, so the window drops block 10: 40."""
    cached = cache([full(4), sliding(4, 6)], [first(14), first(14)], eagle_groups=[1])
    for num_tokens, length in ((48, 40), (49, 44), (52, 44), (53, 48)):
        request = make_request(cached.manager, "r", range(num_tokens))
        assert cached.manager.get_computed_blocks(request).hit_length_tokens == length


@pytest.mark.rule("KV-COORD-8")
def test_a_flagged_mamba_group_looks_no_further_and_drops_nothing(cache: Cache) -> None:
    """Full drops one of 13 blocks, 48; the state after 56 does not count, the one after 40 does."""
    for states in ({0, 1, 2, 3, 4}, {4, 6}):
        cached = cache([full(4), mamba(8)], [first(13), states], use_eagle=True)
        assert cached.hit() == cached.expected(40, [first(10), {4}])
        assert cached.hit().uncached_common_prefix_tokens == 8


@pytest.mark.rule("KV-COORD-8")
def test_the_first_look_up_of_a_flagged_mamba_group_clears_nothing(cache: Cache) -> None:
    """Window: 52, its block 13 dropped. Mamba: 40. The window stays marked: 8, 9 confirm 40."""
    specs = [full(4), sliding(4, 6), mamba(4)]
    positions = [first(13), first(14) - {10}, {9}]
    cached = cache(specs, positions, eagle_groups=[1, 2])
    assert cached.hit() == cached.expected(40, [first(10), {8, 9}, {9}])


@pytest.mark.rule("KV-COORD-8")
def test_a_mamba_group_without_a_flag_clears_the_marks(cache: Cache) -> None:
    """The same with Mamba unflagged: the window must drop anew at 40, and 10 is not there."""
    specs = [full(4), sliding(4, 6), mamba(4)]
    positions = [first(13), first(14) - {10}, {8, 9}]
    cached = cache(specs, positions, eagle_groups=[1])
    assert cached.hit() == cached.expected(36, [first(9), {7, 8}, {8}])


@pytest.mark.rule("KV-COORD-7", "KV-COORD-8")
def test_a_drop_of_one_group_clears_no_mark_of_another(cache: Cache) -> None:
    """Window 6: 52, and marked. Window 10: drops to 40. Then 8, 9 confirm 40, without block 10."""
    specs = [full(4), sliding(4, 6), sliding(4, 10)]
    positions = [first(13), first(14) - {10}, {7, 8, 9, 10}]
    cached = cache(specs, positions, eagle_groups=[1, 2])
    assert cached.hit() == cached.expected(40, [first(10), {8, 9}, {7, 8, 9}])


@pytest.mark.rule("KV-COORD-8")
def test_a_marked_mamba_group_clears_like_any_other(cache: Cache) -> None:
    """Window 6 has no block 8, so it cannot keep 32, to which Mamba shortens in the second round.

    Round 1: 52, 52, 52, and window 10 drops to 44. Round 2: the state after 44 is missing, 32.
    Round 3: window 6 drops anew and has 5, 6, 7 but not 6, 7, 8: 28.
    """
    specs = [full(4), sliding(4, 6), mamba(4), sliding(4, 10)]
    positions = [
        first(13),
        first(14) - {8},
        {6, 7, 12},
        {3, 4, 5, 6, 7, 8, 9, 10, 11},
    ]
    cached = cache(specs, positions, eagle_groups=[1, 2, 3])
    assert cached.hit() == cached.expected(28, [first(7), {5, 6}, {6}, {4, 5, 6}])
