"""Examples of the chapter on policies: what was declared is what is done."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal
from kvcheck.rules.scenarios.groups import chunked, mamba, window
from kvcheck.rules.specs import full
from kvspec.events import BlockRemoved
from kvspec.interface import Feature


@example("KV-POL-2", "KV-POOL-6", level=Level.IDENTITY, choices=())
def unhashed_blocks_go_to_the_declared_end_of_the_queue(bench: Bench) -> None:
    manager = bench.manager(6)
    manager.free(manager.started("a", range(10)))
    queue = {"front": (3, 4, 5, 2, 1), "back": (4, 5, 3, 2, 1)}[bench.policy.unhashed_freed_to]
    equal(manager.snapshot().free_queue, queue, "the free queue")


@example("KV-POL-3", "KV-EVT-4")
def removed_is_told_for_each_copy_or_for_the_last_one_as_declared(bench: Bench) -> None:
    bench.need(Feature.EVICTION_BY_ID)
    manager = bench.manager(8, enable_events=True)
    requests = [manager.request(name, range(4)) for name in "ab"]
    for request in requests:
        manager.allocate_slots(request, 4)
    manager.take_events()
    told = []
    for request in requests:
        manager.evict_blocks(manager.get_blocks(request).to_lists()[0])
        events = manager.take_events()
        told.append(sum(isinstance(event, BlockRemoved) for event in events))
    expected = {"copy": [1, 1], "last_copy": [0, 1]}[bench.policy.removed_event_per]
    equal(told, expected, "Removed events of two copies")


@example("KV-POL-4", "KV-CHUNK-2")
def null_chunks_alone_are_a_hit_or_not_as_declared(bench: Bench) -> None:
    manager = bench.manager(30, chunked(16, 4))
    request = manager.request("r", range(42))
    alone = 32 if bench.policy.chunked_null_prefix_is_hit else 0
    hit = manager.get_computed_blocks(request)
    equal(hit.hit_length_tokens, alone, "a hit in an empty cache")
    other = manager.request("other", range(36))
    manager.allocate_slots(other, 36)
    hit = manager.get_computed_blocks(request)
    equal(hit.hit_length_tokens, 36, "with one block of the chunk cached")
    equal(hit.blocks.to_lists()[0].count(0), 8, "nulls in it")


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
    wanted = (full(4), window(6, 4), chunked(8, 4), mamba("all", 4))
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
