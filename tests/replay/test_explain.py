"""Each reason of the explanation, on traces small enough to count by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvcheck.tools.replay.explain import Explainer, ExplanationError, Reason, Waterfall
from kvcheck.tools.replay.trace import TraceRecord
from tests.replay.records import record


def explain(
    block_size: int, *admissions: tuple[TraceRecord, int], registered: int | None = None
) -> Waterfall:
    """Admit requests one after another, each registered whole (or its first tokens only)."""
    explainer = Explainer(block_size)
    for request, hit in admissions:
        nodes = explainer.admitted(request, hit)
        end = request.input_length if registered is None else registered
        explainer.registered(nodes, 0, end)
    waterfall = explainer.waterfall(sum(hit for _, hit in admissions))
    assert waterfall.residual == 0
    return waterfall


def changes(waterfall: Waterfall) -> dict[Reason, int]:
    return {reason: tokens for reason, tokens in waterfall.changes.items() if tokens}


def test_repeated_full_blocks_are_all_hit() -> None:
    waterfall = explain(512, (record(1, [1, 2, 3], 1536), 0), (record(2, [1, 2, 4], 1536), 1024))
    assert waterfall.repeat_rate == Fraction(2, 6)
    assert waterfall.hit_rate == Fraction(1024, 3072)
    assert changes(waterfall) == {}
    assert waterfall.items[0].rate_change == 0


def test_a_cut_last_run_weighs_less() -> None:
    waterfall = explain(512, (record(1, [1, 2], 612), 0), (record(2, [1, 3], 1024), 512))
    assert waterfall.repeat_rate == Fraction(1, 4)
    assert waterfall.items[0].name == "cut_last_run"
    assert waterfall.items[0].tokens is None
    assert waterfall.items[0].rate_change == Fraction(512, 1636) - Fraction(1, 4)
    assert changes(waterfall) == {}


def test_tokens_of_an_incomplete_block_are_not_cached() -> None:
    waterfall = explain(16, (record(1, [1], 100), 0), (record(2, [1], 100), 96))
    assert changes(waterfall) == {Reason.INCOMPLETE_BLOCK: -4}


def test_the_block_of_the_last_token_is_recomputed() -> None:
    waterfall = explain(16, (record(1, [1], 512), 0), (record(2, [1], 512), 496))
    assert changes(waterfall) == {Reason.LAST_TOKEN: -16}


def test_an_id_behind_another_prefix_is_no_hit() -> None:
    waterfall = explain(
        512,
        (record(1, [1, 2, 3], 1536), 0),
        (record(2, [1, 3, 2, 4], 2048), 512),
        (record(3, [5, 5, 6], 1536), 0),
    )
    # Repeated: 1, 3, 2 of the second request, the second 5 of the third.
    assert waterfall.repeated_ids == 4
    assert changes(waterfall) == {Reason.OTHER_PREFIX: -3 * 512}


def test_a_block_that_begins_in_a_repeated_run_and_ends_in_a_new_one_is_no_hit() -> None:
    waterfall = explain(768, (record(1, [1, 2, 3], 1536), 0), (record(2, [1, 2, 4, 5], 2048), 768))
    assert changes(waterfall) == {Reason.PARTLY_NEW_BLOCK: -256}


def test_a_run_that_was_only_seen_cut_shorter_was_never_full() -> None:
    waterfall = explain(
        16, (record(1, [1], 100), 0), (record(2, [1], 200), 96), (record(3, [1, 2], 600), 192)
    )
    # 200 tokens: 8 incomplete, 192 - 96 never seen. 512 tokens: 512 - 192 never seen.
    assert changes(waterfall) == {
        Reason.INCOMPLETE_BLOCK: -8,
        Reason.SEEN_SHORTER: -(192 - 96) - (512 - 192),
    }


def test_blocks_that_an_earlier_request_has_not_computed_yet_are_no_hit() -> None:
    waterfall = explain(
        16, (record(1, [1, 2, 3], 1536), 0), (record(2, [1, 2, 4], 1536), 592), registered=600
    )
    assert changes(waterfall) == {Reason.NOT_YET_COMPUTED: -(1024 - 592)}


def test_blocks_registered_chunk_by_chunk_are_all_known() -> None:
    explainer = Explainer(48)
    nodes = explainer.admitted(record(1, [1, 2, 3], 1500), 0)
    for start in range(0, 1500, 100):
        explainer.registered(nodes, start, start + 100)
    explainer.admitted(record(2, [1, 2, 3], 1500), 1488)
    assert changes(explainer.waterfall(1488)) == {Reason.INCOMPLETE_BLOCK: -12}


def test_what_was_registered_and_is_no_hit_is_not_reachable() -> None:
    waterfall = explain(512, (record(1, [1, 2], 1024), 0), (record(2, [1, 2, 3], 1536), 512))
    assert changes(waterfall) == {Reason.NOT_REACHABLE: -512}


def test_hits_beyond_the_repeated_ids_are_shown() -> None:
    waterfall = explain(1, (record(1, [1], 10), 0), (record(2, [2], 10), 1))
    assert changes(waterfall) == {Reason.BEYOND_REPEATS: 1}
    assert waterfall.hit_rate == Fraction(1, 20)


def test_all_reasons_together_leave_nothing_unexplained() -> None:
    waterfall = explain(
        100,
        (record(1, [1, 2, 3], 1530), 0),
        (record(2, [1, 2], 1000), 800),
        (record(3, [1, 2, 3, 4], 1950), 900),
        (record(4, [4, 1, 2], 1100), 0),
        (record(5, [1, 2, 3, 4, 5], 2200), 1900),
        (record(6, [1, 2, 3, 4, 5], 2250), 2200),
    )
    # Repeated: 1000, 1536, 1100, 2048 and 2250 tokens of requests 2 … 6.
    assert changes(waterfall) == {
        Reason.INCOMPLETE_BLOCK: -50,
        Reason.OTHER_PREFIX: -1100,
        Reason.LAST_TOKEN: -100,
        Reason.PARTLY_NEW_BLOCK: -36 - 48,
        Reason.SEEN_SHORTER: -100,
        Reason.NOT_REACHABLE: -100 - 600,
    }
    assert waterfall.repeated_tokens == 1000 + 1536 + 1100 + 2048 + 2250


def test_an_explanation_that_does_not_add_up_is_an_error() -> None:
    explainer = Explainer(512)
    explainer.admitted(record(1, [1], 512), 0)
    with pytest.raises(ExplanationError, match="0 tokens explained as hits, 5 hit") as caught:
        explainer.waterfall(5)
    assert (caught.value.explained_tokens, caught.value.hit_tokens) == (0, 5)
