"""The table of chapters in spec/README.md is what the checks say of themselves."""

from __future__ import annotations

import pytest

from tests.chapters import FULL, MARK, PAGE, applying, rows

TABLE = PAGE.read_text(encoding="utf-8").partition(MARK)[2].partition("\n\n")[0]
CHAPTERS = {"chunked_local": "CHUNK", "cross_attention": "CROSS", "sliding_window": "SW"}


def test_an_engine_with_full_attention_alone_needs_what_the_table_says() -> None:
    """Compare the first column, for three chapters."""
    found = applying(FULL, [f"KV-{chapter}-*" for chapter in CHAPTERS.values()])
    for name, chapter in CHAPTERS.items():
        number = sum(rule.startswith(f"KV-{chapter}-") for rule in found) or "–"
        assert f"| {name} | {number} |" in TABLE


@pytest.mark.deep
def test_every_row_is_what_is_found() -> None:
    assert "\n".join(rows()) == TABLE
