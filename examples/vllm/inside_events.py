"""Events of vLLM 0.33 beside kvref's, in random programs about hits inside a block.

    PYTHONHASHSEED=0 python -m examples.vllm.inside_events --programs 250 [--into docs/FINDINGS.md]

Results and states are compared after each operation, events after each step. A step's events that
differ are made equal by one known difference after the other; what is still unequal then is NEW.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import kvref
from bench.tables import put
from examples.vllm.hunt import violation
from kvcheck.adapters.vllm import scheduler_view
from kvcheck.judge.inside_programs import inside_programs
from kvcheck.play.checks import CompareCheck, InvariantCheck
from kvcheck.play.fit import random_program
from kvcheck.play.runner import Performed, Runner
from kvcheck.play.steps import Program
from kvspec.events import BlockRemoved, BlockStored, Event, EventHash
from kvspec.interface import Implementation
from kvspec.policy import Policy

MAX_STEPS = 40
EQUAL = "all events are equal"
PASSING = "a block's whole key is told, and taken back in the same step"
FORM = "the state where a prompt ends at a block's end is told as a partial entry"
NEW = "NEW"

Key = tuple[EventHash, int]


def causes(expected: Sequence[Event], got: Sequence[Event]) -> frozenset[str]:
    """The known differences between the events of a step."""
    found: set[str] = set()
    removed, stored = (
        _keys(got, kind) - _keys(expected, kind) for kind in (BlockRemoved, BlockStored)
    )
    passing = removed & stored
    if passing:
        found.add(PASSING)
        got = list(_without(got, passing))
    ours, theirs = _sizes(expected), _sizes(got)
    smaller = Counter(key for key, size in theirs.items() if size < ours.get(key, 0))
    if smaller:
        found.add(FORM)
        expected = list(_without(expected, smaller))
        got = [each for each in got if not (_keys([each], BlockStored) & smaller)]
    return frozenset(found if list(expected) == list(got) else {*found, NEW})


def _keys(events: Sequence[Event], kind: type[BlockRemoved | BlockStored]) -> Counter[Key]:
    """Count the keys in events of a kind."""
    found = (each for each in events if isinstance(each, kind))
    return Counter((shown, each.group) for each in found for shown in each.block_hashes)


def _sizes(events: Sequence[Event]) -> dict[Key, int]:
    """Return the block size in tokens under which each key is stored."""
    found = (each for each in events if isinstance(each, BlockStored))
    return {(h, each.group): each.block_size_tokens for each in found for h in each.block_hashes}


def _without(events: Sequence[Event], keys: Counter[Key]) -> Iterator[Event]:
    """Yield the events without those of these keys: from the end, as often as the key is
    counted.
    """
    told, taken_back = keys.copy(), keys.copy()
    kept: list[Event] = []
    for each in reversed(events):
        if isinstance(each, BlockRemoved):
            key = (each.block_hashes[0], each.group)
            taken_back[key] -= 1
            if taken_back[key] < 0:
                kept.append(each)
        elif isinstance(each, BlockStored):
            kept.append(_with_rest(each, told))
        else:
            kept.append(each)
    return reversed(kept)


def _with_rest(stored: BlockStored, keys: Counter[Key]) -> BlockStored:
    """Return the event without the keys that are still counted, and count them down."""
    stay: list[int] = []
    for place, shown in enumerate(stored.block_hashes):
        keys[shown, stored.group] -= 1
        if keys[shown, stored.group] < 0:
            stay.append(place)
    extra, ahead = stored.extra_keys, stored.lookahead_token_ids
    return replace(
        stored,
        block_hashes=tuple(stored.block_hashes[place] for place in stay),
        extra_keys=tuple(extra[place] for place in stay) if extra and stay else None,
        lookahead_token_ids=ahead and tuple(ahead[place] for place in stay),
    )


class EventsSorted:
    """Takes the events of both sides after each step, and notes how they differ."""

    def __init__(self) -> None:
        self.causes: frozenset[str] = frozenset()

    def after_operation(self, runner: Runner, done: Performed) -> None:
        """Events are taken once per step."""

    def after_step(self, runner: Runner) -> None:
        """Take and compare the events."""
        sides = (side for side in (runner.oracle, runner.subject) if side is not None)
        expected, got = (side.player.manager.take_events() for side in sides)
        if expected != got:
            self.causes |= causes(expected, got)


def sorted_program(program: Program, subject: Implementation, oracle: Implementation) -> str:
    """Return the difference in a program's events, or the rule it breaks. Raises LeftOut."""
    events = EventsSorted()
    checks = (InvariantCheck(), CompareCheck(exact_ids=True), events)
    if found := violation(program, subject, checks, oracle):
        return f"ends at {found.rule}"
    return "; ".join(sorted(events.causes)) or EQUAL


def drawn(subject: Implementation, oracle: Implementation, policy: Policy) -> Iterator[Program]:
    """Programs of seed 0, with events."""
    for batch in itertools.count():
        for program in inside_programs(0, batch, MAX_STEPS):
            found = random_program(
                program, subject.capabilities, policy, hashes_matter=True, oracle=oracle
            )
            if found is not None:
                yield found


def main(arguments: Sequence[str] | None = None) -> int:
    """Sort, and print how many there are of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=250)
    parser.add_argument("--into", type=Path, help="the page to write")
    asked = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    subject, oracle = scheduler_view(), kvref.implementation()
    found: Counter[str] = Counter()
    for program in drawn(subject, oracle, subject.library.policy):
        found[sorted_program(program, subject, oracle)] += 1
        if found.total() >= asked.programs:
            break
    lines = ["| events of random programs | programs |", "|---|---:|"]
    lines += [f"| {kind} | {count} |" for kind, count in found.most_common()]
    put(lines, "events inside", asked.into)
    return int(any(NEW in kind for kind in found))


if __name__ == "__main__":
    sys.exit(main())
