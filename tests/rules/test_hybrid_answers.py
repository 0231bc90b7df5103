"""KV-COORD: each group's own hit, the end of a search, and what is handed to the cache."""

from __future__ import annotations

from typing import Any

import pytest

from kvspec.errors import UnsupportedError
from tests.rules.builders import MakeManager, MakeRequest, admit, full, run_on
from tests.rules.hybrids import THREE_CACHED, THREE_KINDS, Cache, first
from tests.rules.specs import counts_of, mamba, sliding


@pytest.mark.rule("KV-COORD-9")
@pytest.mark.parametrize(("limit", "lengths"), [(59, (56, 48, 56)), (47, (40, 32, 40))])
def test_every_group_tells_its_own_hit(
    cache: Cache, limit: int, lengths: tuple[int, int, int]
) -> None:
    """For 59 tokens 56, 48 and 56, where the agreed hit is 32."""
    cached = cache(THREE_KINDS, THREE_CACHED)
    found = cached.manager.find_longest_cache_hit_per_group(cached.request, limit)
    assert found.hit_lengths_tokens == lengths
    sizes = (4, 4, 8)
    assert tuple(
        len(blocks) * size for blocks, size in zip(found.blocks.groups, sizes, strict=True)
    ) == (lengths)


@pytest.mark.rule("KV-COORD-4", "KV-COORD-9")
def test_groups_with_equal_specs_tell_one_hit(cache: Cache) -> None:
    """Each of two windows fills itself at 40 or 36; the rightmost run of both ends at 24."""
    specs = [full(4), sliding(4, 6), sliding(4, 6)]
    cached = cache(specs, [first(14), {4, 5, 8, 9}, {4, 5, 7, 8}])
    found = cached.manager.find_longest_cache_hit_per_group(cached.request, 59)
    assert found.hit_lengths_tokens == (56, 24, 24)


@pytest.mark.rule("KV-COORD-9")
def test_every_eagle_group_drops_its_own_block(cache: Cache) -> None:
    """All flagged, block 9 of the window cached too: 48, 24, and 56 for Mamba."""
    positions = [THREE_CACHED[0], {*THREE_CACHED[1], 9}, THREE_CACHED[2]]
    cached = cache(THREE_KINDS, positions, use_eagle=True)
    found = cached.manager.find_longest_cache_hit_per_group(cached.request, 59)
    assert found.hit_lengths_tokens == (48, 24, 56)


@pytest.mark.rule("KV-COORD-9", "KV-STAT-1")
def test_a_look_up_per_group_ends_with_the_request_and_is_not_counted(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Any limit above the request's tokens is as good as their number."""
    manager = make_manager(40, specs=[full(4), sliding(4, 6)], log_stats=True)
    request = make_request(manager, "r", range(16))
    admit(manager, request)
    manager.make_prefix_cache_stats()
    for limit in (16, 17, 1000):
        found = manager.find_longest_cache_hit_per_group(request, limit)
        assert found.hit_lengths_tokens == (16, 16)
    stats = manager.make_prefix_cache_stats()
    assert stats is not None
    assert stats.requests == 0


@pytest.mark.rule("KV-COORD-9")
@pytest.mark.parametrize(
    "config",
    [
        {"specs": [full(4)]},
        {"specs": [full(4), sliding(4, 6)], "enable_caching": False},
        {"specs": [], "enable_caching": False},
    ],
    ids=["one_group", "caching_off", "no_group"],
)
def test_a_look_up_per_group_needs_several_cached_groups(
    make_manager: MakeManager, make_request: MakeRequest, config: dict[str, Any]
) -> None:
    """With one group, or nothing cached, there is nothing to tell apart."""
    manager = make_manager(20, **config)
    request = make_request(manager, "r", range(8))
    with pytest.raises(UnsupportedError):
        manager.find_longest_cache_hit_per_group(request, 8)


@pytest.mark.rule("KV-COORD-10")
def test_two_groups_without_full_attention_need_rounds(cache: Cache) -> None:
    """Window 40, state 36; 7, 8 are not both there, so 24; the state after 24 agrees."""
    cached = cache([sliding(4, 6), mamba(4)], [{3, 4, 5, 6, 8, 9}, {3, 5, 8}])
    assert cached.hit() == cached.expected(24, [{4, 5}, {5}])


@pytest.mark.rule("KV-COORD-10", "KV-COORD-11")
def test_full_attention_and_one_other_need_one_round(cache: Cache) -> None:
    """56, then 24: the first list is cut to 6 blocks."""
    cached = cache([full(4), sliding(4, 6)], [first(14), {2, 3, 4, 5}])
    assert cached.hit() == cached.expected(24, [first(6), {4, 5}])


@pytest.mark.rule("KV-COORD-11")
def test_every_full_attention_list_is_cut(cache: Cache) -> None:
    """Blocks of 4, of 8, and a window: 24 tokens are lists of 6, 3 and 6."""
    cached = cache([full(4), full(8), sliding(4, 6)], [first(14), first(7), {2, 3, 4, 5}])
    assert cached.hit() == cached.expected(24, [first(6), first(3), {4, 5}])
    assert [len(blocks) for blocks in cached.hit().blocks.groups] == [6, 3, 6]


@pytest.mark.rule("KV-COORD-12", "KV-MGR-2")
def test_the_uncached_common_prefix_is_none_where_nobody_searches(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """One group, caching off, and a request that skips reading; 0 in an empty hybrid."""
    hybrid = [full(4), sliding(4, 6)]
    for config, content, expected in (
        ({"specs": [full(4)]}, {}, None),
        ({"specs": hybrid, "enable_caching": False}, {}, None),
        ({"specs": hybrid}, {"skip_reading_cache": True}, None),
        ({"specs": hybrid}, {}, 0),
    ):
        manager = make_manager(40, **config)
        request = make_request(manager, "r", range(16), **content)
        hit = manager.get_computed_blocks(request)
        assert hit.uncached_common_prefix_tokens == expected


@pytest.mark.rule("KV-COORD-13", "KV-GRP-1")
@pytest.mark.parametrize(
    ("computed", "flagged", "plain"),
    [
        (14, None, None),
        (18, (1, 4), (1, 4)),
        (22, (1, 5), (1, 4)),
        (28, (1, 5), (1, 4)),
        (32, (2, 8), (2, 8)),
        (36, (2, 9), (2, 8)),
    ],
)
def test_caching_ends_at_a_boundary_and_one_block_later_with_eagle(
    make_manager: MakeManager,
    make_request: MakeRequest,
    computed: int,
    flagged: tuple[int, int] | None,
    plain: tuple[int, int] | None,
) -> None:
    """Full with B = 16, a window with B = 4: counts at 22 tokens are 1 and 5, unflagged 1 and 4."""
    for eagle_groups, counts in (([1], flagged), ([], plain)):
        manager = make_manager(40, specs=[full(16), sliding(4, 6)], eagle_groups=eagle_groups)
        request = make_request(manager, "r", range(40))
        admit(manager, request, computed)
        assert counts_of(manager, request) == (counts or (None, None))


@pytest.mark.rule("KV-COORD-13", "KV-MGR-11")
def test_caching_goes_on_where_it_ended(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Flagged window: at 18 tokens 4 blocks, the fifth at 20, the next at 32."""
    manager = make_manager(40, specs=[full(16), sliding(4, 6)], eagle_groups=[1])
    request = make_request(manager, "r", range(40))
    admit(manager, request, 18)
    seen = []
    for _ in range(18):
        run_on(manager, request)
        seen.append(counts_of(manager, request)[1])
    assert seen == [4, *[5] * 12, *[8] * 4, 9]
