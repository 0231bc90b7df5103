"""Known differences between vLLM and the contract, as a shadow in vLLM's scheduler meets them.

    PYTHONHASHSEED=0 python -m examples.vllm.known_differences

Each point of docs/FINDINGS.md that the scheduler of the installed version reaches is provoked
twice: the shadow reports it (exit code 1 if not), and with the file in docs/findings it is counted
as expected. The shadow then continues, unless vLLM has raised. KVSPEC_MONITOR_DIR names the folder
for its records; without it there are none.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from examples.vllm.engine import Item, Prompt, Setup, attention, model_folder, prepare, states
from examples.vllm.lockstep import Lockstep
from kvfast.engines.vllm.versions import is_since

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "findings"
KNOWN = FOLDER / ("vllm-0.33-shadow.toml" if is_since(33) else "vllm-shadow.toml")
EXPECT = "KVSPEC_SHADOW_EXPECT"


@dataclass(frozen=True)
class Story:
    """The program that provokes a difference: requests by the step they come in, or random ones.

    `told`: makes them; `prompts`: or their steps and tokens. `reason`: in the file of known
    differences; "": its name.
    """

    setup: Setup
    num_steps: int = 120
    reason: str = ""
    skips: float = 0.0
    told: str = ""
    prompts: tuple[tuple[int, Sequence[int]], ...] = ()


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
        """Add the next request of the program."""
        step = self.counts["steps"]
        for at, tokens in self.story.prompts:
            if at == step:
                self.names += 1
                reports = self.setup.has_reports
                name = f"r{self.names}"
                self.add(Prompt(name, tuple(tokens), max_tokens=2, reports_hits=reports))
        if self.story.prompts:
            return None
        if not self.story.told:
            return super().arrive()
        for prompt in getattr(self, self.story.told)(step):
            self.add(prompt)
        return None

    def session(self, step: int) -> Iterator[Prompt]:
        """Its seventh token is followed by a sampled one, which is discarded; a request with the
        user's text then hits less than is cached.
        """
        if step == 0:
            yield Prompt("s", tuple(range(1, 8)), max_tokens=1, is_session=True)
        elif step == 2:
            yield Prompt("s", (9, 10, 11, 12), max_tokens=9, is_session=True)
        elif step == 6:
            yield Prompt("r", (*range(1, 8), 9, 10, 11, 12, 13), max_tokens=2)

    def items(self, num_tokens: int) -> tuple[Item, ...]:
        """Return two items; vLLM's second block has only the last, if it is filled late."""
        if not self.story.told:
            return super().items(num_tokens)
        return Item("image", "a", 9, 1), Item("image", "b", 12, 1)

    def late(self, step: int) -> Iterator[Prompt]:
        """Let the second prompt end after the block that the first has filled."""
        known = self.sides[0].scheduler.requests
        if step == 0:
            yield Prompt("a", tuple(range(14)), max_tokens=9, items=self.items(14))
        elif step == 6:
            tokens = tuple(known["a"].all_token_ids[:16])
            yield Prompt("b", (*tokens, 3, 3), max_tokens=2, items=self.items(18))


def stories() -> Mapping[str, Story]:
    """Return those of docs/FINDINGS.md that occurred in this version, by their names there."""
    found = stories_of_033() if is_since(33) else stories_of_024()
    named = {name: replace(story, reason=story.reason or name) for name, story in found.items()}
    return MappingProxyType(named)


GRANTED = "granted: a copy of a copy, external tokens with aligned Mamba"
REPORTS = "reports of hits: null blocks, and a part of a block as a whole one"
HASHES = "hashes of other content: a session that goes on, a late block with several items"
BLOCKS = "blocks: aligned Mamba after a null gap, an external load of the whole prompt"
ERROR = "an error: reports of hits inside a block, hash look-ahead and windows alone"


def stories_of_033() -> dict[str, Story]:
    wide = attention("FullAttentionSpec", 8)
    window = attention("SlidingWindowSpec", 4, sliding_window=10)
    chunk = attention("ChunkedLocalAttentionSpec", 4, attention_chunk_size=8)
    mamba = Setup((wide, states(8, "align")), 34, 8, 4, mamba_mode="align", loads="sync")
    loads = Setup((window,), 50, 4, 4, loads="async", whole_loads=True)
    reports = Setup((chunk,), 50, 4, 4, has_events=True, has_reports=True)
    return {
        **stories_inside(),
        **stories_of_modules(),
        **planned_stories(),
        "external tokens with aligned Mamba": Story(
            replace(mamba, num_blocks=40, hash_block_size=8), reason=GRANTED
        ),
        "external tokens with aligned Mamba: an error half-way": Story(mamba),
        "an external load of the whole prompt": Story(loads),
        "reports of null blocks": Story(reports, reason=REPORTS),
    }


def planned_stories() -> dict[str, Story]:
    """Preemption by priority takes requests out of the step that they are planned in."""
    plain = Setup((attention("FullAttentionSpec", 4),), 60, 4, 4, policy="priority")
    small = replace(plain, num_blocks=40, max_num_seqs=4, most_of_prompt=24)
    return {
        "a planned step that does not run": Story(plain, 400),
        "a hit of a step that did not run": Story(small, 1500),
    }


def stories_inside() -> dict[str, Story]:
    """About hits that end inside a block."""
    full, text, other = attention("FullAttentionSpec", 16), range(100, 175), range(200, 260)
    checkpoint = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 4}
    keyed = Setup((full, states(16, "align", **checkpoint)), 200, 16, 4, mamba_mode="align")
    copied = replace(keyed, specs=(full, states(16, "align")))
    reported = replace(copied, has_events=True, has_reports=True)
    start = (0, text[:13])
    third, last = [*text[:16], *other[:59]], [*text[:16], *other[9:19]]
    return {
        "a state under too long a key": Story(
            keyed, 40, prompts=(start, (10, text), (20, third), (30, last))
        ),
        "a copy of a copy": Story(copied, 20, GRANTED, prompts=(start, (6, text), (6, third[:25]))),
        "a part of a block is reported as a whole one": Story(
            reported, 20, REPORTS, prompts=(start, (6, text))
        ),
        "a report of a hit inside a block": Story(
            reported, 20, ERROR, prompts=(start, (6, text[:14]))
        ),
    }


def stories_of_modules() -> dict[str, Story]:
    """About several modules that draft."""
    full, drafted = attention("FullAttentionSpec", 8), states(8, "align", num_speculative_blocks=3)
    narrow = attention("SlidingWindowSpec", 4, sliding_window=10)
    plain = Setup((narrow,), 90, 4, 4, num_drafts=2, use_eagle=True, has_modules=True)
    three = replace(plain, num_drafts=3, block_size=8)
    wider = (full, attention("SlidingWindowSpec", 8, sliding_window=10))
    retained = replace(three, specs=wider, hash_block_size=8)
    aligned = replace(three, specs=(full, drafted), mamba_mode="align")
    return {
        "hash look-ahead and windows alone": Story(plain, reason=ERROR),
        "hash look-ahead and retention 0": Story(
            retained, 20, prompts=((0, range(97)), (8, range(97)))
        ),
        "a prompt that is never finished": Story(aligned, 20, prompts=((0, range(66)),)),
    }


def stories_of_024() -> dict[str, Story]:
    full, wide = attention("FullAttentionSpec", 4), attention("FullAttentionSpec", 8)
    window = attention("SlidingWindowSpec", 4, sliding_window=10)
    latent = attention("MLAAttentionSpec", 4)
    plain = Setup((full,), 60, 4, 4)
    mamba = Setup((wide, states(8, "align")), 90, 8, 4, mamba_mode="align")
    small = attention("FullAttentionSpec", 2), replace(states(2, "align"), num_speculative_blocks=2)
    items = replace(plain, specs=(wide,), block_size=8, hash_block_size=8, encoder_cache=24)
    gap = Setup(small, 300, 2, 2, mamba_mode="align", num_drafts=2, enable_caching=False)
    unequal = Setup((wide, states(8, "all")), 90, 8, 4, mamba_mode="all", loads="sync")
    return {
        "Mamba beside an eagle drop": Story(replace(mamba, num_drafts=2, use_eagle=True)),
        "several full-attention specs": Story(Setup((full, latent, window), 90, 4, 4)),
        "align-mode Mamba after a null gap": Story(gap, reason=BLOCKS),
        "a late block with several items": Story(items, 20, HASHES, told="late"),
        "an external load of the whole prompt": Story(
            Setup((window,), 50, 4, 4, loads="async", whole_loads=True), reason=BLOCKS
        ),
        "a session that goes on": Story(
            replace(plain, has_sessions=True), 20, HASHES, told="session"
        ),
        **planned_stories(),
        "a read that is skipped": Story(mamba, skips=0.5),
        "aligned Mamba with external tokens": Story(replace(mamba, loads="sync"), 40),
        "hits of different length, and no load": Story(unequal, 40),
    }


def played(story: Story, model: str, known: Path | None) -> Any:
    """Return the shadow at the end of the program, with `known` as file of expected differences."""
    with patch.dict(os.environ):
        os.environ.pop(EXPECT, None)
        os.environ |= {EXPECT: str(known)} if known else {}
        told = Told(story, model)
    with suppress(ValueError, IndexError, AssertionError):  # vLLM's, out of its step
        told.run(story.num_steps)
    return told.mirror


def main() -> int:
    """Run each program twice; returns 1 if one was not reported, or not expected."""
    prepare()
    model, is_wrong = model_folder(), False
    with TemporaryDirectory() as records:
        os.environ.setdefault("KVSPEC_MONITOR_DIR", records)
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
