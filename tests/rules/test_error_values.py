"""KV-ERR-2: an error carries the field and the value that are wrong, for every argument."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from kvspec.blocks import KVCacheBlocks
from kvspec.errors import (
    BlockReleaseError,
    ConfigError,
    InvalidArgumentError,
    StaleHitError,
    UnsupportedError,
)
from kvspec.interface import Implementation
from kvspec.specs import SinkFullAttentionSpec
from tests.rules.builders import MakeManager, MakeRequest, Story, everything, full
from tests.rules.specs import chunked, cross, encoder_only, sliding
from tests.rules.test_bad_configurations import BAD_CONFIGURATIONS

Call = Callable[[Story], Any]

HITS = KVCacheBlocks(([1],))
CALLS: dict[str, tuple[Call, str, object]] = {
    "new_tokens": (lambda s: s.manager.allocate_slots(s.a, 0), "num_new_tokens", 0),
    "lookahead": (
        lambda s: s.manager.allocate_slots(s.a, 1, num_lookahead_tokens=-1),
        "num_lookahead_tokens",
        -1,
    ),
    "computed": (
        lambda s: s.manager.allocate_slots(s.a, 1, num_new_computed_tokens=-2),
        "num_new_computed_tokens",
        -2,
    ),
    "external": (
        lambda s: s.manager.allocate_slots(s.a, 1, num_external_computed_tokens=-3),
        "num_external_computed_tokens",
        -3,
    ),
    "encoder": (
        lambda s: s.manager.allocate_slots(s.a, 1, num_encoder_tokens=-4),
        "num_encoder_tokens",
        -4,
    ),
    "reserved": (
        lambda s: s.manager.allocate_slots(s.a, 1, reserved_blocks=-5),
        "reserved_blocks",
        -5,
    ),
    "flag": (
        lambda s: s.manager.allocate_slots(s.a, 1, delay_cache_blocks=1),  # type: ignore[arg-type]  # the point
        "delay_cache_blocks",
        1,
    ),
    "whole": (
        lambda s: s.manager.allocate_slots(s.a, 1, full_sequence_must_fit=1),  # type: ignore[arg-type]  # the point
        "full_sequence_must_fit",
        1,
    ),
    "others": (
        lambda s: s.manager.allocate_slots(s.a, 1, has_scheduled_reqs=1),  # type: ignore[arg-type]  # the point
        "has_scheduled_reqs",
        1,
    ),
    "hits_of_one_that_holds_blocks": (
        lambda s: s.manager.allocate_slots(
            s.a, 1, num_new_computed_tokens=4, new_computed_blocks=HITS
        ),
        "new_computed_blocks",
        [[1]],
    ),
    "hits_of_no_type": (
        lambda s: s.manager.allocate_slots(s.a, 1, new_computed_blocks=[[1]]),  # type: ignore[arg-type]  # the point
        "new_computed_blocks",
        [[1]],
    ),
    "hits_of_two_groups": (
        lambda s: s.manager.allocate_slots(s.a, 1, new_computed_blocks=KVCacheBlocks(((), ()))),
        "new_computed_blocks",
        KVCacheBlocks(((), ())),
    ),
    "hits_no_sequence": (
        lambda s: s.manager.allocate_slots(s.a, 1, new_computed_blocks=KVCacheBlocks(({1},))),  # type: ignore[arg-type]  # the point
        "new_computed_blocks[0]",
        {1},
    ),
    "need_tokens": (lambda s: _need(s, num_tokens=-1), "num_tokens", -1),
    "need_computed": (lambda s: _need(s, total_computed_tokens=-2), "total_computed_tokens", -2),
    "need_main": (lambda s: _need(s, num_tokens_main_model=-3), "num_tokens_main_model", -3),
    "need_encoder": (lambda s: _need(s, num_encoder_tokens=-4), "num_encoder_tokens", -4),
    "need_cap": (lambda s: _need(s, apply_admission_cap=1), "apply_admission_cap", 1),
    "cached_too_far": (lambda s: s.manager.cache_blocks(s.a, 11), "num_computed_tokens", 11),
    "cached_below_0": (lambda s: s.manager.cache_blocks(s.a, -1), "num_computed_tokens", -1),
    "skipped": (
        lambda s: s.manager.remove_skipped_blocks(s.a, -1),
        "total_computed_tokens",
        -1,
    ),
    "partial_group": (lambda s: s.manager.cache_partial_block(s.a, 1, 2), "group", 1),
    "partial_size": (lambda s: s.manager.cache_partial_block(s.a, 0, 2), "group", 0),
    "freed_set": (lambda s: s.manager.free_blocks({1}), "block_ids", {1}),  # type: ignore[arg-type]  # the point
}  # fmt: skip


SHOWN_SHORTER = {"new_computed_blocks": (1,)}
"""How many blocks there are will do for long lists."""


def _need(story: Story, **arguments: Any) -> int:
    """What a would need, with one argument that is illegal."""
    legal = {"num_tokens": 11, "total_computed_tokens": 10, "num_tokens_main_model": 11}
    return story.manager.get_num_blocks_to_allocate(story.a, **{**legal, **arguments})


@pytest.mark.rule("KV-ERR-2")
@pytest.mark.parametrize(("call", "field", "value"), CALLS.values(), ids=CALLS.keys())
def test_an_illegal_argument_is_named_with_its_value(
    story: Story, call: Call, field: str, value: object
) -> None:
    """And nothing has changed."""
    before = everything(story.manager)
    with pytest.raises(InvalidArgumentError) as caught:
        call(story)
    assert caught.value.field == field
    assert caught.value.value in (value, *SHOWN_SHORTER.get(field, ()))
    assert caught.value.allowed
    assert not isinstance(caught.value, ConfigError)
    assert everything(story.manager) == before


@pytest.mark.rule("KV-ERR-2")
@pytest.mark.parametrize(
    ("member", "value"),
    [("num_preemptions", -1), ("status", "asleep"), ("num_computed_tokens", -1)],
)
def test_what_the_scheduler_says_of_a_request_is_checked(
    story: Story, member: str, value: object
) -> None:
    """The error names the member and what it was, whether it shows when set or when used."""

    def say_so_and_allocate() -> None:
        setattr(story.a, member, value)
        story.manager.allocate_slots(story.a, 1)

    with pytest.raises(InvalidArgumentError) as caught:
        say_so_and_allocate()
    assert not isinstance(caught.value, ConfigError)
    assert caught.value.field in (member, f"request.{member}")
    assert caught.value.value == value


@pytest.mark.rule("KV-ERR-2", "KV-REQ-3")
def test_more_computed_tokens_than_slots_are_named(story: Story) -> None:
    """Request a holds 3 blocks of 4."""
    story.a.num_computed_tokens = 13
    with pytest.raises(InvalidArgumentError, match="12 slots") as caught:
        story.manager.allocate_slots(story.a, 1)
    assert (caught.value.field, caught.value.value) == ("request.num_computed_tokens", 13)


@pytest.mark.rule("KV-ERR-2", "KV-MGR-8")
def test_hits_that_do_not_fit_are_named(story: Story, make_request: MakeRequest) -> None:
    """A list of the wrong length, with its group; a block that holds something else, its place."""
    other = make_request(story.manager, "c", range(1, 11))
    with pytest.raises(InvalidArgumentError) as caught:
        story.manager.allocate_slots(
            other, 1, num_new_computed_tokens=8, new_computed_blocks=KVCacheBlocks(((1,),))
        )
    assert caught.value.field == "new_computed_blocks[0]"
    assert caught.value.value in ([1], 1)
    for blocks, index, block in (((1, 3), 1, 3), ((0, 2), 0, 0), ((2, 1), 0, 2)):
        with pytest.raises(StaleHitError) as stale:
            story.manager.allocate_slots(
                other, 1, num_new_computed_tokens=8, new_computed_blocks=KVCacheBlocks((blocks,))
            )
        assert (stale.value.group, stale.value.index, stale.value.block_id) == (0, index, block)


@pytest.mark.rule("KV-ERR-2", "KV-GRP-9")
def test_a_load_into_blocks_of_its_own_is_named(story: Story, make_request: MakeRequest) -> None:
    """Request c holds a block of which nothing was handed to the cache yet."""
    other = make_request(story.manager, "c", range(30, 40))
    assert story.manager.allocate_slots(other, 4, delay_cache_blocks=True) is not None
    with pytest.raises(InvalidArgumentError) as caught:
        story.manager.allocate_slots(other, 1, num_external_computed_tokens=4)
    assert (caught.value.field, caught.value.value) == ("num_external_computed_tokens", 4)


@pytest.mark.rule("KV-ERR-2", "KV-POOL-9")
def test_a_reference_returned_too_often_is_counted(story: Story) -> None:
    """Block 2 was popped once."""
    story.manager.pop_blocks_for_free(story.a)
    with pytest.raises(BlockReleaseError) as caught:
        story.manager.free_blocks([1, 2, 2])
    assert (caught.value.block_id, caught.value.released, caught.value.held) == (2, 2, 1)


@pytest.mark.rule("KV-ERR-2")
def test_a_request_made_for_other_hashes_is_named(
    story: Story, make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Made for blocks of 8; and what is no request at all."""
    foreign = make_request(make_manager(6, 8), "foreign", range(9))
    with pytest.raises(InvalidArgumentError) as caught:
        story.manager.get_computed_blocks(foreign)
    assert (caught.value.field, caught.value.value) == ("request", "foreign")
    with pytest.raises(InvalidArgumentError) as caught:
        story.manager.get_computed_blocks("a")  # type: ignore[arg-type]  # the point
    assert (caught.value.field, caught.value.value) == ("request", "a")


@pytest.mark.rule("KV-ERR-2", "KV-PART-1")
@pytest.mark.parametrize("num_tokens", [0, 3, 16, 20])
def test_a_bad_end_of_a_partial_entry_is_named(
    make_manager: MakeManager, make_request: MakeRequest, num_tokens: int
) -> None:
    """Blocks of 4 and of 8, a hash each 4; the request has 14 tokens."""
    manager = make_manager(20, specs=[full(4), sliding(8, 16)])
    request = make_request(manager, "r", range(14))
    manager.allocate_slots(request, 14)
    with pytest.raises(InvalidArgumentError) as caught:
        manager.cache_partial_block(request, 1, num_tokens)
    assert (caught.value.field, caught.value.value) == ("num_tokens", num_tokens)
    assert not isinstance(caught.value, ConfigError)


@pytest.mark.rule("KV-ERR-2", "KV-MGR-8")
def test_hits_beyond_the_hashes_of_a_request_are_stale(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """12 tokens have 3 hashes, a block of 8 takes 2: the second block of 8 has none."""
    manager = make_manager(20, specs=[sliding(8, 16), full(4)])
    first = make_request(manager, "first", range(20))
    manager.allocate_slots(first, 20)
    windows, attention = manager.get_blocks(first).to_lists()
    request = make_request(manager, "r", range(12))
    offered = KVCacheBlocks((tuple(windows[:2]), tuple(attention[:4])))
    with pytest.raises(StaleHitError) as caught:
        manager.allocate_slots(request, 1, num_new_computed_tokens=16, new_computed_blocks=offered)
    assert (caught.value.group, caught.value.index) == (0, 1)


GROUPS = "kv_cache.groups"
OF_SPECS: dict[str, object] = {
    "no_group": (),
    "encoder": True,
    "encoder_only": True,
    "chunk_inside_a_block": 6,
    "eagle_chunks": True,
    "chunks_beside_larger_blocks": 4,
}
"""Values that stand in no member of the configuration."""


@pytest.mark.rule("KV-ERR-5")
@pytest.mark.parametrize(
    ("name", "config", "field"),
    [(case[0], case[2], case[3]) for case in BAD_CONFIGURATIONS if case[0] != "one_spec_twice"],
    ids=[case[0] for case in BAD_CONFIGURATIONS if case[0] != "one_spec_twice"],
)
def test_a_bad_configuration_is_shown_by_its_value(
    make_manager: MakeManager, name: str, config: dict[str, Any], field: str
) -> None:
    """The member as it was given, or what the spec says."""
    with pytest.raises(ConfigError) as caught:
        make_manager(40, **config)
    expected = OF_SPECS[name] if name in OF_SPECS else config[field]
    assert (caught.value.field, caught.value.value) == (field, expected)


@pytest.mark.rule("KV-ERR-5", "KV-COORD-3")
def test_groups_that_should_be_one_are_shown(make_manager: MakeManager) -> None:
    with pytest.raises(ConfigError) as caught:
        make_manager(40, specs=[full(4), full(4)])
    assert caught.value.field == GROUPS
    assert [group.spec for group in caught.value.value] == [full(4), full(4)]  # type: ignore[attr-defined]  # groups


@pytest.mark.rule("KV-ERR-5", "KV-FULL-8")
def test_sinks_that_do_not_fit_are_shown(make_manager: MakeManager) -> None:
    """8 tokens of sinks take 2 blocks of 4; beside the null block there is one."""
    sinks = SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=8)
    with pytest.raises(ConfigError, match=r"at most .*1 blocks") as caught:
        make_manager(2, specs=[sinks])
    assert (caught.value.field, caught.value.value) == ("sink_len", 2)


@pytest.mark.rule("KV-ERR-2", "KV-COORD-9")
def test_look_ups_per_group_need_groups(story: Story, implementation: Implementation) -> None:
    with pytest.raises(UnsupportedError) as caught:
        story.manager.find_longest_cache_hit_per_group(story.a, 8)
    assert "per-group look-ups" in caught.value.capability
    assert caught.value.implementation == implementation.capabilities.name


@pytest.mark.rule("KV-ERR-2")
def test_what_is_no_clock_configuration_or_manager_is_shown(
    implementation: Implementation, make_manager: MakeManager, story: Story
) -> None:
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: make_manager(6, clock=7), "clock"),
        (lambda: implementation.create(7), "config"),  # type: ignore[arg-type]  # the point
        (lambda: implementation.make_request(7, story.a), "manager"),  # type: ignore[arg-type]  # the point
        (lambda: implementation.make_request(story.manager, 7), "request"),  # type: ignore[arg-type]  # the point
        (lambda: implementation.restore(story.manager.config, 7), "snapshot"),  # type: ignore[arg-type]  # the point
        (lambda: implementation.make_hit_rate_window().observe(7), "stats"),  # type: ignore[arg-type]  # the point
    ]
    for call, field in cases:
        with pytest.raises(InvalidArgumentError) as caught:
            call()
        assert (caught.value.field, caught.value.value) == (field, 7)
    with pytest.raises(InvalidArgumentError) as caught:
        implementation.make_hit_rate_window(0)
    assert (caught.value.field, caught.value.value) == ("max_requests", 0)
    leaked = replace(story.manager.snapshot(), free_queue=())
    with pytest.raises(InvalidArgumentError, match="leaked") as caught:
        implementation.restore(story.manager.config, leaked)
    assert caught.value.field == "snapshot"


@pytest.mark.rule("KV-ERR-5")
@pytest.mark.parametrize("spec", [cross(4), encoder_only(4), chunked(4, 8)], ids=repr)
def test_a_spec_that_can_be_served_is_no_error_with_caching_off(
    make_manager: MakeManager, spec: Any
) -> None:
    make_manager(40, specs=[spec], enable_caching=False)
