"""Each vector passes on kvref, fails on the twin that undoes its right side, and is described."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kvcheck.records.trace import replay_trace
from kvref import ReferenceImplementation
from tests.differences.vectors import REFUSED, folder, refused_again
from tests.mistakes import mistaken
from tests.records.changed import Tape, assert_is_made_again

TWINS: dict[str, tuple[str, int | None]] = {
    "eagle_mamba": ("MambaLooksFurther", 5),
    "two_full_specs": ("OnlyTheFirstFullListIsCut", 6),
    "align_null_gap": ("StopsAtTheFirstNull", 4),
    "align_external": ("ForgetsExternal", 1),
    "late_items": ("LastItemOnly", 1),
    "whole_prompt_external": ("SkipsAtTheEnd", 1),
    "verified_tokens": ("CountsDrafts", 4),
    "skipped_read": ("KeepsThePrefix", 8),
    "chunk_inside_block": ("AcceptsAnyChunk", None),
    "external_behind_lookahead": ("AllocatesLessThanNothing", 2),
    "released_twice": ("TrustsTheCaller", 8),
    "illegal_arguments": ("Asserts", 3),
    "short_lists": ("ShortListsNeedNoLoad", 17),
}
"""For each vector the mistake that undoes its right side, and the record that fails (None: header).

There the twin does what vLLM 0.24.0 does.
"""

VECTORS = tuple(sorted(path.name for path in folder().glob("*.jsonl")))


def test_every_vector_has_its_twin() -> None:
    assert sorted(f"{name}.jsonl" for name in TWINS) == list(VECTORS)


@pytest.mark.parametrize("name", sorted({*VECTORS} - {REFUSED}))
def test_a_vector_made_again_is_the_same(name: str) -> None:
    assert_is_made_again(folder() / name)


def test_the_refused_configuration_made_again_is_the_same() -> None:
    header = Tape.read(folder() / REFUSED).header
    assert replace(header, source="") == replace(refused_again(), source="")


@pytest.mark.parametrize("name", VECTORS)
def test_the_reference_passes(name: str) -> None:
    result = replay_trace(folder() / name, ReferenceImplementation())
    assert result.passed
    assert (result.compared, result.num_quirky) == (len(Tape.read(folder() / name).operations), 0)


@pytest.mark.parametrize("name", TWINS)
def test_its_twin_fails_at_the_record_that_the_readme_names(name: str) -> None:
    mistake, record = TWINS[name]
    result = replay_trace(folder() / f"{name}.jsonl", mistaken(mistake, audits=True))
    assert result.mismatch is not None
    where = "header" if record is None else f"operation {record},"
    assert result.mismatch.what.startswith(where)
    assert described(folder() / "README.md")[name] == record


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_passes_the_other_vectors(name: str) -> None:
    twin = mistaken(TWINS[name][0], audits=True)
    others = [vector for vector in VECTORS if vector != f"{name}.jsonl"]
    failed = [v for v in others if not replay_trace(folder() / v, twin).passed]
    assert failed == []


def described(readme: Path) -> dict[str, int | None]:
    """Return the vectors in the README's table, each with the record that shows the difference."""
    row = re.compile(r"^\| `(\w+)\.jsonl` \| (\w+)", re.MULTILINE)
    rows = row.findall(readme.read_text(encoding="utf-8"))
    return {name: None if record == "header" else int(record) for name, record in rows}
