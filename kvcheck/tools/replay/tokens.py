"""From ids to tokens: the same id is the same run of tokens, in every replay everywhere."""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Iterable

from kvcheck.tools.replay.trace import RUN_LENGTH_TOKENS, TraceRecord

OUTPUT_TOKEN_BASE = 2**16
"""First generated token of a replay; input tokens are all smaller."""


def run_tokens(run_id: int, run_length: int = RUN_LENGTH_TOKENS) -> array[int]:
    """Return the tokens that `run_id` represents, each in 0 … 65,535.

    They are SHAKE-128 of "kvspec-run:" + the id in decimal, two bytes a token, low byte first.
    """
    tokens = array("H", hashlib.shake_128(b"kvspec-run:%d" % run_id).digest(2 * run_length))
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens


def prompt_tokens(record: TraceRecord) -> list[int]:
    """Return the input of a request: its runs in order, the last one cut to the input length."""
    return _tokens(record.hash_ids, record.run_length)[: record.input_length]


def output_tokens(record: TraceRecord) -> list[int]:
    """Return the output of a request; empty where it is not known."""
    if record.output_ids is None:
        return []
    whole = record.input_length // record.run_length
    tokens = _tokens(record.ids[whole:], record.run_length)
    start = record.input_length - whole * record.run_length
    return tokens[start : start + record.output_length]


def _tokens(ids: Iterable[int], run_length: int) -> list[int]:
    return [token for run_id in ids for token in run_tokens(run_id, run_length)]
