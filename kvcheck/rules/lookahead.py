"""Hash look-ahead: KV-HASH-14, KV-HASH-15, KV-EVT-10, and what follows from them elsewhere."""

from __future__ import annotations

from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.digests import NONE_HASH, sha256
from kvcheck.rules.example import cases, example
from kvcheck.rules.following import Engine
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import full
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature
from kvspec.request import LoRA, MultimodalItem


def looking_ahead(bench: Bench, ahead: int, *layers: Any, **options: Any) -> Managed:
    """A manager whose hashes cover so many tokens more."""
    return bench.manager(40, *layers, hash_lookahead_tokens=ahead, **options)


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
