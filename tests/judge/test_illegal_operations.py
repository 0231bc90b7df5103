"""What a program calls illegal is illegal in every configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvref
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.steps import Admit, Arrive, Break, Program, Release, Run
from kvcheck.play.verdicts import Level, first_violation
from kvspec.profile import find_profile
from kvspec.specs import LayerSpec
from tests.programs.groups import chunked, mamba, window
from tests.programs.single import configure, full

SPECS: dict[str, LayerSpec] = {
    "full": full(1),
    # Null is a legal hit in these two: the next token reads nothing of the first block.
    "window of one token": window(1, block_size=1),
    "chunk of one block": chunked(2, block_size=2),
    "window": window(3),
    "state": mamba("all", block_size=1),
}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("number", range(len(ILLEGAL_OPERATIONS)))
def test_the_reference_refuses_every_illegal_operation(name: str, number: int) -> None:
    """A request that waits, one that runs, one that ended: an error, and nothing changes."""
    steps = (
        Arrive((0, 0, 1)),
        Break(call=number),
        Admit(),
        Run(),
        Break(call=number),
        Arrive((0, 0, 1, 1)),
        Break(who=1, call=number),
        Release(),
        Break(call=number),
    )
    config = configure(12, SPECS[name])
    for policy in (config.policy, find_profile("vllm-0.33").policy):
        program = Program(replace(config, policy=policy), steps)
        assert first_violation(program, kvref.implementation(), Level.SAFETY) is None
