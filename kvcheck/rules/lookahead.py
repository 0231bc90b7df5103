"""Hash look-ahead: KV-HASH-14, KV-HASH-15, KV-EVT-10, and what follows from them elsewhere."""

from __future__ import annotations

from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.digests import NONE_HASH, sha256
from kvcheck.rules.example import cases, example
from kvcheck.rules.following import Engine
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import full, mamba, sliding
from kvcheck.rules.steps import Steps
from kvspec.errors import InvalidArgumentError
from kvspec.events import BlockStored
from kvspec.interface import Feature
from kvspec.request import LoRA, MultimodalItem
from kvspec.specs import LayerSpec


def looking_ahead(bench: Bench, ahead: int, *layers: Any, **options: Any) -> Managed:
    """A manager whose hashes cover so many tokens more."""
    return bench.manager(40, *layers, hash_lookahead_tokens=ahead, **options)


@example("KV-HASH-14", "KV-HASH-4")
def a_hash_covers_the_tokens_behind_its_block(bench: Bench) -> None:
    manager = looking_ahead(bench, 1)
    request = manager.request("r", range(1, 10))
    found = [block_hash.hex() for block_hash in request.block_hashes]
    expected = [
        "f704a80ba2a74ec7082ce3c7104f18cf9418abca1327bdbf15971069d3caa375",
        "c89086f266b347818cdfb98df388ecc2edcf4c8ed7179fa73f5329de2689f0d7",
    ]
    equal(found, expected)
    equal(len(manager.request("shorter", range(1, 9)).block_hashes), 1)


@cases(1, 3, 40)
@example("KV-HASH-14", "KV-HASH-4", "KV-REQ-2")
def hashes_come_when_the_tokens_behind_are_known(bench: Bench, ahead: int) -> None:
    """Of a long prompt at once, of others token by token; the same ones."""
    tokens = range(100_000, 101_100)
    whole = looking_ahead(bench, ahead, full(16)).request("whole", tokens)
    expected, parent = [], bytes.fromhex(NONE_HASH)
    for start in range(0, len(tokens) - 16 - ahead + 1, 16):
        end = start + 16
        parent = sha256(parent, tokens[start:end], [None, *tokens[end : end + ahead]])
        expected.append(parent)
    equal(list(whole.block_hashes), expected)
    manager = looking_ahead(bench, ahead, full(16))
    grown = manager.request("grown", tokens[:10])
    for n in range(11, 90):
        manager.append(grown, tokens[n - 1 : n])
        equal(len(grown.block_hashes), max(0, n - ahead) // 16, f"hashes of {n} tokens")
    equal(list(grown.block_hashes), expected[: len(grown.block_hashes)])


@example("KV-HASH-14", "KV-HASH-8", choices=("extra_keys",))
def items_behind_a_block_are_in_its_hash_and_in_the_next(bench: Bench) -> None:
    """E = 3: block 0 knows tokens 0 … 6, block 1 tokens 4 … 10."""
    bench.need(Feature.LORA, Feature.MULTIMODAL)
    items = (MultimodalItem("a", 3, 2), MultimodalItem("b", 6, 1), MultimodalItem("c", 10, 30))
    manager = looking_ahead(bench, 3)
    request = manager.request("r", range(1, 13), lora=LoRA("sql", 5), multimodal=items)
    sql = ["lora", "sql", None]
    keys: list[Any] = [
        [sql, ["mm", "a", 3], ["mm", "b", 6]],
        [sql, ["mm", "a", -1], ["mm", "b", 2], ["mm", "c", 6]],
    ]
    first = sha256(bytes.fromhex(NONE_HASH), range(1, 5), [keys[0], 5, 6, 7])
    second = sha256(first, range(5, 9), [keys[1], 9, 10, 11])
    equal(list(request.block_hashes), [first, second])


@example("KV-HASH-14", "KV-HASH-8", choices=("extra_keys",))
def blocks_before_an_item_are_told_apart_as_soon_as_they_reach_it(bench: Bench) -> None:
    """The item begins at token 20: block 3 ends at 16, and with E = 5 knows token 20."""
    bench.need(Feature.MULTIMODAL)
    manager = looking_ahead(bench, 5)
    item = (MultimodalItem("a", 20, 4),)
    plain, with_item = (
        list(manager.request(name, range(32), multimodal=items).block_hashes)
        for name, items in (("plain", ()), ("item", item))
    )
    equal([a == b for a, b in zip(plain, with_item, strict=True)], [True] * 3 + [False] * 3)


@example("KV-HASH-15", "KV-GRP-11", "KV-MGR-10")
def a_block_is_registered_once_it_has_its_hash(bench: Bench) -> None:
    """E = 2: of 8 tokens block 1 has none, of 10 it has; computed it is all along."""
    for layers in ((full(4),), (full(4), sliding(4, 9))):
        manager = looking_ahead(bench, 2, *layers)
        request = manager.started("r", range(8))
        equal(manager.cached_positions(request), [0])
        equal(manager.counts(request)[0], 1)
        for token, cached in ((8, [0]), (9, [0, 1])):
            manager.append(request, [token])
            manager.run(request)
            equal(manager.cached_positions(request), cached, f"cached of {token + 1} tokens")


@cases((1, 9, 8), (1, 8, 4), (2, 9, 4), (3, 11, 8), (3, 10, 4), (3, 3, 0), (40, 30, 0))
@example("KV-HASH-15", "KV-HASH-14", "KV-MGR-1", "KV-COORD-9")
def nobody_hits_what_has_no_hash(bench: Bench, ahead: int, num_tokens: int, length: int) -> None:
    """Nor is a block dropped, whatever is flagged."""
    for layers in ((full(4),), (sliding(4, 5),), (full(4), sliding(4, 5)), (full(4), mamba(4))):
        options = {"use_eagle": True, "eagle_groups": [0]} if bench.has(Feature.EAGLE) else {}
        manager = looking_ahead(bench, ahead, *layers, **options)
        manager.started("all", range(30))
        manager.new_step_starts()
        request = manager.request("r", range(num_tokens))
        hit = manager.get_computed_blocks(request)
        equal(hit.hit_length_tokens, length, f"hit in {layers}")
        if len(layers) > 1 and bench.has(Feature.HITS_PER_GROUP):
            hits = manager.find_longest_cache_hit_per_group(request, 100)
            longest = max(0, num_tokens - ahead) // 4 * 4
            equal(list(hits.hit_lengths_tokens), [min(longest, max(0, 30 - ahead) // 4 * 4)] * 2)


@cases((1, 17, 16), (1, 16, 12), (3, 18, 12), (3, 17, 12), (3, 16, 12), (3, 15, 12), (3, 14, 8))
@example("KV-HASH-15", "KV-RET-4", "KV-RET-5")
def a_replay_hits_as_far_as_its_hashes_go(
    bench: Bench, ahead: int, num_tokens: int, length: int
) -> None:
    """Of every length of a prompt something is kept that the same prompt hits."""
    specs: tuple[LayerSpec, ...] = (sliding(4, 5), mamba(4))
    for spec in specs:
        manager = looking_ahead(bench, ahead, full(4), spec, retention_interval_tokens=0)
        first = manager.started("first", range(num_tokens))
        equal(manager.cached_positions(first, 1), [length // 4 - 1], f"kept in {spec}")
        manager.new_step_starts()
        hit = manager.get_computed_blocks(manager.request("again", range(num_tokens)))
        equal(hit.hit_length_tokens, length, f"hit in {spec}")


@example("KV-EVT-10", "KV-EVT-8")
def events_say_which_tokens_a_hash_covers(bench: Bench) -> None:
    """An item at tokens 4 and 5 is known to both blocks."""
    bench.need(Feature.MULTIMODAL)
    manager = looking_ahead(bench, 2, enable_events=True)
    manager.started("r", range(1, 11), multimodal=(MultimodalItem("a", 4, 2),))
    (event,) = manager.take_events()
    holds(isinstance(event, BlockStored))
    equal(event.lookahead_token_ids, ((5, 6), (9, 10)))
    equal(event.token_ids, tuple(range(1, 9)))
    equal(event.extra_keys, ((("a", 4),), (("a", 0),)))


@example("KV-EVT-10")
def without_look_ahead_events_say_nothing_of_it(bench: Bench) -> None:
    manager = bench.manager(enable_events=True)
    manager.started("r", range(9))
    (event,) = manager.take_events()
    equal(getattr(event, "lookahead_token_ids", None), None)


@example("KV-HASH-14", "KV-REQ-1")
def a_request_belongs_to_managers_of_its_look_ahead(bench: Bench) -> None:
    request = looking_ahead(bench, 1).request("r", range(9))
    with raises(InvalidArgumentError, field="request"):
        looking_ahead(bench, 2).get_computed_blocks(request)


@example("KV-HASH-14", "KV-REQ-7", "KV-REQ-8", "KV-EVT-10")
def a_followed_request_has_no_hash_before_its_tokens(bench: Bench) -> None:
    """E = 2: 9 tokens have one hash, 10 two, 9 again one."""
    engine = Engine(bench, hash_lookahead_tokens=2, enable_events=True)
    request = engine.request("r", 9, "a")
    with raises(InvalidArgumentError, field="hashes"):
        engine.request("other", 9, "ab")
    engine.follow(request, 10, "b")
    engine.follow(request, 9)
    equal(len(request.block_hashes), 1)
    engine.follow(request, 14, "cd")
    engine.manager.admit(request)
    equal(engine.manager.cached_positions(request), [0, 1, 2])
    (event,) = engine.manager.take_events()
    equal(event.lookahead_token_ids, None)


@example("KV-HASH-15", "KV-BATCH-6", "KV-BATCH-7")
def whole_steps_register_what_has_a_hash(bench: Bench) -> None:
    """E = 2, a prompt of 8: the two steps after it name block 1, with one group and with two."""
    for layers in ((full(4),), (full(4), sliding(4, 9))):
        steps = Steps(bench, 20, *layers, hash_lookahead_tokens=2)
        (handle,) = steps.admitted(range(8))
        for token, count in ((8, 1), (9, 2), (10, 2)):
            steps.batched.append([handle], [token])
            equal(steps.batched.decode([handle]).num_scheduled_tokens.tolist(), [1])
            equal(steps.manager.counts(steps.of(handle))[0], count, f"with {token + 1} tokens")
        (again,) = steps.register(range(11))
        equal(steps.batched.admit([again]).hit_tokens.tolist(), [8])
