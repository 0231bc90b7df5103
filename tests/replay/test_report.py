"""The report: every key documented, every number the driver's, equal from run to run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvcheck.tools.replay import beside
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.html import report_html
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.plot import plot_bytes
from kvcheck.tools.replay.report import ReplayContext, report, report_text
from kvcheck.tools.replay.result import ReplayResult
from kvcheck.tools.replay.synth import SynthTrace
from kvcheck.tools.replay.trace import TraceRecord
from tests.cases import Case, cases
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


@pytest.mark.parametrize("case", cases(__file__, "report.txt"), ids=str)
def test_a_report_is_as_it_was_read(case: Case) -> None:
    traces = [[record(1, [0], 10)] if n == "one" else [*SynthTrace(n)] for n in case.given]
    contents = [replay(trace, name=name)[1] for name, trace in zip(case.given, traces, strict=True)]
    text = report_text(contents[0]) if len(contents) == 1 else beside.text(contents)
    text, seconds, times = text.partition("\nSeconds")
    phases = re.sub(r" +[ \d.]+$", "", times, flags=re.MULTILINE)
    case.expect(re.sub(r"kvref [\d.]+,", "kvref …,", text + seconds + phases).splitlines())


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
