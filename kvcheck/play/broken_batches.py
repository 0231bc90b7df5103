"""Plans with one mistake each, as a scheduler with a bug would make them (KV-BATCH-2)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvspec.batched import StepPlan

UNKNOWN_HANDLE = 1_000_000

MEMBERS: tuple[dict[str, Any], ...] = (
    {"finished": [UNKNOWN_HANDLE]},
    {"finished": [True]},
    {"finished": None},
    {"preempted": [-1]},
    {"preempted": [2**70]},
    {"preempted": {0}},
    {"decoding": [1.0]},
    {"decoding": "0"},
    {"token_budget": -1},
    {"token_budget": 2**53},
    {"num_lookahead_tokens": True},
    {"reserved_blocks": 1.0},
    {"starts_step": 1},
    {"stops_at_refusal": None},
    {"full_sequence_must_fit": "yes"},
    {"decode_tokens": True},
    {"prefill_tokens": -1},
    {"max_new_tokens": 0},
    {"max_new_tokens": [1] * 99},
)
"""Members that are wrong in every plan."""


def broken_plans(
    plan: StepPlan, idle: Sequence[int], running: Sequence[int], room: Sequence[int]
) -> list[StepPlan]:
    """Return the legal `plan` with one member of `MEMBERS` each, and plans with wrong requests.

    `idle` and `running`: handles of requests that hold nothing, and of those under way; `room[k]`:
    tokens that the longest sequence leaves `running[k]`.
    """
    broken = [replace(plan, **members) for members in MEMBERS]
    if idle:
        broken += [
            StepPlan(decoding=idle[:1]),
            StepPlan(prefilling=[*running, idle[0]]),
            StepPlan(new=[*idle, idle[0]]),
            StepPlan(finished=idle[:1], new=idle),
        ]
    if running:
        broken += [
            StepPlan(new=running[:1]),
            StepPlan(new=[*idle, running[0]]),
            StepPlan(decoding=running[:1], decode_tokens=[0]),
            StepPlan(decoding=running, decode_tokens=[1] * (len(running) - 1)),
            StepPlan(prefilling=running, prefill_tokens=array("d", [1.0] * len(running))),
            StepPlan(preempted=running, decoding=running[:1]),
        ]
        goes_on = [(handle, 1) for handle, most in zip(running, room, strict=True) if most]
        for place in {0, len(running) - 1}:
            # Only this entry is illegal: all before and behind it are done and taken back.
            too_many = (running[place], room[place] + 1)
            others = [each for each in goes_on if each[0] != running[place]]
            for entries in ([too_many, *others], [*others, too_many]):
                handles, counts = zip(*entries, strict=True)
                broken.append(StepPlan(decoding=handles, decode_tokens=counts))
    return broken


def broken_follows(known: Sequence[tuple[int, int]], num_bytes: int) -> list[dict[str, Any]]:
    """Return reports of followed requests with one mistake each (KV-BATCH-14).

    `known`: the handles and lengths of the requests; `num_bytes`: of a hash.
    """
    handles, lengths = [handle for handle, _ in known], [length for _, length in known]
    hashes = [b"1" * num_bytes]
    rest, last = lengths[:-1], lengths[-1]
    wrong: list[tuple[list[int], list[int], list[bytes], list[int] | None]] = [
        (handles, lengths, [b"1234"], None),
        (handles, lengths, hashes * 9, None),
        (handles, [*lengths, 7], [], None),
        (handles, [*rest, 0], [], None),
        (handles, lengths, [], [*rest, last + 1]),
        ([*handles, UNKNOWN_HANDLE], [*lengths, 1], [], None),
    ]
    names = ("handles", "num_tokens", "hashes", "num_prompt_tokens")
    return [dict(zip(names, each, strict=True)) for each in wrong]
