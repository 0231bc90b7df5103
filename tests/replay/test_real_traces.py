"""The driver on real traffic: the shared Mooncake traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcheck.tools.replay.explain import Explainer, Reason
from kvcheck.tools.replay.file import TraceFile

pytestmark = pytest.mark.shared


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
