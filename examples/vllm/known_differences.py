"""Known differences between vLLM and the contract, as a shadow in vLLM's scheduler meets them.

    PYTHONHASHSEED=0 python -m examples.vllm.known_differences

Points of docs/FINDINGS.md that the scheduler of the installed version reaches are provoked twice:
the shadow reports each (exit code 1 if not), and with the file in docs/findings counts it as
expected. It then continues, unless vLLM has raised. KVSPEC_MONITOR_DIR names the folder for its
records; without it there are none.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, starmap
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any
from unittest.mock import patch

from examples.vllm.engine import Prompt, Setup, model_folder, prepare
from examples.vllm.lockstep import Lockstep
from examples.vllm.setups import every_setup, setup_of
from kvfast.engines.vllm.versions import is_since

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "findings"
KNOWN = FOLDER / ("vllm-0.33-shadow.toml" if is_since(33) else "vllm-shadow.toml")
EXPECT = "KVSPEC_SHADOW_EXPECT"
FIELDS = ("steps", "reason", "prompts")
"""Of a story, not of its setup."""


@dataclass(frozen=True)
class Story:
    """The program that provokes a difference: requests by the step they come in, or random ones.

    See known_differences.toml.
    """

    setup: Setup
    steps: int = 120
    reason: str = ""
    prompts: tuple[tuple[int, Sequence[int]], ...] = ()


class Told(Lockstep):
    """Random load, or the requests of a story."""

    def __init__(self, story: Story, model: str) -> None:
        super().__init__(story.setup, model, seed=1, shadow=True)
        self.story = story

    def arrive(self) -> str | None:
        for at, tokens in self.story.prompts:
            if at == self.counts["steps"]:
                self.names += 1
                name, reports = f"r{self.names}", self.setup.has_reports
                self.add(Prompt(name, tuple(tokens), max_tokens=2, reports_hits=reports))
        return None if self.story.prompts else super().arrive()


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
