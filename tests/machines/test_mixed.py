"""The state machine over random mixtures of groups, against the longest hit by enumeration."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

import kvref
from kvcheck.judge.inside_programs import InsideDraw, inside_config
from kvcheck.judge.machine import machine, small
from kvcheck.play.random_programs import Draw
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.inside import hits_end_inside
from kvspec.request import Request
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec
from tests.brute_force.agreement import Cache, agreed_hit
from tests.brute_force.inside import inside_hit
from tests.machines.planted import planted
from tests.mistakes import mistaken


def enumerated_hit(
    config: ManagerConfig, state: Snapshot, request: Request, most_tokens: int
) -> tuple[int, list[list[int]]]:
    """The hit by enumeration of all block lists; nothing for a request that reads no cache."""
    if hits_end_inside(config):
        return inside_hit(config, state, request, most_tokens)
    if config.dcp_world_size > 1:  # a block of one group spans the tokens of all ranks (KV-CFG-6)
        (group,) = config.kv_cache.groups
        size = group.spec.block_size * config.dcp_world_size
        whole = replace(group, spec=FullAttentionSpec(size, 1, 8, "float16"))
        config = replace(config, kv_cache=replace(config.kv_cache, groups=(whole,)))
    hit = agreed_hit(Cache(config, state, request.block_hashes), most_tokens)
    return hit.hit_length_tokens, hit.blocks.to_lists()


def stated(random: Random) -> Draw:
    """Draw a case that the statements of hits cover: inside a block none with drops."""
    if random.random() < 0.8:
        return small(random)
    config = replace(inside_config(random), use_eagle=False)
    return InsideDraw(random, config, long_texts=True)


MACHINE = machine(kvref.implementation(), stated, enumerated_hit)

TestMixedGroups = MACHINE.TestCase
TestMixedGroups.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("mistake", ["SkipsOneTokenMore", "HitsOneBlockLess"])
def test_the_machine_catches_a_broken_manager(mistake: str) -> None:
    """By content and by hits alone: nothing audits itself."""
    broken = machine(mistaken(mistake), stated, enumerated_hit, audit=False)
    with pytest.raises(InvariantViolation):
        run_state_machine_as_test(broken, settings=planted(1_000, steps=30))


@pytest.mark.deep
def test_fifty_thousand_operations_find_no_disagreement() -> None:
    """2,000 runs of up to 40 calls: more than 50,000 operations on random configurations."""
    run_state_machine_as_test(
        MACHINE, settings=settings(max_examples=2_000, stateful_step_count=40, deadline=None)
    )
