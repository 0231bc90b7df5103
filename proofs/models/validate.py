"""Recorded runs are behaviours of the formal model: the checker follows them call by call.

`spec/tla/Trace.tla` constrains the calls of the model to those of a record, with their arguments,
results and states. The checker finds whether the model can follow all of it. Where it stops, the
operation is named, with the record's values and the model's.

    python -m proofs.models.validate [RECORD…]

RECORD is a record file or a folder of them; the default is the records shipped with kvspec. A
record that uses what the model lacks is left out, with a line that names it. An illegal call is
not a step of the model: only that it changed nothing is checked. Reads that the model lacks
(events, statistics, common prefixes, ids to be zeroed) are treated alike. For pools above 64 blocks
and managers without a state, the results and the number of free blocks are compared. A
record ends before its first quirk.

Rules that a followed record is held to: KV-POOL-3 … KV-POOL-8, KV-GRP-1 … KV-GRP-8, KV-GRP-11,
KV-COORD-4 … KV-COORD-13, KV-RET-1 … KV-RET-4, KV-MGR-3 … KV-MGR-14.

Exit code 0: at least one record was followed and none rejected, 1: some were rejected, 2: could not
run, 3: no record could be validated. Without a RECORD one of those is also altered, and must be
rejected.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvcheck.records.select import find, named_record, shipped_records
from kvspec.errors import FormatError
from kvspec.record import Header, Operation
from kvspec.record_file import read_header, read_whole_trace
from proofs.models._formal._checker import CheckerMissingError, follow, node
from proofs.models._formal._lines import differences, state_lines
from proofs.models._formal._record import lacking, shows_state, translated

AT_ONCE = 2


@dataclass(frozen=True)
class Verdict:
    """The outcome of a record: it was followed, or stops at a line, or lacks something."""

    path: Path
    num_operations: int = 0
    lacks: tuple[str, ...] = ()
    stopped: str = ""
    details: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        if self.lacks:
            yield f"{self.path}: left out, the model has not: {', '.join(self.lacks)}"
        elif self.stopped:
            yield f"{self.path}: REJECTED, {self.stopped}"
            yield from (f"  {line}" for line in self.details)
        else:
            yield f"{self.path}: followed, {self.num_operations} operations"


def validate(path: Path, texts: Mapping[str, str] | None = None) -> Verdict:
    """Follow one record. `texts` replaces modules, for seeded mistakes."""
    if not isinstance(read_header(path), Header):
        return Verdict(path, lacks=("planning",))
    header, operations = read_whole_trace(path)
    lacks = lacking(header, operations)
    if lacks:
        return Verdict(path, lacks=lacks)
    operations = _before_quirks(operations)
    _, constants = translated(header, operations)
    if not _starts_empty(header):
        return Verdict(path, stopped="the manager does not start with all blocks free and unhashed")
    followed, _ = follow(constants, texts=texts)
    if followed == len(operations):
        return Verdict(path, len(operations))
    return _stop(path, header, operations[: followed + 1], texts)


def _before_quirks(operations: Sequence[Operation]) -> tuple[Operation, ...]:
    """Cut before the first marked operation: the rules do not cover what follows."""
    marked = [number for number, each in enumerate(operations) if each.quirks]
    return tuple(operations[: marked[0]] if marked else operations)


def _starts_empty(header: Header) -> bool:
    number = header.config.kv_cache.num_blocks
    if header.initial is None or not shows_state(header):
        return True
    return dict(header.initial.state) == {
        "free_queue": list(range(1, number)),
        "ref_cnt": [0] * number,
        "block_hash": [None] * number,
        "req_blocks": {},
        "num_cached_block": {},
    }


def _stop(
    path: Path, header: Header, operations: Sequence[Operation], texts: Mapping[str, str] | None
) -> Verdict:
    """Describe how the model differs at the last of these operations."""
    stopped = operations[-1]
    who = "" if stopped.request_id is None else f", request {stopped.request_id!r}"
    what = f"at operation {stopped.index} (line {stopped.line}), {stopped.name}{who}"
    translation, constants = translated(header, operations)
    reached, state = follow(constants, unchecked=len(operations), texts=texts)
    if reached == len(operations):
        details = differences(stopped, state, translation)
    else:
        details = ["the model has no such call here: a hit that is none, too many blocks, …"]
    if len(operations) > 1:
        _, state = follow(constants, unchecked=len(operations) - 1, texts=texts)
        details += [f"before it, {line}" for line in state_lines(state, translation)]
    return Verdict(path, stopped=what, details=tuple(details))


def refute() -> bool:
    """Check that a shipped record is rejected once its last free queue is reversed."""
    header, operations = read_whole_trace(named_record(Path("life_of_blocks")))
    shown = [each for each in operations if "free_queue" in each.observed.state]
    turned = shown[-1].observed.state["free_queue"][::-1]
    _, constants = translated(header, operations)
    steps = list(constants["Steps"])
    steps[shown[-1].index]["new"]["queue"] = tuple(turned)
    followed, _ = follow({**constants, "Steps": tuple(steps)})
    return followed == shown[-1].index


def summary(verdicts: Sequence[Verdict]) -> Iterator[str]:
    """Yield the numbers of records followed, rejected and left out, and what they lack most."""
    left_out = [verdict.lacks for verdict in verdicts if verdict.lacks]
    for option, number in Counter(each for lacks in left_out for each in lacks).most_common():
        alone = sum(lacks == (option,) for lacks in left_out)
        yield f"left out for {option}: {number}, of which {alone} for nothing else"
    rejected = sum(bool(verdict.stopped) for verdict in verdicts)
    followed = len(verdicts) - len(left_out) - rejected
    yield f"{followed} followed, {rejected} rejected, {len(left_out)} left out"


def main(arguments: Sequence[str]) -> int:
    """See the exit codes above."""
    began = time.monotonic()
    try:
        node()
        candidates = find([Path(each) for each in arguments] or [shipped_records()])
        verdicts = []
        with ThreadPoolExecutor(AT_ONCE) as executor:
            for verdict in executor.map(validate, [each.path for each in candidates]):
                verdicts.append(verdict)
                print("\n".join(verdict.lines()), flush=True)
        if not arguments and not refute():
            print("validate: an altered record is followed")
            return 1
    except (CheckerMissingError, FormatError, OSError) as problem:
        print(f"validate: {problem}")
        return 2
    *options, counts = summary(verdicts)
    print("\n".join([*options, f"validate: {counts} ({time.monotonic() - began:.0f} s)"]))
    if any(verdict.stopped for verdict in verdicts):
        return 1
    return 3 if all(verdict.lacks for verdict in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
