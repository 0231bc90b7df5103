"""The formal model in spec/tla, its invariants, and that kvref has exactly its graph.

For bounded pools, groups and managers (the table in spec/tla/README.md) the pinned checker explores
a module and finds that every invariant holds in every state. The states and edges, an edge being a
state, a move and the state afterwards, are then compared with those of kvref as sets, so that equal
numbers are no accident. The checker explores `Scheduler` under fairness as well: every request that
fits is admitted and ends (KV-LIVE-1, KV-LIVE-2, KV-LIVE-4), also while others never stop coming, in
any order of service, and with loads.

Rules that the modules name: KV-POOL-1 … KV-POOL-18, KV-GRP-1 … KV-GRP-5, KV-GRP-7 … KV-GRP-9,
KV-GRP-11, KV-FULL-1, KV-FULL-2, KV-SW-1 … KV-SW-4, KV-COORD-5, KV-COORD-10, KV-COORD-11, KV-MGR-1,
KV-MGR-3, KV-MGR-5 … KV-MGR-14, KV-MGR-17. Assumption: no two texts have one hash.

It needs Node.js and `npm ci --prefix spec/tla`. With --grown it compares two block sizes, eagle
groups, loads, look-ahead and retention instead, and one graph as large as the others together.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from kvcheck.mistakes.registry import find
from proofs.models._formal._bounds import (
    SMALL_POOL,
    compared,
    grown,
    larger,
    schedulers,
    unfair_schedulers,
)
from proofs.models._formal._checker import Answer, CheckerMissingError, Graph, check, node
from proofs.models._formal._manager import ManagerSide
from proofs.models._formal._search import Bounds, explore
from proofs.models._formal._twins import (
    DIFFERS,
    GROWN,
    GROWN_IN_KVREF,
    TWINS,
    UNFAIR,
    Twin,
    UnhashedToTheBack,
    small,
)

ASSUMES = ("no two texts have one hash",)
GUARANTEES = ("kvref is the formal model in eight small graphs",)

PROPERTIES = ("every_request_is_admitted", "every_request_ends")
AT_ONCE = 2


@dataclass
class Tally:
    """The number of expected answers."""

    passed: int = 0
    failed: int = 0

    def expect(self, name: str, expected: str, answer: str) -> None:
        """Count an answer, and print it if it is not the expected one."""
        if answer == expected:
            self.passed += 1
            return
        self.failed += 1
        print(f"{name}: {answer}, expected: {expected}")


def verdict(answer: Answer, graph: Graph) -> str:
    """Return the broken invariant, DIFFERS if the graph is not kvref's, or ""."""
    if answer.broken is not None:
        return answer.broken
    is_equal = answer.graph.states == graph.states and answer.graph.edges == graph.edges
    return "" if is_equal else DIFFERS


def check_bounds(bounds: Bounds, twin: Twin | None = None) -> Answer:
    """Check the module within these bounds, perhaps with a mistake."""
    texts = {} if twin is None else {twin.module: twin.text()}
    return check(bounds.module, bounds.constants, moves=bounds.moves(), texts=texts)


def check_scheduler(constants: Mapping[str, object], twin: Twin | None = None) -> Answer:
    """Check the scheduler's invariants and liveness, perhaps with a mistake."""
    texts = {} if twin is None else {twin.module: twin.text()}
    return check(
        "Scheduler",
        constants,
        specification="SchedulerSpec",
        properties=PROPERTIES,
        texts=texts,
        with_graph=False,
    )


def compare(wanted: dict[str, Bounds], submit: Callable[..., Future[Answer]], tally: Tally) -> None:
    """Compare module and kvref for each of these bounds; explore while the checker runs."""
    answers = {name: submit(check_bounds, bounds) for name, bounds in wanted.items()}
    for name, bounds in wanted.items():
        graph = explore(bounds)
        answer = answers[name].result()
        print(f"{name}: {len(graph.states):,} states, {len(graph.edges):,} edges", flush=True)
        tally.expect(name, "", verdict(answer, graph))


def refute(twins: Iterable[Twin], submit: Callable[..., Future[Answer]], tally: Tally) -> None:
    """Check that each seeded mistake is found, in the way expected."""
    bounds = small()
    graphs = {name: explore(each) for name, each in bounds.items()}
    answers = [(twin, submit(check_bounds, bounds[twin.bounds], twin)) for twin in twins]
    for twin, answer in answers:
        tally.expect(twin.name, twin.found_by, verdict(answer.result(), graphs[twin.bounds]))


def refute_kvref(submit: Callable[..., Future[Answer]], tally: Tally) -> None:
    """Check that a mistake in kvref is found."""
    answer = submit(check_bounds, SMALL_POOL).result()
    broken = explore(replace(SMALL_POOL, pool_class=UnhashedToTheBack))
    tally.expect("kvref releases to the back", DIFFERS, verdict(answer, broken))


def grow(submit: Callable[..., Future[Answer]], tally: Tally) -> None:
    """Compare the grown parts, and find for each a mistake in the module and one in kvref."""
    twins = {twin.bounds: twin for twin in GROWN}
    for name, bounds in grown().items():
        answer, wrong = submit(check_bounds, bounds), submit(check_bounds, bounds, twins[name])
        graph = explore(bounds)
        print(f"{name}: {len(graph.states):,} states, {len(graph.edges):,} edges", flush=True)
        tally.expect(name, "", verdict(answer.result(), graph))
        tally.expect(twins[name].name, twins[name].found_by, verdict(wrong.result(), graph))
        mistake = find(GROWN_IN_KVREF[name])
        # Behind its first wrong state calls may be illegal.
        broken = explore(ManagerSide(replace(bounds.bounds, made_by=mistake.make())), within=graph)
        tally.expect(f"kvref: {mistake.id}", DIFFERS, verdict(answer.result(), broken))


def main(arguments: Sequence[str]) -> int:
    """Run it; return 0 if every answer is the expected one."""
    began = time.monotonic()
    try:
        node()
    except CheckerMissingError as missing:
        print(f"formal model: {missing}")
        return 2
    tally = Tally()
    with ThreadPoolExecutor(AT_ONCE) as executor:
        if "--grown" in arguments:
            compare(larger(), executor.submit, tally)
            grow(executor.submit, tally)
            print(f"formal model: {tally.passed} passed, {tally.failed} failed")
            return 1 if tally.failed else 0
        fair = {name: executor.submit(check_scheduler, each) for name, each in schedulers().items()}
        looked_in = unfair_schedulers()
        unfair = [
            (twin, executor.submit(check_scheduler, looked_in[twin.bounds], twin))
            for twin in UNFAIR
        ]
        compare(compared(), executor.submit, tally)
        refute(TWINS, executor.submit, tally)
        refute_kvref(executor.submit, tally)
        for name, each in fair.items():
            answer = each.result()
            print(f"{name}: {answer.num_states:,} states")
            tally.expect(name, "", answer.broken or "")
        for twin, refuted in unfair:
            tally.expect(twin.name, twin.found_by, refuted.result().broken or "")
    seconds = time.monotonic() - began
    print(f"formal model: {tally.passed} passed, {tally.failed} failed ({seconds:.0f} s)")
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
