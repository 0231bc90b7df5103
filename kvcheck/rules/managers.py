"""Examples about managers that the notation cannot say.

Random whole steps, snapshots that it cannot write down, and many requests or many keys of one
block: where an implementation may switch its method.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from kvcheck.play.checks import CompareCheck, EventCheck
from kvcheck.play.fit import random_program
from kvcheck.play.performing import perform
from kvcheck.play.random_configs import random_config
from kvcheck.play.random_programs import Draw, program_of_steps
from kvcheck.play.runner import Runner
from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvcheck.rules.specs import full, mamba, sliding
from kvcheck.rules.steps import Steps
from kvspec.batched import StepPlan
from kvspec.errors import ConfigError, InvalidArgumentError, InvariantViolation
from kvspec.interface import Feature
from kvspec.request import RequestStatus
from kvspec.snapshot import RequestState, Snapshot

NUM_RANDOM_PROGRAMS = 24
NUM_ROUNDS = 12


@example(*(f"KV-BATCH-{number}" for number in range(1, 14)))
def random_steps_are_their_single_calls(bench: Bench) -> None:
    """Check in every configuration that the subject supports."""
    bench.need(Feature.BATCHED)
    can = bench.subject.capabilities
    for seed in range(NUM_RANDOM_PROGRAMS):
        random = Random(seed)
        program = program_of_steps(Draw(random, random_config(random)), NUM_ROUNDS)
        counted = ("admitted", "asked")[seed % 2]
        policy = replace(bench.policy, lookups_counted=counted)
        fitting = random_program(program, can, policy, hashes_matter=True, oracle=bench.oracle)
        if fitting is None:
            continue
        runner = Runner(fitting, bench.subject, bench.subject)
        exact = Feature.SNAPSHOT in can.features
        runner.checks = [CompareCheck(exact_ids=exact), EventCheck()]
        try:
            perform(runner, fitting.steps)
        except InvariantViolation as wrong:  # its own single calls are right, whatever differs
            if wrong.rule.startswith("KV-BATCH-"):
                raise
            name = "batches_are_their_single_calls"
            raise InvariantViolation(name, "KV-BATCH-1", str(wrong)) from wrong


@example("KV-MGR-20")
def the_mark_of_a_state_may_be_left_out(bench: Bench) -> None:
    """Check None for a group in mode align: the request is restored as if it took no block yet."""
    manager = bench.manager(6, mamba(4, "align"))
    request = manager.started("r", range(4))
    holds(manager.has_taken_blocks(request))
    snapshot = manager.snapshot()
    unmarked = {"r": replace(snapshot.requests["r"], mamba=(None,))}
    restored = bench.restore(manager.config, replace(snapshot, requests=unmarked))
    holds(not restored.has_taken_blocks(request))


@cases(
    {"requests": {"r": RequestState(((1,), (2,)), (None, None))}},
    {"requests": {"r": RequestState(((),), (1,))}},
    {"requests": {7: RequestState(((),), (None,))}},
    {"requests": {"r": RequestState(((),), ("1",))}},  # type: ignore[arg-type]  # the point
    {"requests": {"r": RequestState(((),), (None,), (7,))}},  # type: ignore[arg-type]  # the point
    {"free_queue": [5]},
    {"lookup_order": {b"x": None}},
    {"none_hash": b"short"},
    {"step_keys": (frozenset({1}),)},
)
@example("KV-MGR-20", level=Level.SAFETY)
def a_snapshot_has_entries_of_its_types(bench: Bench, members: dict[str, Any]) -> None:
    manager = bench.manager(6)
    manager.admit(manager.request("r", range(9)))
    with raises(InvalidArgumentError, field="snapshot"):
        bench.restore(manager.config, replace(manager.snapshot(), **members))


@cases(None, {}, "snapshot")
@example("KV-MGR-20", level=Level.SAFETY)
def only_a_snapshot_is_restored_and_only_under_a_configuration(bench: Bench, bad: Snapshot) -> None:
    with raises(InvalidArgumentError, field="snapshot"):
        bench.restore(bench.config(), bad)
    with raises(ConfigError):
        bench.restore(bad, bench.manager().snapshot())  # type: ignore[arg-type]  # the point


LONG = 100
"""Blocks: more than the 32 or 64 that code likes to take at once."""


@example("KV-PART-2", level=Level.IDENTITY)
def many_additional_keys_stay_with_their_blocks(bench: Bench) -> None:
    """Check ninety boundaries inside of blocks, after the blocks are reused or all is reset."""
    manager = bench.manager(250, full(1), sliding(16, 320))
    ends = [n for n in range(1, 96) if n % 16]
    for name in "abc":
        request = manager.started(name, range(96))
        for n in ends:
            made = manager.cache_partial_block(request, 1, n)
            equal(made, True, f"an entry of {n} tokens")
        shown, blocks = manager.snapshot(), manager.blocks(request, 1)
        keys = [bytes(request.block_hashes[n - 1]) + b"\0\0\0\1" for n in ends]
        equal([shown.lookup_order.get(key) for key in keys], [(blocks[n // 16],) for n in ends])
        carried = {key for block in blocks for key in shown.block_keys[block]}
        equal(sorted(set(keys) - carried), [], "keys that no block carries")
        manager.free(request)
        if name == "b":
            holds(manager.reset_prefix_cache(), "no block is held: the cache is reset")
        else:
            other = manager.request(f"other {name}", range(9000, 9234))
            manager.allocate_slots(other, 234, delay_cache_blocks=True)
            manager.free(other)
        shown = manager.snapshot()
        taken = [key for key in keys if key in shown.lookup_order]
        equal(taken, [], "keys of blocks that were taken")


@example("KV-BATCH-6")
def a_step_of_many_requests_knows_the_tokens_of_each(bench: Bench) -> None:
    """Check with half of the requests running and half new."""
    steps = Steps(bench, 3 * LONG, check_invariants=False)
    handles = steps.register(*([number] * 8 for number in range(LONG)))
    running, new = handles[: LONG // 2], handles[LONG // 2 :]
    steps.batched.admit(running, 1)
    counts = [1 + number % 5 for number in running]
    plan = StepPlan(prefilling=running, prefill_tokens=counts, new=new)
    equal(steps.batched.step(plan).num_scheduled_tokens.tolist(), [*counts, *[8] * len(new)])
    equal([steps.of(handle).num_computed_tokens for handle in running], [n + 1 for n in counts])


@example("KV-BATCH-10")
def what_was_told_stays_told_when_many_are_registered(bench: Bench) -> None:
    steps = Steps(bench, 60)
    (first,) = steps.register(range(12))
    steps.write(StepPlan(new=[first]))
    for number in range(40):
        steps.register([number])
    steps.batched.append([first], [1])
    _, rows, _ = steps.write(StepPlan(decoding=[first]))
    equal([row[:3] for row in rows], [(first, 0, 3)])


@example("KV-GRP-11", "KV-GRP-1", level=Level.IDENTITY)
def counts_of_requests_stay_when_many_come(bench: Bench) -> None:
    manager = bench.manager(200)
    requests = [manager.started(f"r{n}", range(100 * n, 100 * n + 9)) for n in range(40)][:8]
    equal([manager.cached_count(request) for request in requests], [2] * 8)


@example("KV-MAMBA-7", level=Level.IDENTITY)
def requests_remember_their_states_when_many_come(bench: Bench) -> None:
    manager = bench.manager(100, mamba(4, "align"))
    texts = (partial(range, 100 * n, 100 * n + 9) for n in range(40))
    requests = [manager.started(f"r{n}", text()) for n, text in enumerate(texts)]
    equal([manager.has_taken_blocks(request) for request in requests], [True] * 40)


def decode(steps: Steps, *handles: int) -> list[int]:
    """Decode one more token of each; return what was granted."""
    steps.batched.append(handles, [7] * len(handles))
    return steps.batched.decode(handles).num_scheduled_tokens.tolist()


@example("KV-BATCH-4")
def counts_stay_with_their_requests_when_many_are_registered(bench: Bench) -> None:
    steps = Steps(bench, 200)
    handles: list[int] = []
    for k in range(70):
        handles += steps.admitted(range(100 * k, 100 * k + 3))
        if k % 10 == 9:
            equal(decode(steps, *handles), [1] * len(handles))
    for k, handle in enumerate(handles):
        equal(steps.of(handle).num_computed_tokens, 3 + 7 - k // 10)
    steps.of(handles[0]).num_computed_tokens = 2
    steps.of(handles[1]).status = RequestStatus.PREEMPTED
    steps.batched.rewind(handles[:2], 1)
    equal([steps.of(handle).num_computed_tokens for handle in handles[:2]], [1, 9])
