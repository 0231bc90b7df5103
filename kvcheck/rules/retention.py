"""The chapter on retention (KV-RET): which blocks of windows and states are worth caching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal
from kvcheck.rules.specs import chunked, full, mamba, sliding
from kvspec.errors import InvalidArgumentError
from kvspec.events import BlockStored
from kvspec.interface import Feature
from kvspec.specs import LayerSpec

ALL = (0, 1, 2, 3, 4, 5, 6)


def worth(
    bench: Bench, specs: Sequence[LayerSpec], tokens: int, *places: Sequence[int], **config: Any
) -> None:
    """Of a prompt of so many tokens, these places of the last groups are cached."""
    manager = bench.manager(80, *specs, **config)
    request = manager.started("r", range(tokens))
    for group, expected in enumerate(places, len(specs) - len(places)):
        found = manager.cached_positions(request, group)
        what = f"cached in group {group} of {tokens} tokens in {specs}, {config}"
        equal(found, list(expected), what)


@example("KV-RET-1")
def the_tail_before_a_multiple_of_the_alignment_is_cached(bench: Bench) -> None:
    """The tail before a multiple of the alignment is cached: A = 16, a window of W - 1 tokens."""
    for tokens, places in (
        (1, ()), (5, (3, 7)), (9, (2, 3, 6, 7)), (13, (1, 2, 3, 5, 6, 7)), (14, range(8)),
        (100, range(8)),
    ):  # fmt: skip
        worth(bench, [full(16), sliding(4, tokens)], 40, places)


@example("KV-RET-1", "KV-COORD-13")
def an_eagle_tail_lies_one_block_later(bench: Bench) -> None:
    """An eagle tail lies one block later, in all groups of a spec."""
    for tokens, places in (
        (1, (4, 8)), (5, (3, 4, 7, 8)), (9, (2, 3, 4, 6, 7, 8)), (10, range(9)),
    ):  # fmt: skip
        worth(bench, [full(16), sliding(4, tokens)], 40, places, eagle_groups=[1])
    both = [full(16), sliding(4, 5), sliding(4, 5)]
    worth(bench, both, 40, (3, 4, 7, 8), (3, 4, 7, 8), eagle_groups=[2])


@cases(sliding(1, 2), mamba(1))
@example("KV-RET-1", "KV-RET-5")
def with_an_alignment_of_one_token_everything_is_worth_caching(
    bench: Bench, spec: LayerSpec
) -> None:
    for interval in (None, 1):
        worth(bench, [spec], 6, range(6), retention_interval_tokens=interval)


@example("KV-RET-2", "KV-RET-4")
def interval_0_keeps_only_the_replay_boundary(bench: Bench) -> None:
    """Interval 0 keeps only the replay boundary: 14 tokens would be replayed from 12."""
    for tokens, places in ((4, ()), (5, (0,)), (12, (1,)), (13, (2,)), (16, (2,)), (17, (3,))):
        worth(bench, [sliding(4, 5)], tokens, places, retention_interval_tokens=0)


@example("KV-RET-4")
def the_replay_boundary_is_aligned_and_leaves_a_token(bench: Bench) -> None:
    for tokens, places in ((18, (2, 3)), (17, (2, 3)), (16, (0, 1))):
        worth(bench, [full(8), sliding(4, 8)], tokens, places, retention_interval_tokens=0)


@example("KV-RET-3", "KV-RET-4")
def an_interval_keeps_one_tail_per_so_many_tokens(bench: Bench) -> None:
    """An interval keeps one tail per so many tokens; a window as long as that keeps everything."""
    for interval, places in (
        (4, ALL), (8, (1, 3, 5, 6)), (12, (2, 5, 6)), (16, (3, 6)), (64, (6,)),
    ):  # fmt: skip
        worth(bench, [sliding(4, 5)], 30, places, retention_interval_tokens=interval)
    worth(bench, [sliding(4, 6)], 30, ALL, retention_interval_tokens=8)


@example("KV-RET-3", "KV-RET-4", choices=("eagle_replays_before_drop",))
def retained_tails_are_shifted_with_eagle(bench: Bench) -> None:
    """Retained tails are shifted with eagle: 3, 4 before 16 + 4, and 6, 7 for the replay of 28."""
    options = {"use_eagle": True, "retention_interval_tokens": 16}
    worth(bench, [sliding(4, 5)], 32, (3, 4, 6, 7), **options)


@example("KV-RET-4", "KV-RET-6")
def generated_tokens_do_not_move_the_replay_boundary(bench: Bench) -> None:
    """Generated tokens do not move the replay boundary: block 1 before 8 stays the only one."""
    manager = bench.manager(20, sliding(4, 5), retention_interval_tokens=0)
    request = manager.started("r", range(9))
    for token in range(12):
        manager.append(request, [token])
        manager.run(request)
    keys = [i for i, keys in enumerate(manager.snapshot().block_keys) if keys]
    manager.same(keys, [2], "blocks with a key")
    equal(manager.counts(request), (5,))


@cases(sliding(4, 5), mamba(4))
@example("KV-RET-4", "KV-RET-5", "KV-MGR-17")
def a_resumed_request_is_kept_by_its_prompt_alone(bench: Bench, spec: LayerSpec) -> None:
    """A resumed request is kept by its prompt alone: block 1 before 8 of 9 tokens, not 4."""
    manager = bench.manager(20, spec, retention_interval_tokens=0)
    request = manager.request("r", range(9))
    manager.append(request, range(12))
    equal(manager.admit(request) is not None, True)
    equal(manager.cached_positions(request), [1])


@example("KV-RET-5", choices=("eagle_replays_before_drop",))
def states_are_kept_at_multiples_of_the_interval_and_for_the_replay(bench: Bench) -> None:
    """States are kept at multiples of the interval and for the replay, with eagle, too."""
    for interval, places in (
        (None, ALL), (4, ALL), (8, (1, 3, 5, 6)), (12, (2, 5, 6)), (0, (6,)),
    ):  # fmt: skip
        worth(bench, [mamba(4)], 30, places, retention_interval_tokens=interval)
    flagged = {"use_eagle": True, "retention_interval_tokens": 8}
    worth(bench, [mamba(4)], 30, (1, 3, 5, 6), **flagged)


@example("KV-RET-5", "KV-FULL-6")
def states_longer_than_the_alignment_are_kept_at_every_block(bench: Bench) -> None:
    """States longer than the alignment are kept at every block; full attention is, too."""
    specs = [full(4), mamba(8)]
    worth(bench, specs, 33, range(8), range(4), retention_interval_tokens=8)


@example("KV-CHUNK-4", "KV-RET-1")
def chunks_are_never_thinned_out(bench: Bench) -> None:
    specs = [full(4), chunked(4, 8), sliding(4, 5)]
    worth(bench, specs, 30, range(7), range(7), (6,), retention_interval_tokens=0)


@example("KV-RET-6", "KV-GRP-11", "KV-EVT-2")
def the_count_and_the_event_go_over_blocks_that_are_not_cached(bench: Bench) -> None:
    manager = bench.manager(20, sliding(4, 5), retention_interval_tokens=8, enable_events=True)
    request = manager.started("r", range(14))
    told = [(e.block_hashes, e.token_ids) for e in manager.take_events()
            if isinstance(e, BlockStored)]  # fmt: skip
    equal(told, [(tuple(request.block_hashes[1:3]), tuple(range(12)))], "the event")
    before = manager.visible()
    manager.cache_blocks(request, 14)
    equal(manager.visible(), before)
    equal(tuple(manager.take_events()), ())
    equal(manager.counts(request), (3,))


@example("KV-RET-6", "KV-EVT-2")
def a_call_over_nothing_that_is_worth_caching_tells_an_event_without_hashes(bench: Bench) -> None:
    manager = bench.manager(20, sliding(4, 5), retention_interval_tokens=0, enable_events=True)
    request = manager.request("r", range(14))
    manager.admit(request, 8)
    told = [(e.block_hashes, e.extra_keys, e.token_ids) for e in manager.take_events()
            if isinstance(e, BlockStored)]  # fmt: skip
    equal(told, [((), None, tuple(range(8)))], "the event")
    found = (manager.cached_positions(request), manager.counts(request))
    equal(found, ([], (2,)), "cached, and the count")


def kept_with_a_junction(bench: Bench, spec: LayerSpec, junction: int, **config: Any) -> list[int]:
    """What a prompt of 30 tokens keeps of the last group."""
    bench.need(Feature.JUNCTIONS)
    manager = bench.manager(60, full(4), spec, **config)
    request = manager.request("r", range(30))
    request.junction_tokens = junction
    manager.admit(request)
    found: list[int] = manager.cached_positions(request, 1)
    return found


@cases(
    (sliding(4, 5), 12, 0, [2, 6]), (sliding(4, 5), 15, 0, [2, 6]),
    (sliding(4, 9), 16, 0, [2, 3, 5, 6]), (sliding(4, 5), 3, 0, [6]),
    (sliding(4, 5), 0, 0, [6]), (sliding(4, 5), 12, 8, [1, 2, 3, 5, 6]),
    (sliding(4, 5), 99, 0, [6]), (mamba(4), 12, 0, [2, 6]), (mamba(4), 15, 16, [2, 3, 6]),
    (sliding(8, 5), 17, 0, [1, 2]), (mamba(8), 15, 0, [0, 2]),
)  # fmt: skip
@example("KV-RET-7", "KV-RET-4", "KV-RET-5")
def a_junction_is_kept_beside_the_replay_boundary(
    bench: Bench, spec: LayerSpec, junction: int, interval: int, places: list[int]
) -> None:
    found = kept_with_a_junction(bench, spec, junction, retention_interval_tokens=interval)
    equal(found, places, f"kept of {spec} at junction {junction}, interval {interval}")


@cases((sliding(4, 5), 13, [1, 2, 3, 6]), (sliding(4, 5), 3, [0, 6]), (mamba(4), 13, [1, 2, 6]))
@example("KV-RET-7", choices=("eagle_replays_before_drop",))
def with_eagle_a_junction_a_block_shorter_is_kept_too(
    bench: Bench, spec: LayerSpec, junction: int, places: list[int]
) -> None:
    """Tails are shifted: 1, 2 before 8 + 4, and 2, 3 before 12 + 4. Block 7 is not full."""
    options = {"use_eagle": True, "retention_interval_tokens": 0}
    equal(kept_with_a_junction(bench, spec, junction, **options), places)


@example("KV-RET-7")
def without_retention_a_junction_changes_nothing(bench: Bench) -> None:
    specs = [full(16), sliding(4, 5)]
    bench.need(Feature.JUNCTIONS)
    manager = bench.manager(60, *specs)
    request = manager.request("r", range(40))
    request.junction_tokens = 24
    manager.admit(request)
    equal(manager.cached_positions(request, 1), [3, 7])


@example("KV-RET-7", "KV-COORD-12")
def who_follows_to_a_junction_hits_it(bench: Bench) -> None:
    """r1 keeps 20 tokens, r2 parts from it after 13 and has its look-up's junction, r3 hits it."""
    bench.need(Feature.JUNCTIONS)
    manager = bench.manager(60, full(4), sliding(4, 5), retention_interval_tokens=0)
    manager.started("r1", range(22))
    second = manager.request("r2", [*range(13), *range(50, 67)])
    hit = manager.get_computed_blocks(second)
    equal((hit.hit_length_tokens, hit.junction_tokens), (0, 12))
    second.junction_tokens = hit.junction_tokens
    manager.admit(second)
    third = manager.get_computed_blocks(manager.request("r3", [*range(13), *range(80, 90)]))
    equal((third.hit_length_tokens, third.junction_tokens), (12, 0))


@example("KV-RET-7", "KV-RET-6", "KV-MGR-11")
def a_later_caching_call_reads_the_junction_that_is_then_there(bench: Bench) -> None:
    """Blocks that were passed over before stay so."""
    bench.need(Feature.JUNCTIONS)
    manager = bench.manager(20, sliding(4, 5), retention_interval_tokens=0)
    request = manager.request("r", range(30))
    manager.allocate_slots(request, 16, delay_cache_blocks=True)
    manager.cache_blocks(request, 8)
    request.junction_tokens = 12
    manager.cache_blocks(request, 16)
    equal(manager.cached_positions(request), [2])
    request.junction_tokens = -1
    with manager.refuses(InvalidArgumentError) as caught:
        manager.cache_blocks(request, 16)
    equal((caught.value.field, caught.value.value), ("request.junction_tokens", -1))


@cases(
    (True, 15, [1, 2]), (True, 16, [1, 2, 3]), (False, 16, [2, 3]), (True, 3, []), (True, 6, [0])
)
@example("KV-POL-20", "KV-RET-4")
def replays_before_a_drop_are_kept_or_the_boundary(
    bench: Bench, chosen: bool, tokens: int, places: list[int]
) -> None:
    """A window of 5 beside full attention, both eagle groups."""
    policy = replace(bench.policy, eagle_replays_before_drop=chosen)
    options = {"use_eagle": True, "retention_interval_tokens": 0, "policy": policy}
    worth(bench, [full(4), sliding(4, 5)], tokens, places, **options)


@cases((True, 15, [1]), (True, 16, [1, 2]), (False, 16, [2]))
@example("KV-POL-20", "KV-RET-5")
def states_of_replays_before_a_drop_are_kept_or_the_boundary(
    bench: Bench, chosen: bool, tokens: int, places: list[int]
) -> None:
    """The full-attention group alone is flagged."""
    policy = replace(bench.policy, eagle_replays_before_drop=chosen)
    options = {"eagle_groups": [0], "retention_interval_tokens": 0, "policy": policy}
    worth(bench, [full(4), mamba(4)], tokens, places, use_eagle=True, **options)


@example("KV-POL-20")
def without_a_drop_the_boundary_is_kept(bench: Bench) -> None:
    policy = replace(bench.policy, eagle_replays_before_drop=True)
    options = {"retention_interval_tokens": 0, "policy": policy}
    worth(bench, [full(4), sliding(4, 5)], 16, [2], **options)


@cases((True, [1, 2]), (False, [2, 3]))
@example("KV-POL-20", "KV-RET-4")
def generated_tokens_bring_no_boundary_back(bench: Bench, chosen: bool, places: list[int]) -> None:
    """A prompt of 15 tokens, of which a replay ends at 8; block 3 is full later."""
    policy = replace(bench.policy, eagle_replays_before_drop=chosen)
    options: dict[str, Any] = {"use_eagle": True, "retention_interval_tokens": 0}
    manager = bench.manager(60, full(4), sliding(4, 5), policy=policy, **options)
    request = manager.request("r", range(15))
    manager.append(request, range(50, 56))
    manager.admit(request)
    equal(manager.cached_positions(request, 1), places)
