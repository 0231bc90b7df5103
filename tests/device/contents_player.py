"""Random operations on a manager with pools under it: whatever may still be read is compared.

A round: requests arrive; some are forked, swapped in, loaded, taken over in part; everything that
running requests may still read is checked; a step is planned, computed and checked through the
tables on the device; drafts are sampled. The moves between steps are in `contents_moves`.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import torch

from kvfast.device import Backend, DeviceStep
from kvspec.batched import StepOutput, StepPlan
from kvspec.interface import Implementation
from kvspec.request import RequestInput
from kvspec.specs import LayerSpec, MambaSpec
from tests.device.contents import Case, WrongContentError, fingerprints, first_read
from tests.device.contents_moves import LONGEST, Moves, One


def entry(spec: LayerSpec, num_computed: int) -> int:
    return -(-num_computed // spec.block_size) - 1


def states_of(spec: LayerSpec, start: int, main: int, end: int) -> list[tuple[int, int]]:
    """Return the states that a step from `start` to `end` tokens keeps: (entry, tokens).

    Tokens behind `main` are drafts: their states are behind the running one, one each (KV-MAMBA-4).
    """
    running = entry(spec, main)
    size = spec.block_size
    first = running if spec.is_aligned else start // size
    kept = [(index, min((index + 1) * size, main)) for index in range(first, running + 1)]
    return kept + [(running + number, main + number) for number in range(1, end - main + 1)]


class States(Moves):
    """Moves and steps of states.

    `state.0` is another one after every token; `state.1` stays as it was after the first, so it is
    right only if it was carried from block to block.
    """

    def compute_states(self, group: int, spec: LayerSpec, granted: list[tuple[One, int]]) -> None:
        carried, before, after = list[tuple[int, int]](), [], []
        for one, num in granted:
            known, end = self.prints_of(one), one.request.num_computed_tokens
            blocks = self.manager.get_blocks(one.request).groups[group]
            old = 0
            if end > num:
                old = blocks[entry(spec, end - num)]
                before.append((known[end - num - 1], known[0], old))
            for index, tokens in states_of(spec, end - num, min(end, one.request.num_tokens), end):
                if index >= len(blocks) or not blocks[index]:
                    raise WrongContentError(f"no block for the state after {tokens} tokens")
                if not old:
                    self.contents.write_states(group, "state.1", known[:1], [blocks[index]])
                elif old != blocks[index]:
                    carried.append((old, blocks[index]))
                after.append((known[tokens - 1], known[0], one.handle, index, blocks[index]))
        for number in (0, 1):
            prints, last = [state[number] for state in before], [state[2] for state in before]
            self.contents.check_states("the last state", group, f"state.{number}", prints, last)
        self.carry(group, carried)
        self.contents.write_states(
            group, "state.0", [state[0] for state in after], [state[4] for state in after]
        )
        table = self.tables.table(group).tolist()
        places = [table[handle][index] for _, _, handle, index, _ in after]
        for number in (0, 1):
            prints = [state[number] for state in after]
            self.contents.check_states("a state", group, f"state.{number}", prints, places)

    def carry(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        self.pages.copy_blocks([old for old, _ in pairs], [new for _, new in pairs], group=group)
        self.counts["states carried"] += len(pairs)

    def settle(self, one: One, num_accepted: int) -> None:
        """Put the states after accepted drafts where those of computed tokens are.

        The state at a boundary that drafts passed first: the last state may go where it was.
        """
        main = one.request.num_tokens
        for group, spec in enumerate(self.case.specs):
            if not spec.is_state or not num_accepted:
                continue
            blocks = self.manager.get_blocks(one.request).groups[group]
            running, size, end = entry(spec, main), spec.block_size, main + num_accepted
            boundaries = range((main // size + 1) * size, end, size)
            for tokens in (*boundaries, end):
                source, place = blocks[running + tokens - main], blocks[entry(spec, tokens)]
                if source != place:
                    self.carry(group, [(source, place)])
                self.counts["states of drafts"] += 1


class Player(States):
    """One run. `counts` says what happened in it.

    `max_alive`: requests at once, but for forks. `longest`: tokens of a prompt.
    """

    max_alive = 4
    longest = LONGEST - 6

    def __init__(
        self, case: Case, implementation: Implementation, seed: int, backend: Backend
    ) -> None:
        super().__init__(case, implementation, Random(seed), backend)
        num_texts = 2 if case.hash_block_size else 9  # many meet in a block that is known in part
        first = [self.random.randrange(100) for _ in range(num_texts)]
        self.texts = [self.continued([token], self.longest) for token in first]

    def play(self, num_rounds: int) -> None:
        for _ in range(num_rounds):
            self.round()

    def round(self) -> None:
        while len(self.alive) < self.max_alive and self.random.random() < 0.6:
            self.arrive()
        self.move()
        self.check_all("before a step")
        self.step(self.plan())

    # Requests.

    def continued(self, tokens: Sequence[int], length: int) -> list[int]:
        result = list(tokens)[:length]
        while len(result) < length:
            usual = fingerprints(None, result)[-1] % 2
            result.append(usual if self.random.random() < 0.98 else 2)
        return result

    def arrive(self) -> None:
        text = self.random.choice(self.texts)
        length = self.random.choice([1, 4, 5, 8, 9, 12, 13, 17, self.random.randint(1, len(text))])
        self.add(self.random.choice([None, None, None, "salt"]), text[:length])

    def add(self, salt: str | None, tokens: Sequence[int]) -> One:
        self.num_requests += 1
        given = RequestInput(f"r{self.num_requests}", tokens, cache_salt=salt)
        request = self.implementation.make_request(self.manager, given)
        one = One(self.batched.register(request), request, salt)
        self.alive.append(one)
        return one

    # What may be read.

    def check_all(self, when: str) -> None:
        for group, spec in enumerate(self.case.specs):
            prints, places, span = list[int](), list[int](), self.case.span(group)
            for one in self.running:
                blocks = self.manager.get_blocks(one.request).groups[group]
                known = self.prints_of(one)[: one.request.num_computed_tokens]
                if spec.is_state:
                    places.append(blocks[entry(spec, len(known))])
                    prints.append(known[-1])
                    continue
                first = first_read(spec, len(known))
                for position in range(first, len(known)):
                    block = blocks[position // span]
                    if not block:
                        raise WrongContentError(f"{when}: no block for token {position}")
                    places.append(block * span + position % span)
                prints += known[first:]
            self.counts["tokens read"] += len(prints)
            if spec.is_state:
                self.contents.check_states(when, group, "state.0", prints, places)
            else:
                self.contents.check(when, group, prints, places)

    # A step.

    def plan(self) -> StepPlan:
        random, finished, preempted = self.random, list[One](), list[One]()
        for one in self.running:
            if not self.num_next(one) or random.random() < 0.15:
                finished.append(one)
                if random.random() < 0.3:
                    self.pop(one)
            elif random.random() < 0.15:
                preempted.append(one)
                if random.random() < 0.6:
                    self.swap_out(one)
        going = [one for one in self.running if one not in (*finished, *preempted)]
        going = [one for one in going if random.random() < 0.9]
        random.shuffle(going)
        num = [self.num_next(one) for one in going]
        cut = random.randint(0, len(going))
        fresh = [one for one in self.alive if not one.request.num_computed_tokens]
        new = [one for one in fresh if one not in finished and not one.swapped]
        self.gone = finished
        share = 0.7 if self.host is None else 0.35  # the others may find something on the host
        return StepPlan(
            finished=[one.handle for one in finished],
            preempted=[one.handle for one in preempted],
            decoding=[one.handle for one in going[:cut]],
            decode_tokens=num[:cut],
            prefilling=[one.handle for one in going[cut:]],
            prefill_tokens=num[cut:],
            new=[one.handle for one in new if random.random() < share],
            max_new_tokens=random.choice([LONGEST, 3, 8]),
            token_budget=random.choice([100, 30, 12]),
            num_lookahead_tokens=random.choice([0, 0, 2]) if self.case.can_draft else 0,
            full_sequence_must_fit=random.random() < 0.3,
        )

    def num_next(self, one: One) -> int:
        request = one.request
        left = request.num_tokens - request.num_computed_tokens
        room = LONGEST - request.num_computed_tokens
        wanted = self.random.randint(1, max(1, left))
        for spec in self.case.specs:
            # A step ends where a state is kept (align mode), unless it began there.
            if spec.is_aligned and request.num_computed_tokens % spec.block_size:
                inside = request.num_computed_tokens % spec.block_size
                wanted = min(wanted, spec.block_size - inside)
        if left == 1 and self.case.can_draft:
            wanted += min(self.random.choice([0, 0, 1, 3]), self.case.max_drafts)
        wanted = max(0, min(wanted, room))
        num_drafts = max(0, wanted - left)
        known = list(request.token_ids)
        one.drafts = self.continued(known, len(known) + num_drafts)[len(known) :]
        return wanted

    def step(self, plan: StepPlan) -> None:
        result = self.batched.step(plan, StepOutput(self.rows))
        by_handle = {one.handle: one for one in self.alive}
        entries = [*plan.decoding, *plan.prefilling, *plan.new]  # type: ignore[misc] # lists, all of them
        for handle in plan.new:  # type: ignore[union-attr] # a list
            by_handle[handle].drafts = []
        pairs = zip(entries, result.num_scheduled_tokens, strict=True)
        granted = [(by_handle[handle], num) for handle, num in pairs if num]
        self.tables.read_rows(self.batched, [one.handle for one, _ in granted])
        told = self.tables.step(plan, result, self.rows)
        if self.host is not None:
            self.host.before_step(plan, result, self.rows)
        for transfer in self.transfers:
            transfer.wait()
        self.transfers.clear()
        self.pages.zero_blocks(self.manager.take_new_block_ids())
        self.counts["hit tokens"] += sum(result.hit_tokens)
        self.counts["refused"] += len(entries) - len(granted)
        self.counts["preempted"] += len(plan.preempted)
        self.compute(granted, told)
        self.sample([one for one, _ in granted])
        if self.host is not None:
            self.host.after_step([one.handle for one, _ in granted])
        self.batched.unregister(plan.finished)
        for one in self.gone:
            self.alive.remove(one)
            self.release_swapped(one)
        self.gone = []

    def compute(self, granted: list[tuple[One, int]], told: DeviceStep) -> None:
        """Write what the step computes, then read what its attention reads, by the tables."""
        for group, spec in enumerate(self.case.specs):
            if spec.is_state:
                self.compute_states(group, spec, granted)
                continue
            written, read, slots = list[int](), list[int](), [torch.zeros(0, dtype=torch.int64)]
            table = self.tables.table(group).cpu()
            for one, num in granted:
                known = self.prints_of(one)[: one.request.num_computed_tokens]
                first = first_read(spec, len(known) - num)
                written += known[len(known) - num :]
                read += known[first:]
                at = torch.arange(first, len(known))
                size = self.case.span(group)
                slots.append(table[one.handle][at // size].long() * size + at % size)
            mapping = told.slots[group]
            assert mapping is not None
            self.contents.write(group, written, mapping)
            self.contents.check("in a step", group, read, torch.cat(slots).to(mapping.device))

    def sample(self, granted: list[One]) -> None:
        for one in granted:
            request = one.request
            num_drafts = request.num_computed_tokens - request.num_tokens
            if num_drafts < 0:
                continue
            if num_drafts and self.case.has(MambaSpec) and self.random.random() < 0.5:
                # As an engine that runs ahead does, before it knows (KV-MAMBA-5).
                self.manager.remove_skipped_blocks(request, request.num_computed_tokens)
            right = self.random.randint(0, num_drafts)
            self.settle(one, right)
            known = [*request.token_ids, *one.drafts[:right]]
            known = self.continued(known, min(len(known) + 1, LONGEST))
            new = known[request.num_tokens :]
            back = num_drafts - right
            self.batched.rewind([one.handle], back)
            self.tables.rewind([one.handle], back)
            self.batched.append([one.handle], new, len(new))
            self.counts["drafts rejected"] += back
            one.drafts = []
