"""From ids to tokens."""

from __future__ import annotations

import hashlib

from kvcheck.tools.replay.tokens import prompt_tokens, run_tokens
from tests.replay.records import record


def test_a_run_is_shake_128_of_the_id_in_decimal() -> None:
    digest = hashlib.shake_128(b"kvspec-run:12345").digest(1024)
    expected = [digest[2 * j] + 256 * digest[2 * j + 1] for j in range(512)]
    assert list(run_tokens(12345)) == expected


def test_the_last_run_is_cut_to_the_input_length() -> None:
    tokens = prompt_tokens(record(1, [7, 8], 515))
    assert tokens == [*run_tokens(7), *run_tokens(8)[:3]]
