"""Examples of the chapter on policies: what was declared is what is done."""

from __future__ import annotations

from kvcheck.play.verdicts import Level
from kvcheck.rules.examples.bench import Bench, full
from kvcheck.rules.examples.example import example
from kvcheck.rules.scenarios.groups import chunked, mamba, window
from kvspec.events import BlockRemoved
from kvspec.interface import Feature


@example("KV-POL-2", "KV-POOL-6", level=Level.IDENTITY)
def freed_blocks(bench: Bench) -> None:
    """Unhashed blocks go to the declared end of the queue."""
    manager = bench.manager(6)
    manager.free(bench.started(manager, "a", range(10)))
    queue = {"front": (3, 4, 5, 2, 1), "back": (4, 5, 3, 2, 1)}[bench.policy.unhashed_freed_to]
    bench.equal("the free queue", queue, manager.snapshot().free_queue)


@example("KV-POL-3", "KV-EVT-4")
def removed_events(bench: Bench) -> None:
    """Removed is told for each copy, or for the last one, as declared."""
    bench.need(Feature.EVICTION_BY_ID)
    manager = bench.manager(8, enable_events=True)
    requests = [bench.request(manager, name, range(4)) for name in "ab"]
    for request in requests:
        manager.allocate_slots(request, 4)
    manager.take_events()
    told = []
    for request in requests:
        manager.evict_blocks(manager.get_blocks(request).to_lists()[0])
        events = manager.take_events()
        told.append(sum(isinstance(event, BlockRemoved) for event in events))
    expected = {"copy": [1, 1], "last_copy": [0, 1]}[bench.policy.removed_event_per]
    bench.equal("Removed events of two copies", expected, told)


@example("KV-POL-4", "KV-CHUNK-2")
def null_chunks(bench: Bench) -> None:
    """Null chunks alone are a hit, or not, as declared."""
    manager = bench.manager(30, chunked(16, 4))
    request = bench.request(manager, "r", range(42))
    alone = 32 if bench.policy.chunked_null_prefix_is_hit else 0
    hit = manager.get_computed_blocks(request)
    bench.equal("a hit in an empty cache", alone, hit.hit_length_tokens)
    other = bench.request(manager, "other", range(36))
    manager.allocate_slots(other, 36)
    hit = manager.get_computed_blocks(request)
    bench.equal("with one block of the chunk cached", 36, hit.hit_length_tokens)
    bench.equal("nulls in it", 8, hit.blocks.to_lists()[0].count(0))


@example("KV-POL-7", "KV-POOL-2", "KV-POOL-3", "KV-POOL-13", level=Level.IDENTITY)
def exact_ids(bench: Bench) -> None:
    """Where ids are promised they are those of the rules."""
    if not bench.policy.exact_block_ids:
        return
    manager = bench.manager(7)
    a = bench.started(manager, "a", range(10))
    b = bench.started(manager, "b", (*range(8), 20))
    bench.equal("the first request's blocks", [[1, 2, 3]], manager.get_blocks(a).to_lists())
    bench.equal("the second's", [[1, 2, 4]], manager.get_blocks(b).to_lists())
    manager.free(a)
    taker = bench.started(manager, "c", range(50, 62))
    taken = [3, 5, 6] if bench.policy.unhashed_freed_to == "front" else [5, 6, 3]
    bench.equal("the blocks after a free", [taken], manager.get_blocks(taker).to_lists())


@example("KV-POL-9", "KV-POOL-15", level=Level.SAFETY)
def conservation(bench: Bench) -> None:
    """Free blocks and those in use add up, whatever is declared."""
    wanted = (full(4), window(6, 4), chunked(8, 4), mamba("all", 4))
    can = bench.subject.capabilities
    specs = [spec for spec in wanted if type(spec) in can.spec_types]
    if not bench.has(Feature.MULTIPLE_GROUPS):
        specs = specs[:1]
    manager = bench.manager(80, *specs)
    requests = [bench.request(manager, name, range(60)) for name in "ab"]
    for new in (1, 9, 4, 7, 2, 8):
        manager.new_step_starts()
        for request in requests:
            bench.run(manager, request, new)
        lists = [lists for r in requests for lists in manager.get_blocks(r).to_lists()]
        in_use = {block for blocks in lists for block in blocks if block}
        bench.equal("free and in use", 79, manager.num_free_blocks + len(in_use))
    for request in requests:
        manager.free(request)
    bench.equal("free in the end", 79, manager.num_free_blocks)


POLICIES = (freed_blocks, removed_events, null_chunks, exact_ids, conservation)
