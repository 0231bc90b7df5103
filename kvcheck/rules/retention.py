"""The chapter on retention (KV-RET): which blocks of windows and states are worth caching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal
from kvcheck.rules.specs import chunked, full, mamba, sliding
from kvspec.events import BlockStored
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


@example("KV-RET-3", "KV-RET-4")
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


@example("KV-RET-5")
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


@example("KV-FULL-6", "KV-RET-1")
def full_attention_is_never_thinned_out(bench: Bench) -> None:
    worth(bench, [full(4), sliding(4, 5)], 30, range(7), (6,), retention_interval_tokens=0)


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
