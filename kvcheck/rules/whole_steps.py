"""Examples of whole steps over arrays, for implementations with steps of their own."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random

from kvcheck.play.fit import random_program
from kvcheck.play.random_configs import random_config
from kvcheck.play.steps import Program
from kvcheck.rules.batch_sides import UNTOUCHED, Outputs
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.managed import Managed
from kvcheck.rules.random_batches import Engine
from kvspec.batched import BatchedManager, Ints, StepOutput, StepPlan
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature
from kvspec.request import Request, RequestStatus
from kvspec.sequential import SequentialManager, batched_of

NUM_RANDOM_ENGINES = 24
NUM_RANDOM_STEPS = 12


def steps(bench: Bench, num_blocks: int = 12) -> BatchedManager:
    """Whole steps on a manager of one full-attention group with block size 4."""
    bench.need(Feature.BATCHED)
    return batched_of(bench.subject, bench.manager(num_blocks).real)


def made(bench: Bench, batched: BatchedManager, name: str, tokens: Sequence[int]) -> Request:
    """A request that is not registered."""
    request: Request = Managed(bench.subject, batched.manager).request(name, tokens)
    return request


def registered(bench: Bench, batched: BatchedManager, *texts: Sequence[int]) -> list[int]:
    """The handles of new requests with these prompts."""
    return [
        batched.register(made(bench, batched, f"r{number}", text))
        for number, text in enumerate(texts)
    ]


@example("KV-BATCH-2")
def a_step_whose_last_entry_is_illegal_changes_nothing(bench: Bench) -> None:
    batched = steps(bench)
    handles = registered(bench, batched, range(4), range(10, 14), range(20, 24))
    batched.admit(handles)
    batched.append(handles, [1, 2, 3])
    wrong = batched.request_of(handles[2])
    wrong.num_computed_tokens = -1
    before = Managed(bench.subject, batched.manager).visible()
    field = "decoding[2].num_computed_tokens"
    plan = StepPlan(decoding=handles)
    with raises(InvalidArgumentError, field=field):
        batched.step(plan)
    equal(Managed(bench.subject, batched.manager).visible(), before, "the state afterwards")


@example("KV-BATCH-3")
def numbers_of_two_widths(bench: Bench) -> None:
    """Counts come as a list, as an array of 32 or 64 bits, or as one for all; not as floats."""
    for legal in ([2], array("i", [2]), array("q", [2]), 2):
        batched = steps(bench)
        handles = registered(bench, batched, range(9))
        granted = batched.admit(array("i", handles), legal).num_scheduled_tokens.tolist()
        equal(granted, [2], f"tokens granted with {legal!r}")
    illegal: tuple[Ints | int, ...] = (
        True, [True], array("d", [2.0]), array("I", [2]), array("h", [2]), [2, 2],
    )  # fmt: skip
    batched = steps(bench)
    handles = registered(bench, batched, range(9))
    for counts in illegal:
        with raises(InvalidArgumentError):
            batched.admit(handles, counts)
    with raises(InvalidArgumentError):
        batched.free([False])


@example("KV-BATCH-4")
def the_handle_released_longest_ago(bench: Bench) -> None:
    """A released handle is given out again, the one released longest ago first."""
    batched = steps(bench)
    equal(registered(bench, batched, *[[1]] * 3), [0, 1, 2], "handles")
    batched.unregister([2])
    batched.unregister([0])
    names = ("x", "y", "z")
    again = [batched.register(made(bench, batched, name, [1])) for name in names]
    equal(again, [2, 0, 3], "handles")
    plan = StepPlan(finished=[1], new=[1])
    with raises(InvalidArgumentError, field="new[0]"):
        batched.step(plan)


@example("KV-BATCH-5")
def preempted_and_finished(bench: Bench) -> None:
    """Only a preemption is counted; both give everything back and stay registered."""
    batched = steps(bench)
    handles = registered(bench, batched, range(9), range(10, 19))
    batched.admit(handles)
    batched.step(StepPlan(finished=handles[:1], preempted=handles[1:]))
    ended, preempted = map(batched.request_of, handles)
    equal(batched.manager.num_free_blocks, 11, "free blocks")
    equal((ended.num_preemptions, preempted.num_preemptions), (0, 1), "preemptions")
    statuses = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
    equal((ended.status, preempted.status), statuses, "statuses")


@example("KV-BATCH-6", "KV-BATCH-12")
def drafts_and_the_way_back(bench: Bench) -> None:
    """Tokens count as computed when they are granted; rejected drafts are taken back."""
    bench.need(Feature.BATCHED, Feature.DRAFTING)
    batched = steps(bench)
    handles = registered(bench, batched, range(11))
    batched.admit(handles, 10)
    equal(batched.decode(handles, 3).num_scheduled_tokens.tolist(), [3], "tokens granted")
    request = batched.request_of(handles[0])
    equal(request.num_computed_tokens, 13, "computed tokens")
    batched.rewind(handles, 1)
    batched.append(handles, [11, 12], 2)
    equal((request.num_computed_tokens, request.num_tokens), (12, 13), "computed and all")
    with raises(InvalidArgumentError):
        batched.rewind(handles, 13)
    batched.decode(handles, num_lookahead_tokens=8)
    slots = 4 * len(batched.manager.get_blocks(request).groups[0])
    equal(slots, 24, "slots with 8 lookahead tokens")


@example("KV-BATCH-7")
def a_new_request_finds_what_another_one_of_the_same_step_has_cached(bench: Bench) -> None:
    bench.need(Feature.PREFIX_CACHING)
    batched = steps(bench)
    handles = registered(bench, batched, range(9), [*range(8), 99])
    result = batched.admit(handles, token_budget=12)
    equal(result.hit_tokens.tolist(), [0, 8], "hits")
    equal(result.num_scheduled_tokens.tolist(), [9, 1], "tokens granted")
    equal(batched.request_of(handles[1]).status, RequestStatus.RUNNING, "status")


@example("KV-BATCH-8")
def decoding_comes_off_the_budget_where_nothing_is_left_nothing_is_tried(bench: Bench) -> None:
    batched = steps(bench, num_blocks=9)
    handles = registered(bench, batched, range(4), range(10, 60), range(100, 109), range(200, 202))
    running, long, short, last = handles
    batched.admit([running])
    batched.append([running], [5])
    plan = StepPlan(decoding=[running], new=[long, short], token_budget=1)
    tokens = batched.step(plan).num_scheduled_tokens.tolist()
    equal(tokens, [1, 0, 0], "tokens granted from a budget of 1")
    tokens = batched.admit([long, short], stops_at_refusal=True).num_scheduled_tokens.tolist()
    equal(tokens, [0, 0], "tokens granted behind a refusal")
    tokens = batched.admit([long, short, last], token_budget=10).num_scheduled_tokens.tolist()
    equal(tokens, [10, 0, 0], "tokens granted from a budget of 10")


@example("KV-BATCH-9")
def each_granted_token_has_its_slot_and_nothing_else_is_written(bench: Bench) -> None:
    batched = steps(bench)
    first, second = registered(bench, batched, range(9), range(20, 23))
    batched.admit([first])
    batched.append([first], [1, 2], [2])
    outputs = Outputs(0, [6])
    plan = StepPlan(decoding=[first], decode_tokens=2, new=[second])
    batched.step(plan, outputs.given)
    lists = [batched.manager.get_blocks(batched.request_of(h)).groups[0] for h in (first, second)]
    slots = [lists[0][2] * 4 + 1, lists[0][2] * 4 + 2]
    slots += [lists[1][0] * 4 + position for position in range(3)]
    written = [mapping.tolist() for mapping in outputs.slots or [] if mapping is not None]
    equal(written, [[*slots, UNTOUCHED]], "the mapping")
    short = StepOutput(slot_mappings=[array("q", [0])])
    field = "slot_mappings[0]"
    two = StepPlan(decoding=[first], decode_tokens=2)
    if bench.has(Feature.DRAFTING):  # there are no further tokens
        with raises(InvalidArgumentError, field=field):
            batched.step(two, short)


@example("KV-BATCH-10", "KV-BATCH-11")
def rows_tell_each_entry_of_a_block_list_once_and_those_without_room_later(bench: Bench) -> None:
    batched = steps(bench)
    handles = registered(bench, batched, range(9), range(20, 29))
    outputs = Outputs(4)
    result = batched.step(StepPlan(new=handles), outputs.given)
    rows = [
        (handle, 0, index, block)
        for handle in handles
        for index, block in enumerate(
            batched.manager.get_blocks(batched.request_of(handle)).to_lists()[0]
        )
    ]
    equal([outputs.row(number) for number in range(4)], rows[:4], "the rows")
    counts = (result.num_deltas, result.num_deltas_left, batched.num_pending_deltas())
    equal(counts, (4, 2, 2), "rows told, left and pending")
    rest = Outputs(3)
    taken = batched.take_deltas(rest.given.block_deltas)  # type: ignore[arg-type]
    equal(taken, 2, "rows taken")
    equal([rest.row(0), rest.row(1)], rows[4:], "the other rows")
    equal(rest.row(2), (UNTOUCHED,) * 4, "a row without an entry")
    batched.preempt(handles[:1])
    again = Outputs(3)
    batched.admit(handles[:1], output=again.given)
    told = [again.row(number)[:3] for number in range(3)]
    equal(told, [row[:3] for row in rows[:3]], "rows of a request that came back")


@example("KV-BATCH-12")
def tokens_of_several(bench: Bench) -> None:
    """Tokens are appended to each request as the counts say; a look-up tells lengths."""
    batched = steps(bench)
    handles = registered(bench, batched, range(9), [*range(8), 50])
    batched.append(handles, [7, 8, 9], [1, 2])
    lengths = [batched.request_of(handle).num_tokens for handle in handles]
    equal(lengths, [10, 11], "lengths")
    with raises(InvalidArgumentError):
        batched.append(handles, [1, 2, 3])
    if bench.has(Feature.PREFIX_CACHING):
        batched.admit(handles[:1])
        equal(batched.lookup(handles[1:]).tolist(), [8], "hits")


@example("KV-BATCH-13")
def what_will_be_taken_next_and_how_long_lists_are_can_be_asked_for(bench: Bench) -> None:
    batched = steps(bench)
    handles = registered(bench, batched, range(9), range(20, 25), [50])
    batched.admit(handles[:2])
    equal(batched.list_lengths(handles[::-1]).tolist(), [0, 2, 3], "lengths of lists")
    with raises(InvalidArgumentError):
        batched.next_free_blocks(-1)
    if not bench.has(Feature.SNAPSHOT):
        return
    foreseen = batched.next_free_blocks(2).tolist()
    equal(len(foreseen), 2, "of two")
    everything = batched.next_free_blocks(1000).tolist()
    equal(len(everything), batched.manager.num_free_blocks, "all that are free")
    batched.append(handles[:1], range(9, 17), 8)
    batched.decode(handles[:1], 8)
    taken = batched.manager.get_blocks(batched.request_of(handles[0])).to_lists()[0][3:]
    equal(taken, foreseen, "the blocks taken next")
    equal(batched.next_free_blocks(1000).tolist(), everything[2:], "what is left")


@example(*(f"KV-BATCH-{number}" for number in range(1, 14)))
def random_steps(bench: Bench) -> None:
    """Random steps are their single calls, in every configuration that the subject serves."""
    bench.need(Feature.BATCHED)
    for seed in range(NUM_RANDOM_ENGINES):
        random = Random(seed)
        program = Program(random_config(random), ())
        can = bench.subject.capabilities
        said = (program, can, bench.policy)
        fitting = random_program(*said, hashes_matter=True, oracle=bench.oracle)
        if fitting is None:
            continue
        sides = [(bench.subject, SequentialManager), (bench.subject, batched_of)]
        Engine(fitting.config, sides, random).play(NUM_RANDOM_STEPS)
