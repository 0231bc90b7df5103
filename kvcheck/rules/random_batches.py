"""Random engine steps on two batched managers at once: compare every result and effect.

The first side is right by definition (`kvspec.sequential.SequentialManager`), the second is
examined. Both get the same calls, so that their handles, tables and states are equal.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from operator import methodcaller
from random import Random
from typing import Any

from kvcheck.play.difference import WrongAnswer
from kvcheck.play.keeping import Kept
from kvcheck.play.left_out import created
from kvcheck.rules.batch_sides import Batch, Clock, Outputs, Side
from kvcheck.rules.broken_batches import broken_plans
from kvcheck.rules.saved_alone import can_be_saved, load_again
from kvcheck.rules.single_calls import append_alone, call_alone
from kvspec._arrays import ints_of
from kvspec._check import COUNT_MAX
from kvspec.batched import StepPlan
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.interface import Feature, Implementation
from kvspec.request import RequestInput
from kvspec.specs import (
    CircularBufferSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    MambaSpec,
)

WITHOUT_SLOTS = (MambaSpec, CrossAttentionSpec, EncoderOnlyAttentionSpec, CircularBufferSpec)
TOKEN_IDS = range(2)
"""Few enough that texts share prefixes."""


def listed(values: object) -> list[int]:
    return ints_of("values", values).tolist()


SAVED_EVERY = 7
"""Single calls between two saved states."""


class Engine:
    """Make the same steps on two managers. Raises WrongAnswer at the first difference.

    `sides`: an implementation and the maker of its batched manager; the first is right.
    `table`: block lists as rows have reported them so far (KV-BATCH-10); it cannot be whole for a
    request of `freed_alone`, which a single call freed. `kept`: what the engine keeps of followed
    requests. `drew`: how often each option was drawn.
    """

    max_requests = 6
    arrivals = 0.8
    """Probability that one more request arrives before a step, while there is room."""
    is_saved = True
    """Whether to continue from saved states now and then."""

    def __init__(
        self, config: ManagerConfig, sides: Sequence[tuple[Implementation, Batch]], random: Random
    ) -> None:
        self.config = config
        self.random = random
        self.clock = Clock()
        self.sides: Sequence[Side] = ()
        for implementation, batch in sides:
            manager = created(implementation, config, check_invariants=False, clock=self.clock)
            side = Side(implementation, manager, batch(implementation, manager), Outputs())
            self.sides = (*self.sides, side)
        self.handles: list[int] = []
        self.kept: dict[int, Kept] = {}
        self.inputs: dict[int, RequestInput] = {}
        self.num_requests = self.num_appended = self.num_alone = 0
        self.table: dict[tuple[int, ...], int] = {}
        self.freed_alone: set[int] = set()
        self.drew: Counter[str] = Counter()
        self.num_granted = self.num_refused = self.num_illegal = 0

    def play(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.clock.now += self.random.randint(1, 9)
            while len(self.handles) < self.max_requests and self.random.random() < self.arrivals:
                self.arrive()
            while self.random.random() < 0.4:
                self.call_alone()
            plan = self.plan()
            if self.random.random() < 0.25:
                self.try_broken(plan)
            self.step(plan)
            if self.random.random() < 0.3:
                self.take_deltas()
            if self.random.random() < 0.2:
                self.look_up(self.some(self.handles, 0.5))

    # Moves of the engine.

    def look_up(self, handles: list[int]) -> None:
        """Look up hits without admission."""
        self.both("KV-BATCH-12", "hit lengths", lambda s: s.batched.lookup(handles))

    def call_alone(self) -> None:
        """Make a single call about a registered request, and compare all that can be seen."""
        self.num_alone += 1
        if self.num_alone % SAVED_EVERY == 0 and self.is_saved and can_be_saved(self):
            self.save_and_load()
        name = call_alone(self)
        if name is not None:
            self.drew[name] += 1
            self.compare("KV-BATCH-1", f"after a request was {name}")

    def save_and_load(self) -> None:
        """Continue from saved states, in turn from a file; all is registered and reported again."""
        self.compare("KV-MGR-20", "before it was saved")
        from_file = self.drew["saved alone"] > self.drew["saved to a file alone"]
        for side in self.sides:
            given = {handle: self.inputs[handle] for handle in self.handles}
            load_again(side, given, self.kept, from_file=from_file)
        self.table.clear()
        self.freed_alone.clear()
        self.drew["saved to a file alone" if from_file else "saved alone"] += 1
        self.compare("KV-MGR-20", "after it was loaded")

    def arrive(self) -> None:
        given = self.request(f"r{self.num_requests}")
        self.num_requests += 1

        config = self.sides[0].manager.config
        kept = Kept(config, given) if config.given_hash_bytes else None

        def register(side: Side) -> int:
            return side.batched.register(side.made(given, kept))

        handle = self.both("KV-BATCH-4", "the handle", register)
        self.handles.append(handle)
        self.inputs[handle] = given
        if kept is not None:
            self.kept[handle] = kept

    def step(self, plan: StepPlan) -> None:
        """Make a legal step; then sample tokens, and forget some of the requests that ended."""
        self.new_outputs(plan)
        result = self.both("KV-BATCH-1", f"{plan}", lambda s: s.batched.step(plan, s.outputs.given))
        first, second = (side.outputs for side in self.sides)
        self.equal("KV-BATCH-9", "slot mappings", first.slots, second.slots)
        self.equal("KV-BATCH-10", "block deltas", first.rows, second.rows)
        self.compare("KV-BATCH-1", f"after {plan}")
        for handle in chain(*map(listed, (plan.finished, plan.preempted))):
            self.forget_rows(handle)
        self.note_rows(result.num_deltas)
        new = set(listed(plan.new))
        entries = chain(*map(listed, (plan.decoding, plan.prefilling, plan.new)))
        for handle, num_tokens in zip(entries, result.num_scheduled_tokens, strict=True):
            self.num_granted += num_tokens > 0
            self.num_refused += num_tokens == 0
            if num_tokens:
                self.freed_alone -= {handle} & new
                self.sample(handle)
        gone = self.some(listed(plan.finished), 0.7)
        self.both("KV-BATCH-4", "unregister", lambda s: s.batched.unregister(gone))
        self.handles = [handle for handle in self.handles if handle not in gone]
        self.compare("KV-BATCH-12", "after sampling")

    def sample(self, handle: int) -> None:
        """Sample the step's tokens: accept some drafts, and append the next token."""
        request = self.sides[0].batched.request_of(handle)
        drafts = request.num_computed_tokens - request.num_tokens
        if drafts < 0:
            return
        right = self.random.randint(0, drafts)
        room = self.config.max_model_len_tokens - request.num_tokens
        tokens = self.tokens(min(right + 1, room))
        back = drafts - right
        self.both("KV-BATCH-12", "rewind", lambda s: s.batched.rewind([handle], back))
        self.append([handle], tokens, len(tokens))

    def append(self, handles: list[int], tokens: list[int], count: int = 1) -> None:
        """Append so many tokens to each request; to followed ones their hashes (KV-BATCH-14).

        Every third time by single calls.
        """
        self.num_appended += 1
        if self.num_appended % 3 == 0:
            self.drew[append_alone(self, handles, tokens, count)] += 1
            return
        if not self.kept:
            self.both("KV-BATCH-12", "append", lambda s: s.batched.append(handles, tokens, count))
            return
        kept = [self.kept[handle] for handle in handles]
        hashes = [
            block_hash
            for place, each in enumerate(kept)
            for block_hash in each.extend(tokens[count * place : count * (place + 1)])
        ]
        lengths = [len(each.tokens) for each in kept]
        self.both("KV-BATCH-14", "follow", lambda s: s.batched.follow(handles, lengths, hashes))

    def take_deltas(self) -> None:
        """Take the remaining rows, with room for all or not, and check the table if it is whole."""
        num_rows = self.random.choice((1, 3, 1000))
        for side in self.sides:
            side.outputs = Outputs(num_rows)

        def take(side: Side) -> int:
            return side.batched.take_deltas(side.outputs.given.block_deltas)  # type: ignore[arg-type]

        num_taken = self.both("KV-BATCH-11", "rows taken", take)
        first, second = (side.outputs for side in self.sides)
        self.equal("KV-BATCH-11", "block deltas", first.rows, second.rows)
        self.note_rows(num_taken)
        if num_rows > num_taken and Feature.STABLE_LISTS in self.features:
            for handle in self.handles:
                if handle not in self.freed_alone:
                    self.check_table(handle)

    def try_broken(self, plan: StepPlan) -> None:
        """Make every mistake: an error of the same type and field, and no effect."""
        for side in self.sides:
            side.state()  # the queues are empty now
        before = [side.state() for side in self.sides]
        idle, running = self.standing()
        longest, of = self.config.max_model_len_tokens, self.sides[0].batched.request_of
        room = [longest - of(handle).num_computed_tokens for handle in running]
        for broken in broken_plans(plan, idle, running, room):
            self.new_outputs(plan)
            self.fails(broken)
        short = self.lengths(plan, missing=1)
        if any(short):
            for side in self.sides:
                side.outputs = Outputs(0, short)
            self.fails(plan)
        for side, state in zip(self.sides, before, strict=True):
            self.equal("KV-BATCH-2", f"state after variants of {plan}", state, side.state())

    def fails(self, plan: StepPlan) -> None:
        """Check for the same error on both sides, since the plan is illegal."""

        def error_of(side: Side) -> object:
            try:
                return side.batched.step(plan, side.outputs.given)
            except KVSpecError as error:
                return type(error).__name__, getattr(error, "field", None)

        self.both("KV-BATCH-2", f"the error of {plan}", error_of)
        self.num_illegal += 1

    # Its plans.

    def standing(self) -> tuple[list[int], list[int]]:
        """Return the handles of requests that hold nothing, and of those under way."""
        first = self.sides[0]
        idle = []
        for handle in self.handles:
            request = first.batched.request_of(handle)
            if first.manager.get_blocks(request).is_empty and request.num_computed_tokens == 0:
                idle.append(handle)
        return idle, [handle for handle in self.handles if handle not in idle]

    def plan(self) -> StepPlan:
        """Draw a legal plan, with all kinds of entries and options."""
        random = self.random
        idle, running = self.standing()
        random.shuffle(running)
        finished = self.some(running, 0.12) + self.some(idle, 0.2)
        preempted = [h for h in self.some(running, 0.12) if h not in finished]
        going = {h: self.next_tokens(h) for h in running if h not in (*finished, *preempted)}
        full = [handle for handle, num_tokens in going.items() if num_tokens == 0]
        decoding = [h for h, n in going.items() if n > 0 and random.random() < 0.6]
        prefilling = [h for h, n in going.items() if n > 0 and h not in decoding]
        new = [handle for handle in self.some(idle, 0.7) if handle not in finished]
        can_draft = Feature.DRAFTING in self.features
        can_reserve = Feature.ADMISSION in self.features
        return StepPlan(
            finished=[*finished, *full],
            preempted=preempted,
            decoding=decoding,
            decode_tokens=array("q", [going[handle] for handle in decoding]),
            prefilling=prefilling,
            prefill_tokens=[going[handle] for handle in prefilling],
            new=array("i", new),
            max_new_tokens=random.choice((COUNT_MAX, 3, [random.randint(1, 9) for _ in new])),
            token_budget=random.choice((COUNT_MAX, 30, 8, 2)),
            num_lookahead_tokens=random.choice((0, 0, 2)) * can_draft,
            full_sequence_must_fit=can_reserve and random.random() < 0.3,
            reserved_blocks=random.choice((0, 0, 0, 2)) * can_reserve,
            stops_at_refusal=random.random() < 0.5,
            starts_step=random.random() < 0.9,
        )

    def next_tokens(self, handle: int) -> int:
        """Draw a running request's new tokens: a chunk, or the last token and drafts; 0 if full."""
        request = self.sides[0].batched.request_of(handle)
        left = request.num_tokens - request.num_computed_tokens
        drafts = self.random.choice((0, 0, 1, 3)) if Feature.DRAFTING in self.features else 0
        wanted = left + drafts if left <= 1 else self.random.randint(1, left)
        room = self.config.max_model_len_tokens - request.num_computed_tokens
        return max(0, min(wanted, room))

    def lengths(self, plan: StepPlan, *, missing: int = 0) -> list[int | None]:
        """Return the length of each group's mapping, less `missing`; None where it has none."""
        certain = sum(listed(plan.decode_tokens)) + sum(listed(plan.prefill_tokens))
        new = listed(plan.new)
        most = plan.max_new_tokens
        limits = [most] * len(new) if isinstance(most, int) else listed(most)
        requests = map(self.sides[0].batched.request_of, new)
        wanted = sum(min(n, r.num_tokens) for n, r in zip(limits, requests, strict=True))
        length = certain + min(wanted, max(0, plan.token_budget - certain)) - missing
        return [
            None if isinstance(spec, WITHOUT_SLOTS) or length < 0 else length
            for spec in self.config.managed_specs
        ]

    def new_outputs(self, plan: StepPlan) -> None:
        """Allocate outputs for a step: rows that suffice or not, mappings for some groups."""
        num_rows = self.random.choice((0, 2, 7, 400))
        lengths: list[int | None] | None = None
        if self.random.random() < 0.7:
            more = self.random.choice((0, 0, 3))
            lengths = [
                None if length is None or self.random.random() < 0.3 else length + more
                for length in self.lengths(plan)
            ]
        for side in self.sides:
            side.outputs = Outputs(num_rows, lengths)

    def request(self, name: str) -> RequestInput:
        """Draw the next request; hits of every second one are reported (KV-EVT-11)."""
        reports = self.num_requests % 2 == 1 and Feature.HIT_REPORTS in self.features
        return RequestInput(name, self.prompt(), reports_hits=reports)

    def prompt(self) -> list[int]:
        longest = self.config.max_model_len_tokens
        return self.tokens(self.random.choice((1, 3, 5, 9, 14, longest - 1, longest)))

    def tokens(self, num_tokens: int) -> list[int]:
        return [self.random.choice(TOKEN_IDS) for _ in range(num_tokens)]

    def some(self, values: Sequence[int], share: float) -> list[int]:
        """Draw about this share of the values, in their order."""
        return [value for value in values if self.random.random() < share]

    # Comparisons.

    @property
    def features(self) -> frozenset[Feature]:
        first, second = (side.implementation.capabilities.features for side in self.sides)
        return first & second

    def both(self, rule: str, what: str, call: Callable[[Side], Any]) -> Any:
        first, second = (call(side) for side in self.sides)
        self.equal(rule, what, first, second)
        return first

    def compare(self, rule: str, what: str) -> None:
        """Check that all that can be seen is the same."""
        self.both(rule, f"the state {what}", methodcaller("state", self.handles))
        for handle in self.handles:
            self.both(rule, f"request {handle} {what}", methodcaller("members", handle))

    def equal(self, rule: str, what: str, expected: object, got: object) -> None:
        if expected != got:
            raise WrongAnswer("batches_are_their_single_calls", rule, what, expected, got)

    # The table that rows make (KV-BATCH-10).

    def note_rows(self, num_rows: int) -> None:
        for number in range(num_rows):
            *place, block = self.sides[0].outputs.row(number)
            self.table[tuple(place)] = block

    def forget_rows(self, handle: int) -> None:
        """Forget the rows of a request that released everything."""
        self.freed_alone.discard(handle)
        self.table = {place: block for place, block in self.table.items() if place[0] != handle}

    def check_table(self, handle: int) -> None:
        """Check that the table equals both sides' block lists, wherever these are not null."""
        for side in self.sides:
            lists = side.manager.get_blocks(side.batched.request_of(handle)).to_lists()
            for group, blocks in enumerate(lists):
                for index, block in enumerate(blocks):
                    if block:
                        told = self.table.get((handle, group, index))
                        self.equal("KV-BATCH-10", "an entry of the table", block, told)
