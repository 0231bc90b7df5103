"""Known differences between vLLM and the contract, as a shadow in vLLM's scheduler meets them.

    PYTHONHASHSEED=0 python -m examples.vllm.known_differences

Each point of docs/FINDINGS.md that the scheduler reaches is provoked twice: the shadow reports it
(exit code 1 if not), and with docs/findings/vllm-shadow.toml it is counted as expected, and the
shadow goes on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from examples.vllm.engine import (
    Item,
    Prompt,
    Setup,
    attention,
    model_folder,
    prepare,
    states,
)
from examples.vllm.lockstep import Lockstep

KNOWN = Path(__file__).resolve().parents[2] / "docs" / "findings" / "vllm-shadow.toml"
EXPECT = "KVSPEC_SHADOW_EXPECT"


@dataclass(frozen=True)
class Story:
    """What provokes a difference: `told` requests by the step they come in, or else random ones."""

    reason: str
    setup: Setup
    num_steps: int = 120
    skips: float = 0.0
    told: str = ""


class Told(Lockstep):
    """Random load, or the requests of a story."""

    def __init__(self, story: Story, model: str) -> None:
        super().__init__(story.setup, model, seed=3, shadow=True)
        self.story = story

    def prompt(self) -> Prompt:
        """Some more of them read no cache."""
        made = super().prompt()
        skips = made.skips_cache or self.rng.random() < self.story.skips
        return replace(made, skips_cache=skips)

    def arrive(self) -> str | None:
        """The next request of the story."""
        if not self.story.told:
            return super().arrive()
        for prompt in getattr(self, self.story.told)(self.counts["steps"]):
            self.add(prompt)
        return None

    def session(self, step: int) -> Iterator[Prompt]:
        """Its seventh token is followed by a sampled one, which is discarded; who asks for what the
        user said hits less than is there.
        """
        if step == 0:
            yield Prompt("s", tuple(range(1, 8)), max_tokens=1, is_session=True)
        elif step == 2:
            yield Prompt("s", (9, 10, 11, 12), max_tokens=9, is_session=True)
        elif step == 6:
            yield Prompt("r", (*range(1, 8), 9, 10, 11, 12, 13), max_tokens=2)

    def items(self, num_tokens: int) -> tuple[Item, ...]:
        """Two, of which the second block of vLLM's has the last alone, if it is filled late."""
        if not self.story.told:
            return super().items(num_tokens)
        return Item("image", "a", 9, 1), Item("image", "b", 12, 1)

    def late(self, step: int) -> Iterator[Prompt]:
        """The prompt of the second ends behind the block that the first has filled."""
        known = self.sides[0].scheduler.requests
        if step == 0:
            yield Prompt("a", tuple(range(14)), max_tokens=9, items=self.items(14))
        elif step == 6:
            tokens = tuple(known["a"].all_token_ids[:16])
            yield Prompt("b", (*tokens, 3, 3), max_tokens=2, items=self.items(18))


def stories() -> Mapping[str, Story]:
    """Those of docs/FINDINGS.md that were met, by their names there."""
    full, wide = attention("FullAttentionSpec", 4), attention("FullAttentionSpec", 8)
    window = attention("SlidingWindowSpec", 4, sliding_window=10)
    plain = Setup((full,), 60, 4, 4)
    mamba = Setup((wide, states(8, "align")), 90, 8, 4, mamba_mode="align")
    small = attention("FullAttentionSpec", 2), replace(states(2, "align"), num_speculative_blocks=2)
    hashes = "hashes of other content: a session that goes on, a late block with several items"
    blocks = "blocks: aligned Mamba after a null gap, an external load of the whole prompt"
    drafts = replace(mamba, num_drafts=2)
    return MappingProxyType(
        {
            "Mamba and an eagle drop": Story(
                "Mamba beside an eagle drop", replace(drafts, use_eagle=True)
            ),
            "several full-attention specs": Story(
                "several full-attention specs",
                Setup((full, attention("MLAAttentionSpec", 4), window), 90, 4, 4),
            ),
            "align-mode Mamba after a null gap": Story(
                blocks,
                Setup(small, 300, 2, 2, mamba_mode="align", num_drafts=2, enable_caching=False),
            ),
            "a late block with several items": Story(
                hashes,
                replace(plain, specs=(wide,), block_size=8, hash_block_size=8, encoder_cache=24),
                20,
                told="late",
            ),
            "an external load of the whole prompt": Story(
                blocks, Setup((window,), 50, 4, 4, loads="async", whole_loads=True)
            ),
            "a session that goes on": Story(
                hashes, replace(plain, has_sessions=True), 20, told="session"
            ),
            "a session that goes on, asynchronous": Story(
                "a session that goes on: its discarded token was seen",
                replace(plain, num_blocks=200, is_async=True, has_sessions=True),
            ),
            "a read that is skipped": Story("a read that is skipped", mamba, skips=0.5),
            "align-mode Mamba with external tokens": Story(
                "aligned Mamba with external tokens", replace(mamba, loads="sync"), 40
            ),
            "hits of different length, and no load": Story(
                "hits of different length, and no load",
                Setup((wide, states(8, "all")), 90, 8, 4, mamba_mode="all", loads="sync"),
                40,
            ),
        }
    )


def played(story: Story, model: str, known: Path | None) -> Any:
    """The shadow at the end of the story, where `known` is the file of expected differences."""
    with expecting(known):
        told = Told(story, model)
    told.run(story.num_steps)
    return told.mirror


@contextmanager
def expecting(known: Path | None) -> Iterator[None]:
    """Shadows made in here expect what is in the file."""
    before = os.environ.pop(EXPECT, None)
    if known is not None:
        os.environ[EXPECT] = str(known)
    try:
        yield
    finally:
        os.environ.pop(EXPECT, None)
        if before is not None:
            os.environ[EXPECT] = before


def main() -> int:
    """Tell each story twice; 1 if one was not reported, or not expected."""
    prepare()
    model, is_wrong = model_folder(), False
    for name, story in stories().items():
        found = played(story, model, None).difference
        with_file = played(story, model, KNOWN)
        times = with_file.num_expected[story.reason]
        print(f"{name}\n  reported: {found and found.said}\n  expected: {times} times", end="")
        print(f"; then: {with_file.difference}" if with_file.difference else "")
        is_wrong |= found is None or not times
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
