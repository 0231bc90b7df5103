"""Which chapters an engine needs with its types of blocks: the table in spec/README.md.

`python -m tests.chapters` declares the reference with those types alone, runs the directed checks,
and counts the rules of each chapter that apply.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import kvref
from kvcheck.judge.applying import rule_outcomes
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import HIDDEN, NOT_APPLICABLE
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvspec.interface import Capabilities, Feature
from kvspec.specs import (
    SPEC_TYPES,
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    LayerSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
)
from tests.judge.declared import Declared
from tests.regenerate import load_table
from tests.source import ROOT, write_behind

PAGE = ROOT / "spec/README.md"
MARK = "<!-- `python -m tests.chapters` writes this table -->\n"

FULL: tuple[type[LayerSpec], ...] = (FullAttentionSpec, MLAAttentionSpec)
ENGINES: Mapping[str, tuple[type[LayerSpec], ...]] = {
    "full attention": FULL,
    "and windows": (*FULL, SlidingWindowSpec, SlidingWindowMLASpec),
    "and chunks": (*FULL, ChunkedLocalAttentionSpec),
    "and Mamba": (*FULL, MambaSpec),
    "and encoders": (*FULL, CrossAttentionSpec),
    "every type": SPEC_TYPES,
}
"""The columns: the types of an engine's groups."""


def declared(types: Sequence[type[LayerSpec]]) -> Capabilities:
    """Return the reference's capabilities with these types alone, custom specs being one."""
    whole = kvref.implementation().capabilities
    features = whole.features - {Feature.CUSTOM_SPECS}
    features |= {Feature.CUSTOM_SPECS} if tuple(types) == SPEC_TYPES else set()
    return replace(whole, spec_types=frozenset(types), features=features)


def applying(types: Sequence[type[LayerSpec]], rules: Sequence[str] = ("*",)) -> set[str]:
    """Return the rules that apply to an engine with these types."""
    options = Options(Level.IDENTITY, Budget(0.0, 0), tuple(rules))
    report = Suite(Declared(declared(types)), kvref.implementation(), options).run()
    outcomes = rule_outcomes(report)
    unchecked = (NOT_APPLICABLE, HIDDEN)
    return {rule for rule, found in outcomes.items() if found.verdict not in unchecked}


def rows() -> list[str]:
    """Build a line per chapter: how many of its rules apply to each engine."""
    table = load_table()
    chapters: dict[str, set[str]] = {}
    for rule in table.find_rules():
        if not rule.withdrawn and rule.chapter not in table.BESIDE:
            chapters.setdefault(rule.chapter, set()).add(rule.id)
    found = {name: applying(types) for name, types in ENGINES.items()}
    lines = [f"| chapter | {' | '.join(ENGINES)} |", f"|---|{'---:|' * len(ENGINES)}"]
    order = re.findall(r"\(rules/(\w+)\.md\)", PAGE.read_text(encoding="utf-8"))
    for chapter in sorted(chapters, key=lambda path: order.index(Path(path).stem)):
        rules = chapters[chapter]
        counts = [len(rules & applies) or "–" for applies in found.values()]
        lines.append(f"| {Path(chapter).stem} | {' | '.join(map(str, counts))} |")
    sums = [str(len(applies)) for applies in found.values()]
    return [*lines, f"| all | {' | '.join(sums)} |"]


def main() -> None:
    """Write the table behind its mark."""
    write_behind(PAGE, MARK, rows())


if __name__ == "__main__":
    main()
