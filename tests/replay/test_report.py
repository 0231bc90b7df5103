"""The report: every key documented, every number the driver's, equal from run to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.html import report_html
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.plot import plot_bytes
from kvcheck.tools.replay.report import ReplayContext, report, report_text
from kvcheck.tools.replay.result import ReplayResult
from kvcheck.tools.replay.synth import SynthTrace
from kvcheck.tools.replay.trace import TraceRecord
from tests.replay.noted import Noted
from tests.replay.records import record


def replay(
    records: list[TraceRecord], *, name: str = "scene"
) -> tuple[ReplayResult, dict[str, Any]]:
    noted = Noted()
    driver = Driver(noted, ReplayOptions(300, 64), records, trace_name=name)
    result = driver.run()
    context = ReplayContext(name, noted.capabilities, 1.0, None, True)
    return result, report(result, context)


@pytest.fixture(scope="module")
def chat() -> tuple[ReplayResult, dict[str, Any]]:
    return replay(list(SynthTrace("synth:chat?requests=200")))


def test_the_keys_are_those_of_the_documentation(
    chat: tuple[ReplayResult, dict[str, Any]], root: Path
) -> None:
    _, content = chat
    text = (root / "spec" / "replay.md").read_text(encoding="utf-8")
    section = text.split("## 7.")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    documented = [key for row in rows for key in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert list(content) == documented
    described = {row.split("`")[1]: row for row in rows}
    for key in ("implementation", "versions", "options", "explanation", "seconds"):
        assert all(f"`{inner}`" in described[key] for inner in content[key])
    assert all(f"`{key}`" in described["explanation"] for key in content["explanation"]["items"][0])


def test_the_numbers_are_the_drivers(chat: tuple[ReplayResult, dict[str, Any]]) -> None:
    result, content = chat
    counts = result.counts
    assert content["requests"] == counts.requests == 200
    assert content["hit_rate"] == counts.tokens_hit / counts.tokens_queried
    assert content["trace_repeat_rate"] == pytest.approx(
        content["explanation"]["repeated_ids"] / content["explanation"]["ids"]
    )
    assert 0 < content["mean_usage"] < content["peak_usage"] <= 1
    assert content["options"]["block_size"] == 64
    assert content["evictions"] > 0 < content["preemptions"]


def test_the_items_lead_from_the_repeat_rate_to_the_hit_rate(
    chat: tuple[ReplayResult, dict[str, Any]],
) -> None:
    _, content = chat
    items = content["explanation"]["items"]
    rate = content["trace_repeat_rate"] + sum(item["rate_change"] for item in items)
    assert rate == pytest.approx(content["hit_rate"], abs=1e-12)
    assert content["explanation"]["residual"] == 0
    tokens = content["explanation"]["repeated_tokens"] + sum(item["tokens"] for item in items[1:])
    assert tokens == content["tokens_hit"]


def test_without_preemptions_there_is_no_rate_of_them() -> None:
    _, content = replay([record(1, [0], 10)])
    assert "0 of 0 tokens  (none queried)" in report_text(content)


@pytest.mark.parametrize("image_format", ["png", "svg"])
def test_equal_input_gives_an_equal_picture(
    chat: tuple[ReplayResult, dict[str, Any]], image_format: str
) -> None:
    result, content = chat
    picture = plot_bytes([(result.series, content)], image_format=image_format)
    assert picture == plot_bytes([(result.series, content)], image_format=image_format)
    assert picture.startswith(b"\x89PNG" if image_format == "png" else b"<?xml")
    assert b"<dc:date>" not in picture


def test_the_page_needs_nothing_else(chat: tuple[ReplayResult, dict[str, Any]]) -> None:
    result, content = chat
    svg = plot_bytes([(result.series, content)], image_format="svg")
    page = report_html([{**content, "trace": "<a> & b"}], svg)
    assert page.startswith("<!DOCTYPE html>")
    assert "&lt;a&gt; &amp; b" in page
    assert "<a>" not in page
    assert "<?xml" not in page
    assert page.count("<svg") == 1
    assert "<script" not in page
    # Addresses in an SVG are names of its vocabulary; nothing is loaded from them.
    loaded = re.findall(r"""(?:src|href)\s*=\s*["']([^"']+)""", page)
    assert all(target.startswith("#") for target in loaded)
    assert "url(http" not in page
