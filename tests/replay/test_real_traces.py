"""The driver on real traffic: the shared Mooncake traces."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from kvcheck.discovery import find_implementation
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.explain import Explainer, Reason
from kvcheck.tools.replay.file import TraceFile
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.result import ReplayResult
from kvcheck.tools.replay.trace import TraceRecord

pytestmark = pytest.mark.shared


def conversation(shared: Path) -> list[TraceRecord]:
    with TraceFile(
        str(shared / "traces" / "mooncake_conversation.jsonl.gz"), ordered=True
    ) as trace:
        return list(trace)


def replay(records: list[TraceRecord], options: ReplayOptions, *, check: bool) -> ReplayResult:
    return Driver(
        find_implementation("kvref"),
        options,
        records,
        trace_name="conversation",
        check_invariants=check,
    ).run()


@pytest.mark.parametrize(
    ("name", "requests", "tokens", "repeat_rate"),
    [
        ("mooncake_conversation", 12_031, 144_793_823, 0.366),
        ("mooncake_synthetic", 3_993, 61_194_628, 0.640),
    ],
)
def test_a_real_trace_repeats_as_its_authors_say(
    shared: Path, name: str, requests: int, tokens: int, repeat_rate: float
) -> None:
    explainer = Explainer(512)
    with TraceFile(str(shared / "traces" / f"{name}.jsonl.gz"), ordered=True) as trace:
        records = list(trace)
    for each in records:
        explainer.admitted(each, 0)
    waterfall = explainer.waterfall(0)
    assert (len(records), waterfall.tokens) == (requests, tokens)
    assert float(waterfall.repeat_rate) == pytest.approx(repeat_rate, abs=0.0005)
    assert waterfall.changes[Reason.OTHER_PREFIX] == 0


def test_one_run_a_block_and_no_eviction_leaves_nothing_unexplained(shared: Path) -> None:
    records = [replace(each, output_length=1) for each in conversation(shared)[:2_000]]
    result = replay(records, ReplayOptions(60_000, 512), check=False)
    waterfall = result.waterfall
    assert result.counts.evictions == 0
    assert waterfall.residual == 0
    lost = {reason: tokens for reason, tokens in waterfall.changes.items() if tokens}
    assert set(lost) <= {Reason.INCOMPLETE_BLOCK, Reason.LAST_TOKEN}
    assert waterfall.hit_rate > waterfall.repeat_rate * 0.99


def test_a_small_pool_loses_only_what_it_evicts(shared: Path) -> None:
    result = replay(conversation(shared)[:60], ReplayOptions(1_000, 256), check=False)
    assert result.counts.evictions > 0
    assert result.counts.preemptions > 0
    assert result.waterfall.residual == 0
    assert result.waterfall.changes[Reason.BEYOND_REPEATS] == 0


def test_the_first_requests_keep_every_invariant(shared: Path) -> None:
    records = [
        replace(each, output_length=min(each.output_length, 10))
        for each in islice(conversation(shared), 15)
    ]
    assert replay(records, ReplayOptions(600, 256), check=True).counts.requests == 15
