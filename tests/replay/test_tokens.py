"""From ids to tokens."""

from __future__ import annotations

import hashlib

from kvcheck.tools.replay.tokens import OUTPUT_TOKEN_BASE, prompt_tokens, run_tokens
from tests.replay.records import record


def test_a_run_is_shake_128_of_the_id_in_decimal() -> None:
    digest = hashlib.shake_128(b"kvspec-run:12345").digest(1024)
    expected = [digest[2 * j] + 256 * digest[2 * j + 1] for j in range(512)]
    assert list(run_tokens(12345)) == expected


def test_the_tokens_of_an_id_never_change() -> None:
    assert list(run_tokens(0)[:5]) == [29527, 6495, 29291, 62299, 38896]


def test_the_last_run_is_cut_to_the_input_length() -> None:
    tokens = prompt_tokens(record(1, [7, 8], 515))
    assert tokens == [*run_tokens(7), *run_tokens(8)[:3]]


def test_input_tokens_are_plain_ints_below_the_generated_ones() -> None:
    tokens = prompt_tokens(record(1, [3], 512))
    assert {type(token) for token in tokens} == {int}
    assert max(tokens) < OUTPUT_TOKEN_BASE == 65_536
