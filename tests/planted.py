"""The tables of planted mistakes: which rules lives name for each.

    python -m tests.planted [index] [tier] [tree] [vllm]

`vllm`: mistakes in the running managers of an installed vLLM 0.33.0. Takes minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from kvcheck.adapters.vllm import offload
from kvcheck.discovery import find_index
from kvcheck.fleet.suite import game_of as index_game
from kvcheck.mistakes import Mistake
from kvcheck.offload.suite import game_of as offload_game
from kvcheck.play.lives import Game, LivesReport, judged
from kvcheck.tree.suite import game_of as tree_game
from tests.device.mistakes import planted
from tests.mistakes import mistakes
from tests.source import ROOT, write_behind

INDEX = planted(ROOT / "tests/fleet/planted/index.diff")
IN_VLLM = planted(ROOT / "tests/tier/planted/vllm.diff")
TABLES: Mapping[str, tuple[Sequence[Mistake], str, str]] = {
    "index": (INDEX, "docs/fleet.md", "mistake"),
    "tier": ([m for m in mistakes() if m.kind == "tier"], "docs/tiers.md", "mistake"),
    "tree": ([m for m in mistakes() if m.kind == "tree"], "docs/trees.md", "mistake"),
    "vllm": (IN_VLLM, "docs/tiers.md", "mistake in vLLM 0.33.0"),
}
"""The mistakes, the page of their table, and the head of its first column."""
NUM_LIVES: Mapping[str, int] = {"device": 100, "tier": 400, "tree": 150}
"""By the kind of a mistake; those in vLLM are of a device's kind, too: `make` changes what runs."""


def report_of(mistake: Mistake, *, fail_fast: bool = False) -> LivesReport:
    if mistake in IN_VLLM:
        with mistake.make():
            game_of_vllm = offload_game(offload.offload())
            return judged(game_of_vllm, num_lives=NUM_LIVES["tier"], fail_fast=fail_fast)
    number = NUM_LIVES[mistake.kind]
    if mistake.kind == "device":  # of kvfast's index, while the context is open
        with mistake.make():
            game_of_index = index_game(find_index("kvfast"), find_index())
            return judged(game_of_index, num_lives=number, fail_fast=fail_fast)
    game: Callable[[Any], Game[Any]] = tree_game if mistake.kind == "tree" else offload_game
    return judged(game(mistake.make()), num_lives=number, fail_fast=fail_fast)


def rows(among: Sequence[Mistake]) -> Iterator[str]:
    for mistake in among:
        report = report_of(mistake)
        about = f"{mistake.about[0].upper()}{mistake.about[1:].rstrip('.')}"
        named, length = "by its example alone", ""
        if report.findings:
            named = ", ".join(report.named[:3])
            length = str(len(next(iter(report.findings.values())).lines))
        yield f"| {about} | {', '.join(mistake.rules)} | {named} | {length} |"


def main(names: Sequence[str]) -> None:
    for name in names or TABLES:
        among, page, head = TABLES[name]
        mark = f"| {head} | of | named first | shortest, in calls |\n|---|---|---|---:|\n"
        write_behind(ROOT / page, mark, rows(among))


if __name__ == "__main__":
    main(sys.argv[1:])
