"""Each planted mistake is seen by a check of its text, and without it those checks see nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from random import Random
from unittest.mock import patch

import pytest

from kvcheck.mistakes import Mistake
from kvfast.device import RunDifferenceError
from kvspec.errors import KVSpecError
from kvspec.interface import Implementation
from tests.device import (
    test_contents,
    test_hashing,
    test_operations,
    test_pools,
    test_prefix_index,
    test_resident,
    test_swap,
    test_tables,
)
from tests.device.contents import ARRANGED, CASES, Case, WrongContentError
from tests.device.mistakes import TEXTS
from tests.device.models import DEVICE, full, mamba
from tests.device.prefixes import play as play_prompts
from tests.mistakes import mistaken

pytestmark = [
    pytest.mark.skipif(DEVICE != "cpu", reason="these tests are of the tests"),
    pytest.mark.usefixtures("one_thread"),
]

Check = Callable[[], object]
SEEN = (AssertionError, IndexError, RunDifferenceError, RuntimeError)
"""How checks fail."""


def pages() -> Iterator[Check]:
    """Yield tests with some of their arguments; Hypothesis would report failures itself."""
    yield test_pools.a_page_of_keys_and_values_is_laid_out
    yield partial(test_operations.test_a_token_is_written_to_its_slot_and_read_from_it, "torch")
    scales = "FP8_PER_TOKEN_HEAD"
    yield partial(test_operations.test_slots_are_copied_with_their_scales, "torch", scales)
    nearest = test_operations.test_what_is_stored_is_the_nearest_number_of_the_format
    yield partial(nearest, "float8_e4m3fn")
    yield partial(test_operations.test_latents_go_through_the_same_operations, "torch")
    for spec in (full(), mamba()):
        zeroed = test_operations.test_zeroed_blocks_are_zero_and_no_others
        yield partial(zeroed, "torch", spec, [1, 6, 1])
    yield partial(test_swap.there_and_back, [1, 2, 3, 4, 5, 6], [3, 1, 2], 3, "torch")


def prompts() -> Iterator[Check]:
    yield test_hashing.some_hashes
    for seed in range(6):
        yield partial(test_prefix_index.check_table, "torch", Random(seed), 30, 3)
    for seed in range(4):
        yield partial(play_prompts, seed, ["torch"], 6, use_eagle=bool(seed % 2))


def swaps() -> Iterator[Check]:
    yield test_swap.test_a_swap_is_ordered_on_the_pools_device_whichever_is_current
    for spare in ((6, 0), (5, 1), (1, 5)):
        yield partial(test_swap.test_blocks_go_out_beside_what_overwrites_them, *spare)


def contents(cases: Sequence[Case], num_runs: int) -> Iterator[Check]:
    return (partial(read, seed, cases) for seed in range(num_runs))


def read(seed: int, cases: Sequence[Case]) -> None:
    player = test_contents.player_of(seed, "torch", cases)
    try:
        player.play(22)
    except WrongContentError:
        raise
    except KVSpecError:
        return


CHECKS: Mapping[str, Callable[[], Iterator[Check]]] = {
    "pages": pages,
    "prompts": prompts,
    "swaps": swaps,
    "tables": lambda: iter([partial(test_tables.schedules, range(60))]),
    "waiting": lambda: iter(
        [
            test_tables.test_a_buffer_is_not_written_while_a_copy_reads_it,
            test_tables.test_a_step_never_waits_for_the_device,
        ]
    ),
    "resident": lambda: iter(
        [
            partial(test_resident.test_a_batch_from_before_the_run_is_told_again, "torch"),
            partial(test_resident.test_a_step_beyond_the_planned_ones_grants_nothing, "torch"),
            partial(test_resident.runs, range(59, -1, -1)),  # the last ones see most
        ]
    ),
    "contents": partial(contents, CASES, 8 * len(CASES)),
    "arranged": partial(contents, ARRANGED, 8 * len(ARRANGED)),
}
"""The tests that run with the mistakes of a text, until one fails."""


def play_all(text: str) -> None:
    for check in CHECKS[text]():
        check()


PLANTED = [(text, one) for text, some in TEXTS.items() for one in some]


@pytest.mark.parametrize(("text", "mistake"), PLANTED, ids=lambda one: getattr(one, "id", None))
def test_a_mistake_is_seen(text: str, mistake: Mistake) -> None:
    with mistake.make(), pytest.raises(SEEN):
        play_all(text)


@pytest.mark.parametrize("text", ["pages", "prompts"])
def test_without_a_mistake_a_check_sees_nothing(text: str) -> None:
    play_all(text)


MANAGERS = (
    ("contents", "KeepsKeysOfTakenBlocks"),
    ("contents", "GivesABlockTwice"),
    ("contents", "FreesWhatOthersStillHold"),
    ("contents", "TouchLeavesTheBlockFree"),
    ("arranged", "NeverWaits"),
    ("arranged", "NoBlocksForDrafts"),
    ("arranged", "DraftsAreSure"),
)
"""Mistakes of the reference that show as other content."""


@pytest.mark.parametrize(("text", "name"), MANAGERS)
def test_what_a_wrong_manager_hits_is_not_there(text: str, name: str) -> None:
    wrong: Implementation = mistaken(name)
    with (
        patch.object(test_contents, "implementation_of", lambda turn: wrong),
        pytest.raises(WrongContentError),
    ):
        play_all(text)


def test_each_mistake_has_a_name_of_its_own() -> None:
    names = [one.id for one in chain(*TEXTS.values())]
    assert len(set(names)) == len(names) > 80
