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
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from examples.vllm.engine import Item, Prompt, Setup, model_folder, prepare
from examples.vllm.lockstep import Lockstep
from examples.vllm.setups import every_setup, setup_of
from kvfast.engines.vllm.versions import is_since

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "findings"
KNOWN = FOLDER / ("vllm-0.33-shadow.toml" if is_since(33) else "vllm-shadow.toml")
EXPECT = "KVSPEC_SHADOW_EXPECT"
FIELDS = ("steps", "reason", "skips", "told", "prompts")
"""Of a story, not of its setup."""


@dataclass(frozen=True)
class Story:
    """The program that provokes a difference: requests by the step they come in, or random ones.

    See known_differences.toml.
    """

    setup: Setup
    steps: int = 120
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
    tables = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
    others, found = every_setup(), dict[str, Story]()
    for name, given in tables["33" if is_since(33) else "24"].items():
        of_story = {field: given.pop(field) for field in FIELDS if field in given}
        prompts = [(at, [*chain(*starmap(range, of))]) for at, *of in of_story.pop("prompts", ())]
        setup = setup_of(given, others)
        found[name] = Story(setup, prompts=tuple(prompts), **{"reason": name, **of_story})
    return MappingProxyType(found)


def played(story: Story, model: str, known: Path | None) -> Any:
    """Return the shadow at the end of the program, with `known` as file of expected differences."""
    with patch.dict(os.environ):
        os.environ.pop(EXPECT, None)
        os.environ |= {EXPECT: str(known)} if known else {}
        told = Told(story, model)
    with suppress(ValueError, IndexError, AssertionError):  # vLLM's, out of its step
        told.run(story.steps)
    return told.mirror


def main() -> int:
    prepare()
    model, is_wrong = model_folder(), False
    with TemporaryDirectory() as records:
        os.environ.setdefault("KVSPEC_MONITOR_DIR", records)
        for name, story in stories().items():
            found = played(story, model, None).difference
            with_file = played(story, model, KNOWN)
            counted = with_file.num_expected.items()
            times = sum(n for why, n in counted if why.startswith(story.reason))
            print(f"{name}\n  reported: {found and found.said}\n  expected: {times} times", end="")
            print(f"; then: {with_file.difference}" if with_file.difference else "")
            is_wrong |= found is None or not times
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
