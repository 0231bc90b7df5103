"""KV-POL: what may be chosen, and that it is done as it was chosen."""

from __future__ import annotations

from dataclasses import replace

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import chunked, full, mamba, sliding
from kvcheck.rules.steps import Steps
from kvspec.config import NOT_NAMED
from kvspec.errors import ConfigError, InvalidArgumentError
from kvspec.events import BlockRemoved
from kvspec.interface import Feature
from kvspec.policy import Policy


@cases(("front", [3, 4, 5, 2, 1]), ("back", [4, 5, 3, 2, 1]))
@example("KV-POL-2", "KV-POOL-6", level=Level.IDENTITY, choices=())
def unhashed_blocks_go_to_the_front_or_to_the_back(
    bench: Bench, where: str, queue: list[int]
) -> None:
    """Queue 4, 5; released are 3, 2, 1, of which 3 is not cached."""
    manager = bench.manager(6, policy=replace(bench.policy, unhashed_freed_to=where))
    manager.free(manager.started("a", range(10)))
    equal(manager.queue(), queue)


@cases(("front", [4, 3, 2, 6, 7]), ("back", [6, 7, 4, 3, 2]))
@example("KV-POL-2", "KV-GRP-2", "KV-POOL-7", level=Level.IDENTITY)
def blocks_out_of_the_window_go_to_the_front_or_to_the_back(
    bench: Bench, where: str, queue: list[int]
) -> None:
    """A = 16, B = 4, window 5: only the last of four blocks is cached, the others fall out."""
    policy = Policy(unhashed_freed_to=where)
    manager = bench.manager(8, full(16), sliding(4, 5), policy=policy)
    request = manager.started("b", range(16))
    equal(manager.lists(request), [[1], [2, 3, 4, 5]])
    manager.remove_skipped_blocks(request, 16)
    equal(manager.null_positions(request, 1), [0, 1, 2])
    equal(manager.queue(), queue)


@cases(("copy", [1, 1]), ("last_copy", [0, 1]))
@example("KV-POL-3", "KV-EVT-4")
def a_removal_is_told_for_each_copy_or_for_the_last_one(
    bench: Bench, per: str, expected: list[int]
) -> None:
    policy = replace(bench.policy, removed_event_per=per)
    manager = bench.manager(8, policy=policy, enable_events=True)
    requests = [manager.request(name, range(4)) for name in "ab"]
    for request in requests:
        manager.allocate_slots(request, 4)
    manager.take_events()
    told = []
    for request in requests:
        manager.evict_blocks(manager.blocks(request))
        told.append(sum(isinstance(event, BlockRemoved) for event in manager.take_events()))
    equal(told, expected)


@cases(("copy", [3, 2]), ("last_copy", [1, 2]))
@example("KV-POL-3", "KV-EVT-4", "KV-PART-5")
def each_key_of_a_block_has_copies_of_its_own(bench: Bench, per: str, told: list[int]) -> None:
    """Two blocks with the keys of 12 and 8 tokens, one with that of 4: each goes by itself."""
    manager = bench.manager(
        40, full(4), sliding(16, 32), policy=Policy(removed_event_per=per), enable_events=True
    )
    requests = [manager.request(name, range(30)) for name in "ab"]
    for request in requests:
        holds(manager.allocate_slots(request, 14) is not None)
    for request, lengths in zip(requests, ((12, 8, 4), (12, 8)), strict=True):
        for num_tokens in lengths:
            manager.cache_partial_block(request, 1, num_tokens)
    first, second = (manager.lists(request)[1][0] for request in requests)
    manager.take_events()
    counts = []
    for block in (first, second):
        manager.evict_blocks([block])
        events = manager.take_events()
        holds(all(isinstance(event, BlockRemoved) for event in events))
        counts.append(len(events))
    equal(counts, told)


@cases((True, (8, 32)), (False, (0, 0)))
@example("KV-POL-4", "KV-CHUNK-2")
def null_chunks_are_a_hit_by_themselves_or_only_before_one(
    bench: Bench, is_hit: bool, fresh: tuple[int, int]
) -> None:
    """Chunks of 16, 42 tokens: eight nulls or nothing; with block 8 cached, both answer nine."""
    policy = replace(bench.policy, chunked_null_prefix_is_hit=is_hit)
    manager = bench.manager(30, chunked(4, 16), policy=policy)
    request = manager.request("r", range(42))
    hit = manager.get_computed_blocks(request)
    equal((len(hit.blocks.groups[0]), hit.hit_length_tokens), fresh)
    other = manager.request("other", range(36))
    holds(manager.allocate_slots(other, 36) is not None)
    hit = manager.get_computed_blocks(request)
    equal((hit.blocks.groups[0].count(0), hit.hit_length_tokens), (8, 36))
    equal(len(hit.blocks.groups[0]), 9)


@cases((True, 8), (False, 0))
@example("KV-POL-4", "KV-COORD-5")
def null_chunks_are_a_hit_or_not_beside_full_attention_too(
    bench: Bench, is_hit: bool, length: int
) -> None:
    """Full has 8 of 9 tokens; the chunk of token 8 begins there, so only nulls are before it."""
    policy = replace(bench.policy, chunked_null_prefix_is_hit=is_hit)
    manager = bench.manager(30, full(4), chunked(4, 8), policy=policy)
    holds(manager.allocate_slots(manager.request("a", range(8)), 8) is not None)
    hit = manager.get_computed_blocks(manager.request("r", range(9)))
    equal(hit.hit_length_tokens, length)


@example("KV-POL-7", "KV-POOL-2", "KV-POOL-3", "KV-POOL-13", level=Level.IDENTITY, choices=())
def where_ids_are_promised_they_are_those_of_the_rules(bench: Bench) -> None:
    if not bench.policy.exact_block_ids:
        return
    manager = bench.manager(7)
    a = manager.started("a", range(10))
    b = manager.started("b", (*range(8), 20))
    equal(manager.get_blocks(a).to_lists(), [[1, 2, 3]], "the first request's blocks")
    equal(manager.get_blocks(b).to_lists(), [[1, 2, 4]], "the second's")
    manager.free(a)
    taker = manager.started("c", range(50, 62))
    taken = [3, 5, 6] if bench.policy.unhashed_freed_to == "front" else [5, 6, 3]
    equal(manager.get_blocks(taker).to_lists(), [taken], "the blocks after a free")


@example("KV-POL-9", "KV-POOL-15", level=Level.SAFETY)
def free_blocks_and_those_in_use_add_up_whatever_is_declared(bench: Bench) -> None:
    wanted = (full(4), sliding(4, 6), chunked(4, 8), mamba(4))
    can = bench.subject.capabilities
    specs = [spec for spec in wanted if type(spec) in can.spec_types]
    if not bench.has(Feature.MULTIPLE_GROUPS):
        specs = specs[:1]
    manager = bench.manager(80, *specs)
    requests = [manager.request(name, range(60)) for name in "ab"]
    for new in (1, 9, 4, 7, 2, 8):
        manager.new_step_starts()
        for request in requests:
            manager.run(request, new)
        lists = [lists for r in requests for lists in manager.get_blocks(r).to_lists()]
        in_use = {block for blocks in lists for block in blocks if block}
        equal(manager.num_free_blocks + len(in_use), 79, "free and in use")
    for request in requests:
        manager.free(request)
    equal(manager.num_free_blocks, 79, "free in the end")


@cases(True, False)
@example("KV-POL-11", "KV-CFG-7")
def an_interval_of_0_needs_a_window_or_not(bench: Bench, needs: bool) -> None:
    """Any other interval does, whatever is chosen."""
    policy = replace(bench.policy, zero_retention_needs_windows=needs)
    for interval in (0, 16):
        options = {"policy": policy, "retention_interval_tokens": interval}
        if interval or needs:
            with raises(ConfigError, field="retention_interval_tokens"):
                bench.manager(6, 16, **options)
        else:
            manager = bench.manager(6, 16, **options)
            equal(manager.cached_positions(manager.started("a", range(40))), [0, 1])


@cases(("dense", [2, 3, 6, 7, 10, 11]), ("boundaries", [10, 11]))
@example("KV-POL-26", "KV-CFG-7", "KV-RET-1", "KV-RET-2")
def retention_that_nobody_names_is_dense_or_0(bench: Bench, chosen: str, kept: list[int]) -> None:
    """A = 16, window 6, a prompt of 54; None and 0 by name are the same under both."""
    policy = replace(bench.policy, default_retention=chosen)
    for interval, positions in ((NOT_NAMED, kept), (None, [2, 3, 6, 7, 10, 11]), (0, [10, 11])):
        manager = bench.manager(
            30, full(16), sliding(4, 6), policy=policy, retention_interval_tokens=interval
        )
        equal(manager.cached_positions(manager.started("a", range(54)), 1), positions)


@cases(("random", False), ("fixed", True))
@example("KV-POL-12", "KV-HASH-3")
def without_a_seed_first_parents_are_random_or_fixed(
    bench: Bench, chosen: str, is_equal: bool
) -> None:
    policy = replace(bench.policy, none_hash_without_seed=chosen)
    managers = [bench.manager(6, policy=policy, hash_seed=None) for _ in range(2)]
    equal(managers[0].none_hash == managers[1].none_hash, is_equal)
    if is_equal:
        seeded = bench.manager(6, policy=policy, hash_seed="vllm-none-hash")
        equal(managers[0].none_hash, seeded.none_hash)
        other = bench.manager(6, policy=policy, hash_seed="0")
        holds(other.none_hash != seeded.none_hash)


@cases(
    ("full_attention", "float16", (3, 0)),
    ("mixed_formats", "float16", (0, 0)),
    ("full_attention", "bfloat16", (3, 0)),
    ("mixed_formats", "bfloat16", (3, 3)),
)
@example("KV-POL-13", "KV-GRP-10", "KV-MGR-16")
def blocks_are_zeroed_by_type_or_where_formats_are_mixed(
    bench: Bench, chosen: str, dtype: str, told: tuple[int, int]
) -> None:
    """Three blocks of full attention and of a window, which has the same format or not."""
    policy = replace(bench.policy, zeroed_blocks=chosen)
    window = replace(sliding(4, 20), dtype=dtype)
    manager = bench.manager(20, full(4), window, policy=policy)
    lists = manager.lists(manager.started("a", range(10)))
    zeroed = set(manager.take_new_block_ids())
    equal(tuple(len(zeroed & set(blocks)) for blocks in lists), told)
    equal(tuple(manager.take_new_block_ids()), (), "ids told again")


@example("KV-POL-13", "KV-GRP-10")
def beside_states_every_block_of_attention_is_zeroed(bench: Bench) -> None:
    """And no state is."""
    policy = replace(bench.policy, zeroed_blocks="mixed_formats")
    manager = bench.manager(20, full(4), mamba(4), policy=policy)
    lists = manager.lists(manager.started("a", range(10)))
    equal(set(manager.take_new_block_ids()), set(lists[0]))


@cases((True, [0, 0]), (False, []))
@example("KV-POL-14", "KV-MGR-13")
def popped_lists_begin_with_their_nulls_or_behind_them(
    bench: Bench, chosen: bool, nulls: list[int]
) -> None:
    """Window 4: of four blocks two are out of it after 12 tokens."""
    policy = replace(bench.policy, popped_leading_nulls=chosen)
    manager = bench.manager(8, sliding(4, 4), policy=policy)
    request = manager.started("a", range(16))
    manager.remove_skipped_blocks(request, 12)
    blocks = manager.blocks(request)
    equal(blocks[:2], [0, 0], "the first two entries")
    popped = list(manager.pop_blocks_for_free(request))
    equal(popped, nulls + blocks[2:])
    manager.free_blocks(popped[::-1])
    equal(manager.num_free_blocks, 7)


@cases((True, 3), (False, 0))
@example("KV-POL-15", "KV-MGR-15", "KV-FULL-7")
def common_prefixes_are_counted_or_zero(bench: Bench, chosen: bool, told: int) -> None:
    policy = replace(bench.policy, counts_common_prefix=chosen)
    manager = bench.manager(6, policy=policy)
    request = manager.started("a", range(10))
    equal(tuple(manager.get_num_common_prefix_blocks(request)), (told,))


@cases((True, False, 4), (False, False, 8), (False, True, 4))
@example("KV-POL-16", "KV-CFG-8")
def a_flag_drops_a_block_alone_or_only_with_use_eagle(
    bench: Bench, chosen: bool, use_eagle: bool, length: int
) -> None:
    policy = replace(bench.policy, eagle_flag_counts_alone=chosen)
    manager = bench.manager(6, full(4), eagle_groups=[0], use_eagle=use_eagle, policy=policy)
    manager.started("a", range(9))
    hit = manager.get_computed_blocks(manager.request("b", range(9)))
    equal(hit.hit_length_tokens, length)


@cases((True, 21, 2), (True, 20, 1), (True, 17, 1), (False, 21, 1))
@example("KV-POL-17", "KV-PART-1", "KV-GRP-11")
def full_attention_registers_where_the_prompt_ends_or_not(
    bench: Bench, chosen: bool, prompt: int, keys: int
) -> None:
    """B = 8, h = 4: a prompt of 21 ends behind 20 tokens, of 20 and 17 behind 16, a block's end."""
    policy = replace(bench.policy, full_partial_tails=chosen)
    manager = bench.manager(20, full(8), sliding(4, 6), policy=policy)
    request = manager.started("a", range(prompt))
    manager.evict_blocks([manager.blocks(request)[1]])
    manager.append(request, range(50, 50 + 24 - prompt))
    manager.run(request, 24 - prompt)
    found = [len(manager.snapshot().block_keys[b]) for b in manager.blocks(request)[1:3]]
    equal(found, [0, keys], "keys of an evicted block, and of that of tokens 16 to 23")


@cases(("asked", (2, 16)), ("admitted", (1, 8)))
@example("KV-POL-18", "KV-STAT-1")
def look_ups_are_counted_when_asked_or_admitted(
    bench: Bench, chosen: str, told: tuple[int, int]
) -> None:
    """9 tokens that hit 8, looked up twice and recorded once; who reads nothing is not counted."""
    policy = replace(bench.policy, lookups_counted=chosen)
    manager = bench.manager(8, policy=policy, log_stats=True)
    manager.free(manager.started("a", range(9)))
    manager.make_prefix_cache_stats()
    request = manager.request("b", range(9))
    for _ in range(2):
        hit = manager.get_computed_blocks(request)
    if bench.has(Feature.LATER_CHOICES):
        manager.record_prefix_cache_stats(request, hit.hit_length_tokens)
        if bench.has(Feature.SKIP_READING):
            skipper = manager.request("skipper", range(9), skip_reading_cache=True)
            manager.record_prefix_cache_stats(skipper, 0)
    stats = manager.make_prefix_cache_stats()
    equal((stats.requests, stats.hits_tokens), told)


@example("KV-POL-18", "KV-MGR-2")
def who_skips_reading_is_not_counted_when_admitted(bench: Bench) -> None:
    bench.need(Feature.LATER_CHOICES)
    policy = replace(bench.policy, lookups_counted="admitted")
    manager = bench.manager(8, policy=policy, log_stats=True)
    request = manager.request("a", range(9), skip_reading_cache=True)
    manager.record_prefix_cache_stats(request, 0)
    equal(manager.make_prefix_cache_stats().requests, 0)


@example("KV-POL-18", "KV-BATCH-7")
def a_whole_step_counts_whom_it_admits(bench: Bench) -> None:
    """Two ask, and there is room for one of them."""
    policy = replace(bench.policy, lookups_counted="admitted")
    steps = Steps(bench, 4, policy=policy, log_stats=True)
    steps.batched.admit(steps.register(range(9), range(20, 31)))
    stats = steps.manager.make_prefix_cache_stats()
    equal((stats.requests, stats.queries_tokens), (1, 9))


@cases((True, 8, 4), (False, 8, 0), (True, 9, 4), (False, 9, 4), (True, 7, 0))
@example("KV-POL-19", "KV-COORD-7")
def a_block_to_drop_may_lie_beyond_the_limit_or_not(
    bench: Bench, chosen: bool, num_tokens: int, length: int
) -> None:
    """Two cached blocks in both groups; a prompt of 8 has L = 7."""
    policy = replace(bench.policy, eagle_looks_beyond=chosen)
    manager = bench.manager(20, full(4), sliding(4, 4), use_eagle=True, policy=policy)
    manager.started("a", range(9))
    hit = manager.get_computed_blocks(manager.request("b", range(num_tokens)))
    equal(hit.hit_length_tokens, length)
    equal([len(blocks) for blocks in hit.blocks.groups], [length // 4] * 2)


@cases((True, 14, False, 1), (False, 14, False, 0), (True, 18, True, 1), (True, 15, True, 0))
@example("KV-POL-23", "KV-PART-4", "KV-MAMBA-2")
def a_state_at_the_checkpoint_gets_its_key_again_or_not(
    bench: Bench, chosen: bool, prompt: int, use_eagle: bool, keys: int
) -> None:
    """The state after 12 tokens loses its key, and the rest of the prompt is computed."""
    policy = replace(bench.policy, checkpoints_return=chosen)
    options = {"policy": policy, "use_eagle": use_eagle, "enable_events": True}
    flagged = [0] if use_eagle else []
    manager = bench.manager(20, full(4), mamba(4, "align"), eagle_groups=flagged, **options)
    request = manager.request("a", range(prompt))
    manager.admit(request, 12)
    state = manager.lists(request)[1][2]
    manager.evict_blocks([state])
    manager.new_step_starts()
    manager.take_events()
    manager.run(request, 2)
    equal(len(manager.snapshot().block_keys[state]), keys)
    stored = [event for event in manager.take_events() if event.group == 1]
    equal([event.token_ids for event in stored], [(8, 9, 10, 11)] * keys)
    new = manager.snapshot().step_keys
    equal([len(each) for each in new], [0, keys], "keys that are new in this step")


@cases("cut", "error")
@example("KV-POL-22", "KV-MGR-11")
def caching_beyond_the_tokens_is_cut_or_an_error(bench: Bench, chosen: str) -> None:
    """A request of 9 tokens with slots for 12; beyond the slots both refuse."""
    policy = replace(bench.policy, caching_beyond_tokens=chosen)
    manager = bench.manager(8, policy=policy)
    request = manager.request("a", range(9))
    manager.allocate_slots(request, 9, num_lookahead_tokens=3, delay_cache_blocks=True)
    if chosen == "error":
        with manager.refuses(InvalidArgumentError) as caught:
            manager.cache_blocks(request, 10)
        equal(caught.value.field, "num_computed_tokens")
    else:
        manager.cache_blocks(request, 10)
    equal(manager.cached_positions(request), [0, 1] if chosen == "cut" else [])
