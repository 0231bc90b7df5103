"""The figures of docs/FINDINGS.md: written by a script, and each broken rule is explained."""

from __future__ import annotations

from typing import Any

import pytest

from tests.adapters.findings import BY_HAND, PAGE, differences, figures, filled

REPORT: dict[str, Any] = {
    "subject": "x",
    "level": "safety",
    "seed": 3,
    "rules": {"KV-POOL-1": "broken", "KV-POOL-2": "unbroken", "KV-MGR-1": "not exercised"},
    "static": {"walks": 2, "operations": 1234},
    "directed": 4,
    "left_out": {"a story": ["events"]},
    "random": 5,
}
PLACE = "a\n<!-- begin x -->\nold\n<!-- end x -->\n"
TEXT = PLACE + BY_HAND + "\n\n| points | KV-POOL-1 |\n\n## b\n"


def test_each_broken_rule_of_the_page_is_explained() -> None:
    assert differences(PAGE.read_text(encoding="utf-8")) == []


def test_the_figures_are_those_of_the_report() -> None:
    text = figures(REPORT)
    for row in ("rules broken | 1", "2 walks, 1,234 operations", "4, and 1 left out"):
        assert f"| {row} |" in text or row in text
    assert "Broken: KV-POOL-1." in text
    assert "Not exercised: KV-MGR 1." in text


def test_they_replace_those_before_and_a_missing_explanation_is_found() -> None:
    once = filled(TEXT, "x", figures(REPORT))
    assert "old" not in once
    assert filled(once, "x", figures(REPORT)) == once
    assert differences(once) == []
    others = {**REPORT, "rules": {"KV-POOL-2": "broken"}}
    assert differences(filled(TEXT, "x", figures(others))) == [
        "KV-POOL-2 is broken, and nothing says why",
        "KV-POOL-1 is explained, and not broken",
    ]
    with pytest.raises(ValueError, match="lacks"):
        filled("no place", "x", "")
