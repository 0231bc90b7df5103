"""Examples of whole steps over arrays, for implementations with steps of their own."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random

from kvcheck.play.fit import random_program
from kvcheck.play.random_configs import random_config
from kvcheck.play.steps import Program
from kvcheck.rules.batch_sides import UNTOUCHED, Outputs
from kvcheck.rules.examples.bench import Bench
from kvcheck.rules.examples.example import example
from kvcheck.rules.random_batches import Engine
from kvspec.batched import BatchedManager, Ints, StepOutput, StepPlan
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Feature
from kvspec.request import RequestStatus
from kvspec.sequential import SequentialManager, batched_of

NUM_RANDOM_ENGINES = 24
NUM_RANDOM_STEPS = 12


def steps(bench: Bench, num_blocks: int = 12) -> BatchedManager:
    """Whole steps on a manager of one full-attention group with block size 4."""
    bench.need(Feature.BATCHED)
    return batched_of(bench.subject, bench.manager(num_blocks))


def registered(bench: Bench, batched: BatchedManager, *texts: Sequence[int]) -> list[int]:
    """The handles of new requests with these prompts."""
    return [
        batched.register(bench.request(batched.manager, f"r{number}", list(text)))
        for number, text in enumerate(texts)
    ]


@example("KV-BATCH-1", "KV-BATCH-5")
def what_ends_makes_room(bench: Bench) -> None:
    """What ends in a step makes room for what begins in it."""
    batched = steps(bench, num_blocks=6)
    old, new = registered(bench, batched, range(20), range(100, 120))
    batched.admit([old])
    result = batched.step(StepPlan(finished=[old], new=[new]))
    bench.equal("tokens granted to the new request", [20], result.num_scheduled_tokens.tolist())
    bench.equal("computed tokens of the old one", 0, batched.request_of(old).num_computed_tokens)


@example("KV-BATCH-2")
def the_third_of_three_is_wrong(bench: Bench) -> None:
    """A step whose last entry is illegal changes nothing."""
    batched = steps(bench)
    handles = registered(bench, batched, range(4), range(10, 14), range(20, 24))
    batched.admit(handles)
    batched.append(handles, [1, 2, 3])
    wrong = batched.request_of(handles[2])
    wrong.num_computed_tokens = -1
    before = bench.visible(batched.manager)
    field = "decoding[2].num_computed_tokens"
    plan = StepPlan(decoding=handles)
    bench.raises("a request of -1 tokens", InvalidArgumentError, batched.step, plan, field=field)
    bench.equal("the state afterwards", before, bench.visible(batched.manager))


@example("KV-BATCH-3")
def numbers_of_two_widths(bench: Bench) -> None:
    """Counts come as a list, as an array of 32 or 64 bits, or as one for all; not as floats."""
    for legal in ([2], array("i", [2]), array("q", [2]), 2):
        batched = steps(bench)
        handles = registered(bench, batched, range(9))
        granted = batched.admit(array("i", handles), legal).num_scheduled_tokens.tolist()
        bench.equal(f"tokens granted with {legal!r}", [2], granted)
    illegal: tuple[Ints | int, ...] = (
        True, [True], array("d", [2.0]), array("I", [2]), array("h", [2]), [2, 2],
    )  # fmt: skip
    batched = steps(bench)
    handles = registered(bench, batched, range(9))
    for counts in illegal:
        bench.raises(f"{counts!r}", InvalidArgumentError, batched.admit, handles, counts)
    bench.raises("a handle that is a bool", InvalidArgumentError, batched.free, [False])


@example("KV-BATCH-4")
def the_handle_released_longest_ago(bench: Bench) -> None:
    """A released handle is given out again, the one released longest ago first."""
    batched = steps(bench)
    bench.equal("handles", [0, 1, 2], registered(bench, batched, *[[1]] * 3))
    batched.unregister([2])
    batched.unregister([0])
    names = ("x", "y", "z")
    again = [batched.register(bench.request(batched.manager, name, [1])) for name in names]
    bench.equal("handles", [2, 0, 3], again)
    plan = StepPlan(finished=[1], new=[1])
    bench.raises("a handle twice", InvalidArgumentError, batched.step, plan, field="new[0]")


@example("KV-BATCH-5")
def preempted_and_finished(bench: Bench) -> None:
    """Only a preemption is counted; both give everything back and stay registered."""
    batched = steps(bench)
    handles = registered(bench, batched, range(9), range(10, 19))
    batched.admit(handles)
    batched.step(StepPlan(finished=handles[:1], preempted=handles[1:]))
    ended, preempted = map(batched.request_of, handles)
    bench.equal("free blocks", 11, batched.manager.num_free_blocks)
    bench.equal("preemptions", (0, 1), (ended.num_preemptions, preempted.num_preemptions))
    statuses = (RequestStatus.WAITING, RequestStatus.PREEMPTED)
    bench.equal("statuses", statuses, (ended.status, preempted.status))


@example("KV-BATCH-6", "KV-BATCH-12")
def drafts_and_the_way_back(bench: Bench) -> None:
    """Tokens count as computed when they are granted; rejected drafts are taken back."""
    bench.need(Feature.BATCHED, Feature.DRAFTING)
    batched = steps(bench)
    handles = registered(bench, batched, range(11))
    batched.admit(handles, 10)
    bench.equal("tokens granted", [3], batched.decode(handles, 3).num_scheduled_tokens.tolist())
    request = batched.request_of(handles[0])
    bench.equal("computed tokens", 13, request.num_computed_tokens)
    batched.rewind(handles, 1)
    batched.append(handles, [11, 12], 2)
    bench.equal("computed and all", (12, 13), (request.num_computed_tokens, request.num_tokens))
    bench.raises("13 tokens back", InvalidArgumentError, batched.rewind, handles, 13)
    batched.decode(handles, num_lookahead_tokens=8)
    slots = 4 * len(batched.manager.get_blocks(request).groups[0])
    bench.equal("slots with 8 lookahead tokens", 24, slots)


@example("KV-BATCH-7")
def one_hits_what_the_one_before_cached(bench: Bench) -> None:
    """A new request finds what another one of the same step has cached."""
    bench.need(Feature.PREFIX_CACHING)
    batched = steps(bench)
    handles = registered(bench, batched, range(9), [*range(8), 99])
    result = batched.admit(handles, token_budget=12)
    bench.equal("hits", [0, 8], result.hit_tokens.tolist())
    bench.equal("tokens granted", [9, 1], result.num_scheduled_tokens.tolist())
    bench.equal("status", RequestStatus.RUNNING, batched.request_of(handles[1]).status)


@example("KV-BATCH-8")
def first_come_first_served(bench: Bench) -> None:
    """Decoding comes off the budget; where nothing is left, nothing is tried."""
    batched = steps(bench, num_blocks=9)
    handles = registered(bench, batched, range(4), range(10, 60), range(100, 109), range(200, 202))
    running, long, short, last = handles
    batched.admit([running])
    batched.append([running], [5])
    plan = StepPlan(decoding=[running], new=[long, short], token_budget=1)
    tokens = batched.step(plan).num_scheduled_tokens.tolist()
    bench.equal("tokens granted from a budget of 1", [1, 0, 0], tokens)
    tokens = batched.admit([long, short], stops_at_refusal=True).num_scheduled_tokens.tolist()
    bench.equal("tokens granted behind a refusal", [0, 0], tokens)
    tokens = batched.admit([long, short, last], token_budget=10).num_scheduled_tokens.tolist()
    bench.equal("tokens granted from a budget of 10", [10, 0, 0], tokens)


@example("KV-BATCH-9")
def slots_of_granted_tokens(bench: Bench) -> None:
    """Each granted token has its slot, and nothing else is written."""
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
    bench.equal("the mapping", [[*slots, UNTOUCHED]], written)
    short = StepOutput(slot_mappings=[array("q", [0])])
    field = "slot_mappings[0]"
    two = StepPlan(decoding=[first], decode_tokens=2)
    if bench.has(Feature.DRAFTING):  # there are no further tokens
        bench.raises("a mapping of 1", InvalidArgumentError, batched.step, two, short, field=field)


@example("KV-BATCH-10", "KV-BATCH-11")
def rows_of_what_is_new(bench: Bench) -> None:
    """Rows tell each entry of a block list once, and those without room later."""
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
    bench.equal("the rows", rows[:4], [outputs.row(number) for number in range(4)])
    counts = (result.num_deltas, result.num_deltas_left, batched.num_pending_deltas())
    bench.equal("rows told, left and pending", (4, 2, 2), counts)
    rest = Outputs(3)
    taken = batched.take_deltas(rest.given.block_deltas)  # type: ignore[arg-type]
    bench.equal("rows taken", 2, taken)
    bench.equal("the other rows", rows[4:], [rest.row(0), rest.row(1)])
    bench.equal("a row without an entry", (UNTOUCHED,) * 4, rest.row(2))
    batched.preempt(handles[:1])
    again = Outputs(3)
    batched.admit(handles[:1], output=again.given)
    told = [again.row(number)[:3] for number in range(3)]
    bench.equal("rows of a request that came back", [row[:3] for row in rows[:3]], told)


@example("KV-BATCH-12")
def tokens_of_several(bench: Bench) -> None:
    """Tokens are appended to each request as the counts say; a look-up tells lengths."""
    batched = steps(bench)
    handles = registered(bench, batched, range(9), [*range(8), 50])
    batched.append(handles, [7, 8, 9], [1, 2])
    lengths = [batched.request_of(handle).num_tokens for handle in handles]
    bench.equal("lengths", [10, 11], lengths)
    bench.raises("a token too many", InvalidArgumentError, batched.append, handles, [1, 2, 3])
    if bench.has(Feature.PREFIX_CACHING):
        batched.admit(handles[:1])
        bench.equal("hits", [8], batched.lookup(handles[1:]).tolist())


@example("KV-BATCH-13")
def blocks_that_come_next(bench: Bench) -> None:
    """What will be taken next, and how long lists are, can be asked for."""
    batched = steps(bench)
    handles = registered(bench, batched, range(9), range(20, 25), [50])
    batched.admit(handles[:2])
    bench.equal("lengths of lists", [0, 2, 3], batched.list_lengths(handles[::-1]).tolist())
    bench.raises("less than none", InvalidArgumentError, batched.next_free_blocks, -1)
    if not bench.has(Feature.SNAPSHOT):
        return
    foreseen = batched.next_free_blocks(2).tolist()
    bench.equal("of two", 2, len(foreseen))
    everything = batched.next_free_blocks(1000).tolist()
    bench.equal("all that are free", batched.manager.num_free_blocks, len(everything))
    batched.append(handles[:1], range(9, 17), 8)
    batched.decode(handles[:1], 8)
    taken = batched.manager.get_blocks(batched.request_of(handles[0])).to_lists()[0][3:]
    bench.equal("the blocks taken next", foreseen, taken)
    bench.equal("what is left", everything[2:], batched.next_free_blocks(1000).tolist())


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


BATCHES = (
    what_ends_makes_room,
    the_third_of_three_is_wrong,
    numbers_of_two_widths,
    the_handle_released_longest_ago,
    preempted_and_finished,
    drafts_and_the_way_back,
    one_hits_what_the_one_before_cached,
    first_come_first_served,
    slots_of_granted_tokens,
    rows_of_what_is_new,
    tokens_of_several,
    blocks_that_come_next,
    random_steps,
)
