"""KV-ERR-2: an error carries the field and the value that are wrong, for every argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bad_configurations import BAD_CONFIGURATIONS, TWICE
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import chunked, cross, encoder_only, full, sliding
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import (
    ConfigError,
    InvalidArgumentError,
    StaleHitError,
    UnsupportedError,
)
from kvspec.interface import Feature
from kvspec.request import RequestInput

Call = Callable[[Managed, Any], Any]

HITS = KVCacheBlocks(([1],))


def _allocation(field: str, value: int) -> tuple[Call, str, object]:
    """One token more, with one option that is illegal."""
    return lambda m, a: m.allocate_slots(a, 1, **{field: value}), field, value


CALLS: Mapping[str, tuple[Call, str, object]] = {
    "new_tokens": (lambda m, a: m.allocate_slots(a, 0), "num_new_tokens", 0),
    "lookahead": _allocation("num_lookahead_tokens", -1),
    "computed": _allocation("num_new_computed_tokens", -2),
    "external": _allocation("num_external_computed_tokens", -3),
    "encoder": _allocation("num_encoder_tokens", -4),
    "reserved": _allocation("reserved_blocks", -5),
    "flag": _allocation("delay_cache_blocks", 1),
    "whole": _allocation("full_sequence_must_fit", 1),
    "others": _allocation("has_scheduled_reqs", 1),
    "hits_of_one_that_holds_blocks": (
        lambda m, a: m.allocate_slots(
            a, 1, num_new_computed_tokens=4, new_computed_blocks=HITS
        ),
        "new_computed_blocks",
        [[1]],
    ),
    "hits_of_no_type": (
        lambda m, a: m.allocate_slots(a, 1, new_computed_blocks=[[1]]),
        "new_computed_blocks",
        [[1]],
    ),
    "hits_of_two_groups": (
        lambda m, a: m.allocate_slots(a, 1, new_computed_blocks=KVCacheBlocks(((), ()))),
        "new_computed_blocks",
        KVCacheBlocks(((), ())),
    ),
    "hits_no_sequence": (
        lambda m, a: m.allocate_slots(a, 1, new_computed_blocks=KVCacheBlocks(({1},))),  # type: ignore[arg-type]  # the point
        "new_computed_blocks[0]",
        {1},
    ),
    "need_tokens": (lambda m, a: _need(m, a, num_tokens=-1), "num_tokens", -1),
    "need_computed": (
        lambda m, a: _need(m, a, total_computed_tokens=-2),
        "total_computed_tokens",
        -2,
    ),
    "need_main": (lambda m, a: _need(m, a, num_tokens_main_model=-3), "num_tokens_main_model", -3),
    "need_encoder": (lambda m, a: _need(m, a, num_encoder_tokens=-4), "num_encoder_tokens", -4),
    "need_cap": (lambda m, a: _need(m, a, apply_admission_cap=1), "apply_admission_cap", 1),
    "cached_too_far": (lambda m, a: m.cache_blocks(a, 11), "num_computed_tokens", 11),
    "cached_below_0": (lambda m, a: m.cache_blocks(a, -1), "num_computed_tokens", -1),
    "skipped": (
        lambda m, a: m.remove_skipped_blocks(a, -1),
        "total_computed_tokens",
        -1,
    ),
    "partial_group": (lambda m, a: m.cache_partial_block(a, 1, 2), "group", 1),
    "partial_size": (lambda m, a: m.cache_partial_block(a, 0, 2), "group", 0),
    "freed_set": (lambda m, a: m.free_blocks({1}), "block_ids", {1}),
}  # fmt: skip


SHOWN_SHORTER: Mapping[str, tuple[int, ...]] = {"new_computed_blocks": (1,)}
"""How many blocks there are will do for long lists."""


def _need(manager: Managed, a: Any, **arguments: Any) -> int:
    """What a would need, with one argument that is illegal."""
    legal = {"num_tokens": 11, "total_computed_tokens": 10, "num_tokens_main_model": 11}
    return manager.get_num_blocks_to_allocate(a, **{**legal, **arguments})


@cases(*CALLS.values())
@example("KV-ERR-2", level=Level.IDENTITY)
def an_illegal_argument_is_named_with_its_value(
    bench: Bench, call: Call, field: str, value: object
) -> None:
    """And nothing has changed."""
    if (field, value) == ("num_computed_tokens", 11):
        bench.need_usual("caching_beyond_tokens")
    manager, a, _ = bench.story()
    before = manager.everything()
    with raises(InvalidArgumentError, field=field) as caught:
        call(manager, a)
    holds(bench.is_remote or caught.value.value in (value, *SHOWN_SHORTER.get(field, ())))
    holds(caught.value.allowed)
    holds(not isinstance(caught.value, ConfigError))
    equal(manager.everything(), before)


@cases(
    ("num_preemptions", -1), ("status", "asleep"), ("num_computed_tokens", -1),
    ("junction_tokens", -1), ("junction_tokens", True), ("num_in_flight_tokens", -1),
)  # fmt: skip
@example("KV-ERR-2")
def what_the_scheduler_says_of_a_request_is_checked(
    bench: Bench, member: str, value: object
) -> None:
    """The error names the member and what it was, whether it shows when set or when used."""
    manager, a, _ = bench.story()
    needed = {"junction_tokens": Feature.JUNCTIONS, "num_in_flight_tokens": Feature.IN_FLIGHT}
    bench.need(*(feature for name, feature in needed.items() if name == member))

    def say_so_and_allocate() -> None:
        setattr(a, member, value)
        manager.allocate_slots(a, 1)

    with raises(InvalidArgumentError) as caught:
        say_so_and_allocate()
    holds(not isinstance(caught.value, ConfigError))
    holds(caught.value.field in (member, f"request.{member}"))
    equal(caught.value.value, value)


@example("KV-ERR-2", "KV-MGR-8", level=Level.IDENTITY)
def hits_that_do_not_fit_are_named(bench: Bench) -> None:
    """A list of the wrong length, with its group; a block that holds something else, its place."""
    manager = bench.story()[0]
    other = manager.request("c", range(1, 11))
    with manager.refuses(InvalidArgumentError, field="new_computed_blocks[0]") as caught:
        manager.allocate_slots(
            other, 1, num_new_computed_tokens=8, new_computed_blocks=KVCacheBlocks(((1,),))
        )
    holds(caught.value.value in ([1], 1))
    for blocks, index, block in (((1, 3), 1, 3), ((0, 2), 0, 0), ((2, 1), 0, 2)):
        with manager.refuses(StaleHitError) as stale:
            manager.allocate_slots(
                other, 1, num_new_computed_tokens=8, new_computed_blocks=KVCacheBlocks((blocks,))
            )
        equal((stale.value.group, stale.value.index, stale.value.block_id), (0, index, block))


@example("KV-ERR-2", "KV-GRP-9")
def a_load_into_blocks_of_its_own_is_named(bench: Bench) -> None:
    """Request c holds a block of which nothing was handed to the cache yet."""
    manager = bench.story()[0]
    other = manager.request("c", range(30, 40))
    holds(manager.allocate_slots(other, 4, delay_cache_blocks=True) is not None)
    with manager.refuses(InvalidArgumentError) as caught:
        manager.allocate_slots(other, 1, num_external_computed_tokens=4)
    equal((caught.value.field, caught.value.value), ("num_external_computed_tokens", 4))


@example("KV-ERR-2")
def a_request_made_for_other_hashes_is_named(bench: Bench) -> None:
    """Made for blocks of 8; what is no request at all; and one whose prompt is no sequence."""
    manager = bench.story()[0]
    with manager.refuses(InvalidArgumentError) as caught:
        manager.make_request(RequestInput("q", {1}))  # type: ignore[arg-type]  # the point
    equal((caught.value.field, caught.value.value), ("prompt_token_ids", {1}))
    foreign = bench.manager(6, 8).request("foreign", range(9))
    with manager.refuses(InvalidArgumentError) as caught:
        manager.get_computed_blocks(foreign)
    equal((caught.value.field, caught.value.value), ("request", "foreign"))
    with manager.refuses(InvalidArgumentError) as caught:
        manager.get_computed_blocks("a")
    equal((caught.value.field, caught.value.value), ("request", "a"))


@cases(0, 3, 16, 20)
@example("KV-ERR-2", "KV-PART-1")
def a_bad_end_of_a_partial_entry_is_named(bench: Bench, num_tokens: int) -> None:
    """Blocks of 4 and of 8, a hash each 4; the request has 14 tokens."""
    manager = bench.manager(20, full(4), sliding(8, 16))
    request = manager.request("r", range(14))
    manager.allocate_slots(request, 14)
    with manager.refuses(InvalidArgumentError) as caught:
        manager.cache_partial_block(request, 1, num_tokens)
    equal((caught.value.field, caught.value.value), ("num_tokens", num_tokens))
    holds(not isinstance(caught.value, ConfigError))


@example("KV-ERR-2", "KV-MGR-8", level=Level.IDENTITY, since="0.2")
def hits_beyond_the_hashes_of_a_request_are_stale(bench: Bench) -> None:
    """12 tokens have 3 hashes, a block of 8 takes 2: the second block of 8 has none.

    Nor is it one if it is null, even where no token after 24 reads it.
    """
    manager = bench.manager(20, sliding(8, 4), full(4))
    first = manager.request("first", range(28))
    manager.allocate_slots(first, 28)
    windows, attention = manager.get_blocks(first).to_lists()
    request = manager.request("r", range(12))
    for length, blocks in ((16, windows[:2]), (24, [0, 0, windows[2]])):
        offered = KVCacheBlocks((tuple(blocks), tuple(attention[: length // 4])))
        with manager.refuses(StaleHitError) as caught:
            manager.allocate_slots(
                request, 1, num_new_computed_tokens=length, new_computed_blocks=offered
            )
        equal((caught.value.group, caught.value.index), (0, 1))


GROUPS = "kv_cache.groups"


@cases(*[
    (config, field, *(value or (config[field],)))
    for config, field, _, *value in BAD_CONFIGURATIONS if value != [TWICE]
])  # fmt: skip
@example("KV-ERR-5")
def a_bad_configuration_is_shown_by_its_value(
    bench: Bench, config: dict[str, Any], field: str, value: object
) -> None:
    """The member as it was given, or what the spec says."""
    bench.here("the value of an error as it was given")
    if field == "attention_chunk_size":
        bench.need_usual("chunk_must_align")
    with raises(ConfigError) as caught:
        bench.manager(40, **config)
    equal((caught.value.field, caught.value.value), (field, value))


@example("KV-ERR-5", "KV-COORD-3")
def groups_that_should_be_one_are_shown(bench: Bench) -> None:
    bench.here("the value of an error as it was given")
    with raises(ConfigError, field=GROUPS) as caught:
        bench.manager(40, full(4), full(4))
    equal([group.spec for group in caught.value.value], [full(4), full(4)])


@example("KV-ERR-2", "KV-COORD-9")
def look_ups_per_group_need_groups(bench: Bench) -> None:
    manager, a, _ = bench.story()
    with manager.refuses(UnsupportedError) as caught:
        manager.find_longest_cache_hit_per_group(a, 8)
    holds("per-group look-ups" in caught.value.capability)
    equal(caught.value.implementation, bench.subject.capabilities.name)


@example("KV-ERR-2", level=Level.IDENTITY)
def what_is_no_clock_configuration_or_manager_is_shown(bench: Bench) -> None:
    manager, a, _ = bench.story()
    config: Any = 7
    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: bench.manager(6, clock=7), "clock"),
        (lambda: bench.subject.create(config), "config"),
        (lambda: bench.subject.make_request(7, a), "manager"),  # type: ignore[arg-type]  # the point
        (lambda: manager.make_request(7), "request"),
        (lambda: bench.restore(manager.config, 7), "snapshot"),
    ]
    for call, field in wrong:
        with raises(InvalidArgumentError) as caught:
            call()
        equal((caught.value.field, caught.value.value), (field, 7))
    leaked = replace(manager.snapshot(), free_queue=())
    with raises(InvalidArgumentError, field="snapshot"):
        bench.restore(manager.config, leaked)


@example("KV-ERR-2")
def what_is_no_size_and_no_update_of_a_hit_rate_window_is_shown(bench: Bench) -> None:
    bench.need(Feature.STATISTICS)
    wrong: Any = 7
    with raises(InvalidArgumentError) as caught:
        bench.subject.make_hit_rate_window().observe(wrong)
    equal((caught.value.field, caught.value.value), ("stats", 7))
    with raises(InvalidArgumentError) as caught:
        bench.subject.make_hit_rate_window(0)
    equal((caught.value.field, caught.value.value), ("max_requests", 0))


@cases(cross(4), encoder_only(4), chunked(4, 8))
@example("KV-ERR-5")
def a_spec_that_can_be_served_is_no_error_with_caching_off(bench: Bench, spec: Any) -> None:
    bench.manager(40, spec, enable_caching=False)
