"""KV-GRP at the edges: blocks of one token, windows of one token, needs beyond what is held."""

from __future__ import annotations

import pytest

from kvspec.specs import LayerSpec
from tests.rules.builders import MakeManager, MakeRequest, admit, blocks_of, full
from tests.rules.specs import cached_positions, mamba, need_of, sliding

ONE_TOKEN_BLOCKS = [full(1), sliding(1, 4), mamba(1)]


@pytest.mark.rule("KV-GRP-2", "KV-FULL-1", "KV-SW-1", "KV-MAMBA-1")
@pytest.mark.parametrize("spec", ONE_TOKEN_BLOCKS, ids=["full", "window", "mamba"])
@pytest.mark.parametrize("num_computed", [0, 1])
def test_the_first_token_is_not_skipped(
    make_manager: MakeManager, make_request: MakeRequest, spec: LayerSpec, num_computed: int
) -> None:
    """B = 1: s(0) = s(1) = 0, so not even a block of one token goes."""
    manager = make_manager(6, specs=[spec])
    request = make_request(manager, "r", range(4))
    admit(manager, request, 1)
    manager.remove_skipped_blocks(request, num_computed)
    assert blocks_of(manager, request) == [1]


@pytest.mark.rule("KV-GRP-3", "KV-GRP-4", "KV-MGR-18")
def test_only_without_an_entry_skipped_blocks_are_left_out_of_the_need(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """W = 6, 48 tokens at 40 computed: s = 35, 8 blocks. Held 3: 12 - 3; unknown: 12 - 8."""
    manager = make_manager(20, specs=[sliding(4, 6)])
    running = make_request(manager, "running", range(60))
    admit(manager, running, 12)
    assert need_of(manager, running, 48, computed=40) == 9
    unknown = make_request(manager, "unknown", range(60))
    assert need_of(manager, unknown, 48, computed=40) == 4


@pytest.mark.rule("KV-GRP-4", "KV-MGR-7")
@pytest.mark.parametrize(("num_blocks", "fits"), [(3, True), (2, False)])
def test_the_first_hit_counts_if_it_is_free(
    make_manager: MakeManager, make_request: MakeRequest, num_blocks: int, fits: bool
) -> None:
    """A free hit of 4 and one token more: 2 - 1 new blocks, and the revived one."""
    manager = make_manager(num_blocks, 4)
    first = make_request(manager, "first", range(4))
    admit(manager, first)
    manager.free(first)
    second = make_request(manager, "second", range(5))
    assert (admit(manager, second) is not None) is fits
    assert manager.num_free_blocks == (0 if fits else 1)


@pytest.mark.rule("KV-GRP-6")
@pytest.mark.parametrize(("window", "answer"), [(1, [1]), (2, [])])
def test_external_tokens_that_nobody_reads_get_no_block(
    make_manager: MakeManager, make_request: MakeRequest, window: int, answer: list[int]
) -> None:
    """6 external tokens and a new one: W = 1 reads none of them, s(6) = 6; W = 2 reads token 5.

    The list is null and block 1 in both cases: taken for the new token, or for the external ones.
    """
    manager = make_manager(6, specs=[sliding(4, window)])
    request = make_request(manager, "r", range(9))
    found = manager.allocate_slots(request, 1, num_external_computed_tokens=6)
    assert found is not None
    assert found.to_lists() == [answer]
    assert blocks_of(manager, request) == [0, 1]


@pytest.mark.rule("KV-RET-1", "KV-RET-5")
@pytest.mark.parametrize(
    ("spec", "interval"),
    [(sliding(1, 2), None), (sliding(1, 2), 1), (mamba(1), None), (mamba(1), 1)],
    ids=["window", "window_of_interval_1", "mamba", "mamba_of_interval_1"],
)
def test_with_an_alignment_of_one_token_everything_is_worth_caching(
    make_manager: MakeManager, make_request: MakeRequest, spec: LayerSpec, interval: int | None
) -> None:
    """B = A = 1: every token is a multiple of A and of k = 1; t = cdiv(1, 1) = 1 = p."""
    manager = make_manager(9, specs=[spec], retention_interval_tokens=interval)
    request = make_request(manager, "r", range(6))
    admit(manager, request)
    assert cached_positions(manager, request) == [0, 1, 2, 3, 4, 5]
