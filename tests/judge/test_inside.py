"""Hits that end inside a block: the twins are not blamed, and each mistake is found."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

import kvfast
import kvref
from kvcheck.judge.inside_programs import inside_programs
from kvcheck.play.verdicts import Level, first_violation
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.inside import Chunk, hits_drop, hits_end_inside, leaves_states_inside
from kvspec.interface import Feature, Implementation
from kvspec.policy import Policy
from kvspec.requirements import lacking
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec, SlidingWindowSpec
from tests.mistakes import mistaken
from tests.programs import INSIDE_SCENARIOS, configure

RIGHT = kvref.implementation()
CHOSEN = Policy(hits_inside_blocks=True)
MISTAKES = (
    ("SaysOneTokenLess", "KV-INSIDE-1"),
    ("KeysWhatItStartsFrom", "KV-INSIDE-2"),
    ("AnyEndIsThePrompts", "KV-INSIDE-3"),
    ("GoesOnUnderItsKey", "KV-INSIDE-3"),
    ("CopiesAreNotOwed", "KV-INSIDE-4"),
    ("CopiesWhatIsWritten", "KV-INSIDE-6"),
)


STORIES = [
    replace(program, config=replace(program.config, policy=CHOSEN)) for program in INSIDE_SCENARIOS
]


@pytest.mark.parametrize(("mistake", "rule"), MISTAKES)
@pytest.mark.rule("KV-INSIDE-1", "KV-INSIDE-2", "KV-INSIDE-3", "KV-INSIDE-4", "KV-INSIDE-6")
def test_a_mistake_is_found_by_a_story(mistake: str, rule: str) -> None:
    subject = mistaken(mistake)
    found = [first_violation(program, subject, Level.SAFETY) for program in STORIES]
    assert rule in {violation.rule for violation in found if violation}


FULL = FullAttentionSpec(4, 1, 8, "float16")
WINDOW = SlidingWindowSpec(4, 1, 8, "float16", sliding_window=8)


def states(size: int, mode: str = "align", alignment: int | None = None) -> MambaSpec:
    return MambaSpec(
        size, ((2,),), ("float32",), mamba_cache_mode=mode,
        num_prefill_checkpoint_blocks=int(alignment is not None),
        prefill_checkpoint_alignment=alignment,
    )  # fmt: skip


def config(*specs: LayerSpec, h: int | None = None, **options: Any) -> ManagerConfig:
    options = {"policy": CHOSEN, **options}
    return configure(30, *specs, hash_block_size_tokens=h, **options)


@pytest.mark.rule("KV-INSIDE-5")
@pytest.mark.parametrize("twin", [kvref, kvfast])
def test_a_block_for_a_state_inside_has_no_use_in_another_mode(twin: Any) -> None:
    made = twin.implementation()
    made.create(config(FULL, states(8, "none", 1), enable_caching=False))
    with pytest.raises(UnsupportedError, match="states inside a chunk"):
        made.create(config(FULL, states(8, "align", 1), policy=Policy()))


@pytest.mark.rule("KV-INSIDE-1", "KV-POL-24")
@pytest.mark.parametrize(
    ("asked", "is_inside"),
    [
        (config(FULL, states(4), h=2), True),
        (config(FULL, states(8)), True),
        (config(WINDOW, states(8)), True),
        (config(FULL, states(8), policy=Policy()), False),
        (config(FULL, states(4)), False),
        (config(FULL, states(4, "all"), h=2), False),
        (config(FULL, WINDOW, states(4), h=2), False),
        (config(states(4), h=2), False),
        (config(FULL, states(4), h=2, enable_caching=False), False),
        (config(FULL, states(4), h=2, dcp_world_size=2), False),
    ],
)
def test_where_hits_end_inside(asked: ManagerConfig, is_inside: bool) -> None:
    assert hits_end_inside(asked) is is_inside


@pytest.mark.rule("KV-INSIDE-5")
@pytest.mark.parametrize(
    ("start", "end", "alignment", "options", "position"),
    [
        *((4, 13, 1, {}, 12), (0, 13, 2, {}, 12), (4, 14, 2, {}, 12), (6, 7, 1, {}, 0)),
        *((5, 13, 1, {}, 0), (4, 13, 3, {}, 0), (4, 13, None, {}, 0), (0, 3, 1, {}, 0)),
        *((0, 5, 1, {}, 4), (4, 13, 1, {"use_eagle": True}, 10)),
        *((4, 13, 1, {"hash_lookahead_tokens": 2}, 10), (4, 14, 1, {"use_eagle": True}, 12)),
        (4, 14, 1, {"use_eagle": True, "hash_lookahead_tokens": 1}, 12),
    ],
)
def test_where_a_chunk_leaves_a_state_inside(
    start: int, end: int, alignment: int | None, options: dict[str, Any], position: int
) -> None:
    spec = states(4, alignment=alignment)
    assert Chunk(start, end, 4).checkpoint(spec, config(FULL, spec, h=2, **options)) == position


@pytest.mark.rule("KV-INSIDE-19")
@pytest.mark.parametrize(
    "twin", [kvref.implementation(), kvfast.implementation()], ids=["kvref", "kvfast"]
)
def test_states_inside_chunks_need_blocks_of_one_size_or_finer_hashes(
    twin: Implementation,
) -> None:
    twin.create(config(FULL, states(4, alignment=1)))
    twin.create(config(FULL, states(8, alignment=1)))
    for asked in (config(replace(FULL, block_size=8), states(4, alignment=1)), config(states(4))):
        assert not leaves_states_inside(asked)
    with pytest.raises(UnsupportedError, match="states inside a chunk"):
        twin.create(config(replace(FULL, block_size=8), states(4, alignment=1)))


@pytest.mark.rule("KV-INSIDE-2", "KV-INSIDE-3", "KV-INSIDE-4", "KV-INSIDE-5", "KV-INSIDE-6")
def test_the_twins_are_not_blamed() -> None:
    drawn = [*islice(inside_programs(0, 0, 30), 80)]
    counted = [hits_drop(p.config) + 2 * (p.config.hash_lookahead_tokens > 0) for p in drawn]
    assert min(counted.count(each) for each in (0, 1, 2)) > 2
    for number, program in enumerate((*STORIES, *drawn)):
        twin = kvfast.implementation() if number % 4 == 0 else kvref.implementation()
        found = first_violation(program, twin, Level.SAFETY)
        assert found is None, (found.rule, found.detail, found.program.steps)


def test_who_lacks_it_is_not_asked() -> None:
    asked = config(FULL, states(4), h=2, enable_events=False, log_stats=False)
    can = replace(RIGHT.capabilities, hash_functions=frozenset({"sha256_cbor"}))
    assert lacking(asked, can, hashes_matter=True) == []
    without = replace(can, features=can.features - {Feature.HITS_INSIDE_BLOCKS})
    assert lacking(asked, without, hashes_matter=False) == ["hits_inside_blocks"]
