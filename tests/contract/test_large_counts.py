"""Counts beyond all there can be: a typed error, None or a short result, soon (KV-ERR-6).

The build compared with kvref is the compiled one: ints of the uncompiled one have no end either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from inspect import Parameter, signature
from itertools import product
from typing import Any

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.rules.bench import Bench
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import chunked, cross, encoder_only, full, mamba, sliding
from kvspec.batched import StepPlan
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.interface import KVCacheManager
from kvspec.policy import Policy
from kvspec.request import Request
from kvspec.sequential import batched_of
from kvspec.specs import LayerSpec, SinkFullAttentionSpec

NUM_BLOCKS = 64
LONGEST = 256

GROUPS: dict[str, Sequence[LayerSpec]] = {
    "full": [full(4)],
    "sink": [SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=8)],
    "sliding": [sliding(4, 6)],
    "chunked": [chunked(4, 8)],
    "mamba": [mamba(4, "all", speculative=2)],
    "mamba_one_state": [mamba(LONGEST, "none", speculative=1)],
    "aligned": [mamba(4, "align")],
    "aligned_drafting": [mamba(4, "align", speculative=2)],
    "cross": [full(4), cross(4)],
    "cross_alone": [cross(4)],
    "encoder_only": [encoder_only(4)],
    "full_and_sliding": [full(4), sliding(8, 6)],
    "full_and_aligned": [full(4), mamba(8, "align", speculative=1)],
    "large_blocks": [sliding(2**52, 2**53 - 1)],
    "many_drafts": [mamba(2**40, "all", speculative=2**12)],
}

LEGAL = {"group": 0, "num_tokens": 2, "total_computed_tokens": 0}
"""Of counts that have no default; others may be 1."""
LARGE = (2**31 - 1, 2**31, 2**32, 2**40, 2**53 - 1)
COUNTS: dict[str, dict[str, int]] = {
    name: {
        parameter.name: LEGAL.get(parameter.name, 1) if parameter.default is Parameter.empty else 0
        for parameter in signature(getattr(KVCacheManager, name)).parameters.values()
        if parameter.annotation == "int"
    }
    for name in (
        *("allocate_slots", "get_num_blocks_to_allocate", "find_longest_cache_hit_per_group"),
        *("cache_blocks", "cache_partial_block", "withdraw", "remove_skipped_blocks"),
    )
}
PLANNED = ("token_budget", "num_lookahead_tokens", "reserved_blocks")


def managed(bench: Bench, groups: str) -> tuple[Managed, list[Request]]:
    caching = groups not in ("cross", "cross_alone", "encoder_only")
    manager = bench.manager(
        NUM_BLOCKS,
        specs=GROUPS[groups],
        max_model_len_tokens=LONGEST,
        enable_caching=caching,
        enable_events=True,
    )
    running = manager.request("running", range(12))
    manager.admit(running)
    return manager, [running, manager.request("new", range(20, 32))]


def outcome(manager: Managed, call: Callable[..., Any], *args: Any, **how: Any) -> object:
    before = manager.everything().snapshot
    try:
        answer = call(*args, **how)
    except InvariantViolation:
        raise
    except KVSpecError:
        assert manager.everything().snapshot == before
        return "illegal"
    if isinstance(answer, KVCacheBlocks):
        assert all(len(ids) <= 2 * NUM_BLOCKS for ids in answer.groups)
        return answer.to_lists(), manager.everything().snapshot
    return answer, manager.everything().snapshot


class Beside:
    """This implementation beside kvref, each with a manager of these groups."""

    def __init__(self, bench: Bench, groups: str) -> None:
        self.groups = groups
        self.sides = (Bench(find_implementation("kvref"), Policy()), bench)
        self.unchanged: dict[int, tuple[Managed, list[Request]]] = {}

    def same(self, name: str, **how: Any) -> None:
        for number in range(2):
            found = [self._outcome(side, name, number, how) for side in range(2)]
            assert found[0] == found[1], (name, how, number)

    def _outcome(self, side: int, name: str, number: int, how: dict[str, Any]) -> object:
        """Make a call; after an illegal one, mostly the case, reuse the unchanged manager."""
        if side not in self.unchanged:
            self.unchanged[side] = managed(self.sides[side], self.groups)
        manager, requests = self.unchanged.pop(side)
        found = outcome(manager, getattr(manager, name), requests[number], **how)
        if found == "illegal":
            self.unchanged[side] = manager, requests
        return found


def calls(groups: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield calls with one large count, with all of them, and with hits beyond the request.

    Null is refused for blocks beyond the request, even where none of them is read.
    """
    most = 2**53 - 1
    for name, legal in COUNTS.items():
        free = [field for field in legal if field != "group"]
        yield from ((name, {**legal, field: count}) for field, count in product(free, LARGE))
        yield name, {**legal, **dict.fromkeys(free, most)}
    for new in (0, 1):
        largest = dict.fromkeys(COUNTS["allocate_slots"], most)
        largest |= {"num_new_tokens": new, "num_new_computed_tokens": 0}
        yield "allocate_slots", {**largest}
        del largest["num_external_computed_tokens"]
        yield "allocate_slots", {**largest, "reserved_blocks": 0, "num_encoder_tokens": 0}
    for length, spec in product((3, 4, 64, 2**12), GROUPS[groups]):
        hits = KVCacheBlocks(tuple([0] * length for _ in GROUPS[groups]))
        counts = {
            "num_new_tokens": 1,
            "num_new_computed_tokens": min(length * spec.block_size, most),
        }
        yield "allocate_slots", {**counts, "new_computed_blocks": hits}


@pytest.mark.on("kvfast")
@pytest.mark.rule("KV-ERR-6", "KV-MGR-4", "KV-MGR-7", "KV-MGR-8", "KV-MGR-18")
@pytest.mark.parametrize("groups", GROUPS)
def test_counts_of_a_call_may_be_large(bench: Bench, groups: str) -> None:
    beside = Beside(bench, groups)
    for name, given in calls(groups):
        beside.same(name, **given)


@pytest.mark.rule("KV-ERR-6")
def test_the_needs_of_many_groups_are_added_up(bench: Bench) -> None:
    """Give 1,100 groups a need of 2^53 blocks each: over 64 bits, refused, and exact."""
    manager = bench.manager(
        NUM_BLOCKS,
        specs=[sliding(1, 6)] * 1100,
        max_model_len_tokens=2**53 - 1,
        enable_caching=False,
    )
    request = manager.request("r", range(12))
    assert manager.allocate_slots(request, 0, num_external_computed_tokens=2**53 - 1) is None
    needed = manager.get_num_blocks_to_allocate(
        request, num_tokens=2**53 - 1, total_computed_tokens=0, num_tokens_main_model=2**53 - 1
    )
    assert needed == 1100 * (2**53 - 1)


@pytest.mark.on("kvfast")
@pytest.mark.rule("KV-ERR-6", "KV-BATCH-2", "KV-BATCH-6", "KV-BATCH-8")
@pytest.mark.parametrize("groups", sorted(set(GROUPS) - {"large_blocks"}))
def test_every_count_of_a_step_may_be_large(bench: Bench, groups: str) -> None:
    counts = ("decode_tokens", "prefill_tokens", "max_new_tokens", *PLANNED)
    for field, count in product(counts, LARGE):
        found = []
        for made in (Bench(find_implementation("kvref"), Policy()), bench):
            one = replace(made, audits=False)  # a batch calls the manager behind an audit
            manager, requests = managed(one, groups)
            batched = batched_of(one.subject, manager.real)
            running, new = [batched.register(request) for request in requests]
            phase = "prefilling" if field == "prefill_tokens" else "decoding"
            asked: dict[str, Any] = {field: count if field in PLANNED else [count]}
            asked[phase] = [running]
            plan = StepPlan(new=[new], **asked)
            found.append(outcome(manager, lambda b=batched, p=plan: shown(b.step(p))))
        assert found[0] == found[1], (field, count)


def shown(result: Any) -> list[list[int]]:
    return [result.num_scheduled_tokens.tolist(), result.hit_tokens.tolist()]
