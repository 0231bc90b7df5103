"""KV-EVT-11, KV-EVT-12, KV-POL-25: what a request hits, told to whoever reads the events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.digests import HASH_0, HASH_1
from kvcheck.rules.example import cases, example
from kvcheck.rules.following import Engine, hashes_of
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import full, sliding
from kvcheck.rules.steps import Steps
from kvspec.events import BlockStored, StoredRange
from kvspec.interface import Feature
from kvspec.policy import Policy
from kvspec.request import LoRA, MultimodalItem

C9D5 = bytes.fromhex(HASH_0)
HASH_2412 = bytes.fromhex(HASH_1)


def stored(*hashes: bytes | int, tokens: range, **members: Any) -> BlockStored:
    """The event of a plain request in group 0; `members` are what differs from that."""
    expected: dict[str, Any] = {
        "block_hashes": hashes,
        "parent_block_hash": None,
        "token_ids": tuple(tokens),
        "block_size_tokens": 4,
        "lora_id": None,
        "lora_name": None,
        "medium": "GPU",
        "extra_keys": (None,) * len(hashes),
        "group": 0,
        "spec_kind": "full_attention",
        "sliding_window_tokens": None,
    }
    return BlockStored(**{**expected, **members})


def telling(bench: Bench, num_blocks: int, *layers: Any, **options: Any) -> Managed:
    """A manager with events, whose requests may want reports."""
    bench.need(Feature.HIT_REPORTS)
    return bench.manager(num_blocks, *layers, enable_events=True, **options)


def reports(manager: Managed) -> list[BlockStored]:
    """The reports among the events since they were taken."""
    return [e for e in manager.take_events() if isinstance(e, BlockStored) and e.is_report]


def when(bench: Bench, chosen: str) -> Policy:
    """The choices of the subject, and this one of when hits are reported."""
    return replace(bench.policy, hits_reported=chosen)


@cases(
    ({}, {}),
    ({"int_event_hashes": True}, {}),
    ({"dcp_world_size": 2}, {}),
    ({"hash_lookahead_tokens": 2}, {"multimodal": (MultimodalItem("a", 4, 9),)}),
    ({"hash_block_size_tokens": 2}, {"cache_salt": "s", "lora": LoRA("sql", 5)}),
)
@example("KV-EVT-11", "KV-EVT-6", "KV-EVT-8", "KV-EVT-10")
def a_report_says_all_that_was_said_when_it_was_stored(
    bench: Bench, options: dict[str, Any], content: dict[str, Any]
) -> None:
    """The text is longer by then, and only so much of it was stored."""
    manager = telling(bench, 12, **options)
    manager.started("first", range(1, 20), **content)
    (event,) = manager.take_events()
    manager.started("r", range(1, 20), reports_hits=True, **content)
    equal(reports(manager), [replace(event, is_report=True)])


@example("KV-EVT-11", "KV-EVT-9")
def a_report_of_a_followed_request_says_where_its_tokens_are(bench: Bench) -> None:
    bench.need(Feature.HIT_REPORTS)
    engine = Engine(bench, enable_events=True)
    engine.manager.admit(engine.request("first", 9, "ab"))
    engine.manager.take_events()
    request = engine.request("r", 9, "ab", num_prompt_tokens=3, reports_hits=True)
    engine.manager.admit(request)
    engine.follow(request, 3)
    found = [(report.block_hashes, report.source) for report in reports(engine.manager)]
    equal(found, [(tuple(hashes_of("ab")), StoredRange("r", 0, 2, (0, 1)))])


@example("KV-EVT-11", "KV-EVT-12", "KV-MGR-8")
def each_group_reports_its_own_hit_beside_a_load(bench: Bench) -> None:
    """Group 0 hits 12 tokens, group 1 only 4; 4 more come from another store."""
    bench.need(Feature.EXTERNAL_TOKENS, Feature.DELAYED_CACHING, Feature.EVICTION_BY_ID)
    bench.need(Feature.UNEQUAL_HITS)
    manager = telling(bench, 20, full(4), sliding(4, 99), policy=when(bench, "admitted"))
    first = manager.started("first", range(1, 18))
    manager.evict_blocks(manager.blocks(first, 1)[1:])
    manager.evict_blocks(manager.blocks(first, 0)[3:])
    manager.take_events()
    request = manager.request("r", range(1, 18), reports_hits=True)
    hits = manager.find_longest_cache_hit_per_group(request, 16)
    equal(hits.hit_lengths_tokens, (12, 4))
    options = {"num_external_computed_tokens": 4, "delay_cache_blocks": True}
    manager.allocate_slots(
        request, 0, num_new_computed_tokens=12, new_computed_blocks=hits.blocks, **options
    )
    found = reports(manager)
    equal(
        [(e.group, len(e.block_hashes), len(e.token_ids)) for e in found], [(0, 3, 12), (1, 1, 4)]
    )


@example("KV-EVT-12")
def a_report_comes_with_the_admission_and_with_each(bench: Bench) -> None:
    """Looked up and refused, admitted, preempted, and admitted again; who runs hits nothing."""
    manager = telling(bench, 6, policy=when(bench, "admitted"))
    first = manager.started("first", range(1, 10))
    other = manager.started("other", [50] * 5)
    request = manager.request("r", range(1, 11), reports_hits=True)
    manager.take_events()
    holds(manager.admit(request) is None, "all 5 blocks are in use")
    equal(manager.take_events(), ())
    manager.free(other)
    for _ in range(2):
        manager.admit(request, 1)
        equal(len(reports(manager)), 1)
        manager.run(request)
        equal(reports(manager), [])
        manager.preempt(request)
    manager.free(first)
    equal(manager.take_events(), ())


@cases(("asked", 2, 2), ("admitted", 0, 1))
@example("KV-EVT-12", "KV-POL-25", "KV-BATCH-7", "KV-BATCH-12")
def whole_steps_report_what_they_admit_or_ask(
    bench: Bench, chosen: str, asked: int, admitted: int
) -> None:
    """Two hit 8 tokens, and there is room for one of them."""
    bench.need(Feature.HIT_REPORTS)
    steps = Steps(bench, 6, policy=when(bench, chosen), enable_events=True)
    steps.admitted(range(1, 11))
    requests = [steps.request([*range(1, 9), *more], reports_hits=True) for more in ([9], [9] * 20)]
    handles = [steps.batched.register(request) for request in requests]
    steps.manager.take_events()
    equal(steps.batched.lookup(handles).tolist(), [8, 8])
    equal(len(reports(steps.manager)), asked)
    result = steps.batched.admit(handles)
    equal(result.num_scheduled_tokens.tolist(), [1, 0])
    found = reports(steps.manager)
    equal(found, [stored(C9D5, HASH_2412, tokens=range(1, 9), is_report=True)] * admitted)
