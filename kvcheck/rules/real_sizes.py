"""Long lists, long texts and many requests: where an implementation's code changes hands.

Small examples never fill a memory word, a run of blocks or a batch of hashes. These are just long
enough: hundreds of blocks of one token, a thousand tokens, dozens of requests.
"""

from __future__ import annotations

from functools import partial

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import full, mamba, sliding
from kvcheck.rules.steps import Steps
from kvspec.batched import StepPlan
from kvspec.request import LoRA, Request

LONG = 100
"""Blocks: more than the 32 or 64 that code likes to take at once."""


def freed(manager: Managed, num_tokens: int, name: str = "first") -> Request:
    """A request of these tokens that came and went."""
    request: Request = manager.started(name, range(num_tokens))
    manager.free(request)
    return request


@example("KV-GRP-11", level=Level.IDENTITY)
def every_block_of_a_long_text_is_registered(bench: Bench) -> None:
    manager = bench.manager(LONG + 2, full(1))
    request = manager.started("r", range(LONG))
    equal(manager.cached_positions(request), list(range(LONG)))


@example("KV-FULL-2")
def a_long_run_is_hit_to_its_end(bench: Bench) -> None:
    manager = bench.manager(2 * LONG, full(1))
    request = manager.started("r", range(LONG))
    manager.same(manager.hit(request), manager.blocks(request)[:-1])


@example("KV-MGR-1")
def a_hit_of_many_tokens_has_all_its_blocks(bench: Bench) -> None:
    """Few blocks, but 320 tokens."""
    manager = bench.manager(30, full(16))
    request = manager.started("r", range(321))
    manager.same(manager.hit(request), manager.blocks(request)[:-1])


@example("KV-POOL-5", level=Level.IDENTITY)
def every_block_of_a_long_hit_leaves_the_queue(bench: Bench) -> None:
    manager = bench.manager(2 * LONG, full(1))
    freed(manager, LONG)
    request = manager.started("r", range(LONG))
    equal(manager.references(), dict.fromkeys(manager.blocks(request), 1))
    holds(not set(manager.queue()) & set(manager.blocks(request)))


@example("KV-POOL-4", level=Level.IDENTITY)
def every_block_of_many_that_are_taken_loses_its_key(bench: Bench) -> None:
    manager = bench.manager(LONG + 1, full(1))
    freed(manager, LONG)
    other = manager.request("other", range(500, 500 + LONG))
    manager.allocate_slots(other, LONG, delay_cache_blocks=True)
    equal(manager.cached(), set())


@example("KV-POOL-6", level=Level.IDENTITY)
def of_a_long_list_the_last_is_released_first(bench: Bench) -> None:
    manager = bench.manager(302, full(1), enable_caching=False)
    request = manager.started("r", range(300))
    blocks = manager.blocks(request)
    manager.free(request)
    equal(sorted(manager.queue()), list(range(1, 302)))
    equal([block for block in manager.queue() if block in set(blocks)], blocks[::-1])


@example("KV-GRP-1")
def long_lists_stay_as_they_grow(bench: Bench) -> None:
    """Three requests of hundreds of blocks, one of them longer than the one whose place it has."""
    manager = bench.manager(1500, full(1), enable_caching=False)
    gone, short, grows = (manager.request(name, range(900)) for name in "abc")
    for request, num_tokens in ((gone, 300), (short, 150), (grows, 200)):
        manager.admit(request, num_tokens)
    before = manager.blocks(grows)
    manager.free(gone)
    manager.run(grows, 500)
    equal(manager.blocks(grows)[:200], before, "the list of 200 after it grew")
    later = manager.request("d", range(900))
    manager.admit(later, 310)
    lists = [manager.blocks(request) for request in (short, grows, later)]
    equal([len(blocks) for blocks in lists], [150, 700, 310])
    equal(len({block for blocks in lists for block in blocks} - {0}), 1160, "blocks in the lists")


@example("KV-GRP-1", "KV-POOL-13")
def a_list_of_a_production_pool_stays_as_it_grows(bench: Bench) -> None:
    """Of 70,000 blocks, which take hundreds of KiB to write down."""
    config = bench.config(70_002, full(1), enable_caching=False, max_model_len_tokens=80_000)
    manager = bench.create(config, check_invariants=False)
    request = manager.request("r", [1] * 70_000)
    manager.run(request, 50_000)
    before = manager.blocks(request)
    manager.run(request, 20_000)
    holds(manager.blocks(request)[:50_000] == before, "the list of 50,000 is as it was")


@example("KV-POOL-13")
def long_texts_that_part_share_what_is_before(bench: Bench) -> None:
    """Ten texts with a long beginning in common, each then its own."""
    manager = bench.manager(600, full(1))
    for number in range(10):
        text = [*range(LONG // 2), *range(1000 * (number + 1), 1000 * (number + 1) + LONG // 2)]
        request = manager.request(f"r{number}", text)
        equal(len(manager.hit(request)), LONG // 2 if number else 0, f"blocks hit by text {number}")
        manager.admit(request)


@example("KV-HASH-7")
def a_long_prompt_is_hashed_with_its_adapter(bench: Bench) -> None:
    manager = bench.manager(100, full(32), max_model_len_tokens=2000)
    manager.started("plain", range(1100))
    equal(manager.hit(manager.request("r", range(1100), lora=LoRA("adapter", 3))), [])


@example("KV-HASH-4", "KV-REQ-2")
def hashes_of_a_long_text_stay_as_it_grows(bench: Bench) -> None:
    manager = bench.manager(10, full(1))
    whole, grows = (manager.request(name, range(n)) for name, n in (("a", 500), ("b", 70)))
    for begin in range(70, 500, 43):
        manager.append(grows, range(begin, min(begin + 43, 500)))
    equal(list(grows.block_hashes), list(whole.block_hashes))


@example("KV-REQ-2")
def a_long_text_stays_as_it_grows(bench: Bench) -> None:
    """Of 5,000 tokens in blocks of 512, whose messages to be hashed have thousands of bytes."""
    manager = bench.manager(10, full(512), max_model_len_tokens=10_000)
    grows = manager.request("r", range(5000))
    manager.append(grows, range(5000, 6500))
    manager.append(grows, range(6500, 8000))
    equal(list(grows.token_ids), list(range(8000)))
    whole = manager.request("whole", range(8000))
    equal(list(grows.block_hashes), list(whole.block_hashes))


@example("KV-PART-2", level=Level.IDENTITY)
def many_additional_keys_stay_with_their_blocks(bench: Bench) -> None:
    """Ninety boundaries inside of blocks; the blocks are taken by others, or all is reset."""
    manager = bench.manager(250, full(1), sliding(16, 320))
    ends = [n for n in range(1, 96) if n % 16]
    for name in "abc":
        request = manager.started(name, range(96))
        for n in ends:
            made = manager.cache_partial_block(request, 1, n)
            equal(made, True, f"an entry of {n} tokens")
        shown, blocks = manager.snapshot(), manager.blocks(request, 1)
        keys = [bytes(request.block_hashes[n - 1]) + b"\0\0\0\1" for n in ends]
        equal([shown.lookup_order.get(key) for key in keys], [(blocks[n // 16],) for n in ends])
        carried = {key for block in blocks for key in shown.block_keys[block]}
        equal(sorted(set(keys) - carried), [], "keys that no block carries")
        manager.free(request)
        if name == "b":
            holds(manager.reset_prefix_cache(), "nobody holds a block: the cache is reset")
        else:
            other = manager.request(f"other {name}", range(9000, 9234))
            manager.allocate_slots(other, 234, delay_cache_blocks=True)
            manager.free(other)
        shown = manager.snapshot()
        taken = [key for key in keys if key in shown.lookup_order]
        equal(taken, [], "keys of blocks that were taken")


@example("KV-PART-3", level=Level.IDENTITY)
def what_a_key_covers_is_known_of_every_block(bench: Bench) -> None:
    manager = bench.manager(3 * LONG, full(1), sliding(2, 200))
    request = manager.started("r", range(LONG))
    blocks, shown = manager.lists(request), manager.snapshot()
    covered = [[shown.covered_tokens[block] for block in group] for group in blocks]
    equal(covered, [list(range(1, LONG + 1)), list(range(2, LONG + 1, 2))])


@example("KV-COORD-5")
def a_long_hit_of_two_groups_is_that_of_both(bench: Bench) -> None:
    manager = bench.manager(4 * LONG, full(1), sliding(1, 90))
    request = manager.started("r", range(LONG))
    hit = manager.get_computed_blocks(request)
    equal(hit.hit_length_tokens, LONG - 1)
    dead = LONG - 90
    lists = [own[:-1] for own in manager.lists(request)]
    manager.same(hit.blocks, [lists[0], [0] * dead + lists[1][dead:]])


@example("KV-COORD-9")
def long_hits_of_each_group_are_its_own(bench: Bench) -> None:
    """The second group has more of them than the first."""
    manager = bench.manager(4 * LONG, full(2), sliding(1, 90))
    request = manager.started("r", range(LONG))
    found = manager.find_longest_cache_hit_per_group(request, LONG)
    equal(tuple(found.hit_lengths_tokens), (LONG, LONG))
    lists = manager.lists(request)
    dead = LONG - 89
    manager.same(found.blocks, [lists[0], [0] * dead + lists[1][dead:]])


@example("KV-GRP-10", "KV-MGR-16", choices=("zeroed_blocks",))
def many_new_blocks_are_queued_for_zeroing(bench: Bench) -> None:
    manager = bench.manager(2 * LONG, full(1))
    request = manager.request("r", range(LONG))
    for _ in range(4):
        manager.run(request, LONG // 4)
    manager.same(sorted(manager.take_new_block_ids()), sorted(manager.blocks(request)))


@example("KV-GRP-4", "KV-MGR-18")
def every_free_block_of_a_long_hit_counts_in_the_need(bench: Bench) -> None:
    """99 of 100 blocks are hit and free, and one is to be taken: with 99 blocks that is refused."""
    manager = bench.manager(LONG + 1, full(1))
    freed(manager, LONG)
    manager.started("holder", [9999])
    request = manager.request("r", range(LONG))
    equal(manager.admit(request), None)


@example("KV-MGR-10", "KV-BATCH-6", level=Level.IDENTITY)
def a_long_step_of_a_running_request_registers_all_its_blocks(bench: Bench) -> None:
    steps = Steps(bench, 2 * LONG, full(1))
    (handle,) = steps.register(range(LONG))
    steps.batched.admit([handle], 1)
    steps.batched.step(StepPlan(prefilling=[handle], prefill_tokens=LONG - 1))
    equal(steps.manager.cached_positions(steps.of(handle)), list(range(LONG)))


@example("KV-BATCH-6")
def a_step_of_many_requests_knows_the_tokens_of_each(bench: Bench) -> None:
    """Half of them run, half are new."""
    steps = Steps(bench, 3 * LONG, check_invariants=False)
    handles = steps.register(*([number] * 8 for number in range(LONG)))
    running, new = handles[: LONG // 2], handles[LONG // 2 :]
    steps.batched.admit(running, 1)
    counts = [1 + number % 5 for number in running]
    plan = StepPlan(prefilling=running, prefill_tokens=counts, new=new)
    equal(steps.batched.step(plan).num_scheduled_tokens.tolist(), [*counts, *[8] * len(new)])
    equal([steps.of(handle).num_computed_tokens for handle in running], [n + 1 for n in counts])


@example("KV-BATCH-10")
def rows_of_a_long_list_are_told_in_one_step(bench: Bench) -> None:
    steps = Steps(bench, 2 * LONG, full(1))
    (handle,) = steps.register(range(LONG))
    _, rows, _ = steps.write(StepPlan(new=[handle]), num_rows=LONG)
    equal([row[2] for row in rows], list(range(LONG)))


@example("KV-BATCH-10")
def what_was_told_stays_told_when_many_are_registered(bench: Bench) -> None:
    steps = Steps(bench, 60)
    (first,) = steps.register(range(12))
    steps.write(StepPlan(new=[first]))
    for number in range(40):
        steps.register([number])
    steps.batched.append([first], [1])
    _, rows, _ = steps.write(StepPlan(decoding=[first]))
    equal([row[:3] for row in rows], [(first, 0, 3)])


@example("KV-GRP-11", "KV-GRP-1", level=Level.IDENTITY)
def counts_of_requests_stay_when_many_come(bench: Bench) -> None:
    manager = bench.manager(200)
    requests = [manager.started(f"r{n}", range(100 * n, 100 * n + 9)) for n in range(40)][:8]
    equal([manager.cached_count(request) for request in requests], [2] * 8)


@example("KV-MAMBA-7", level=Level.IDENTITY)
def requests_remember_their_states_when_many_come(bench: Bench) -> None:
    manager = bench.manager(100, mamba(4, "align"))
    texts = (partial(range, 100 * n, 100 * n + 9) for n in range(40))
    requests = [manager.started(f"r{n}", text()) for n, text in enumerate(texts)]
    equal([manager.has_taken_blocks(request) for request in requests], [True] * 40)
