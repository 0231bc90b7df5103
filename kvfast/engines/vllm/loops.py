"""Loops over vLLM's requests: what planning a batched step does for each of them.

They read and write the dict of a request's members. Compiled, that takes a fraction of what asking
the object does; the twin is `kvfast._compiled.vllm_loops`, from this file.
"""

from __future__ import annotations

from array import array
from typing import Any

AHEAD = 32


class Seats:
    """Requests that run, in their order: vLLM's, their members, handles and kvfast's own.

    `computed_at`, `goal_at`: of each, computed tokens before the step, and how many it has with
    those that are sampled later. `ahead` has no meaning: what is read into it is in the processor's
    cache when it is needed, and reads do not wait for others.
    """

    def __init__(
        self, requests: list[Any], names: list[str], handles: list[int], mine: list[Any]
    ) -> None:
        self.requests = requests
        self.names = names
        self.handles = array("q", handles)
        self.mine = mine
        self.members: list[dict[str, Any]] = [vars(request) for request in requests]
        room = 8 * (len(requests) + 1)
        self.computed_at = memoryview(bytearray(room)).cast("q")
        self.goal_at = memoryview(bytearray(room)).cast("q")
        self.ahead = 0
        self.last_step: dict[str, int] = {}
        self.last_count = 0

    def choose(self, budget: int, longest: int, threshold: int, step: int) -> Chosen | None:
        """What each computes, decided as vLLM's scheduler does; None for what it must decide."""
        left = budget
        took: list[int] = []
        counts: list[int] = []
        computed: list[int] = []
        outputs: list[int] = []
        drafts: dict[str, list[int]] = {}
        most = same = 0
        for i in range(len(self.members)):
            if left == 0:
                break
            if i % AHEAD == 0:
                self.read_ahead(i, min(i + AHEAD, len(self.members)))
            one = self.members[i]
            spec: list[int] = one["spec_token_ids"]
            known: list[int] = one["_all_token_ids"]
            sampled: list[int] = one["_output_token_ids"]
            before: int = one["num_computed_tokens"]
            later: int = one["num_output_placeholders"]
            done = before
            if later > 0 and done + 2 - later >= one["num_prompt_tokens"] + one["max_tokens"]:
                continue  # what is sampled already ends it
            if step < one["next_decode_eligible_step"]:
                continue
            goal = len(known) + later
            count = goal + len(spec) - done
            if 0 < threshold < count:
                count = threshold
            count = min(count, left, longest - done)
            if count == 0:
                continue
            if count < 0:
                return None
            if len(spec) > 0 and done + count > goal:
                num_drafts = done + count - goal
                drafts[self.names[i]] = spec if len(spec) <= num_drafts else spec[:num_drafts]
            self.computed_at[len(took)] = done
            self.goal_at[len(took)] = goal
            took.append(i)
            counts.append(count)
            computed.append(before)
            outputs.append(len(sampled) + later)
            left -= count
            same = count if most == 0 or same == count else 0
            most = max(most, count)
        seats = self if len(took) == len(self.members) else self.only(took)
        return Chosen(seats, counts, same, most, computed, outputs, drafts, budget - left)

    def read_ahead(self, first: int, end: int) -> None:
        """Read what `choose` will read of these: all dicts, then all lists."""
        for i in range(first, end):
            one: dict[str, Any] = self.members[i]
            self.ahead ^= len(one)
        for i in range(first, end):
            one = self.members[i]
            known: list[int] = one["_all_token_ids"]
            self.ahead ^= len(known)

    def only(self, places: list[int]) -> Seats:
        """These of them."""
        seats = Seats(
            [self.requests[i] for i in places],
            [self.names[i] for i in places],
            [self.handles[i] for i in places],
            [self.mine[i] for i in places],
        )
        seats.computed_at, seats.goal_at = self.computed_at, self.goal_at
        return seats

    def scheduled(self, chosen: Chosen) -> dict[str, int]:
        """Tokens of each by its name, in a dict of its own."""
        if chosen.same == 0 or chosen.same != self.last_count:
            self.last_step = dict(zip(self.names, chosen.counts, strict=True))
            self.last_count = chosen.same
        return self.last_step.copy()

    def make_equal(self, hash_size: int, ahead: int, in_flight: bool) -> list[int]:
        """Tell kvfast the computed tokens; the places of those with hashes that it lacks.

        `ahead`: tokens behind a block that its hash covers. `in_flight`: vLLM counts these.
        """
        due: list[int] = []
        for i in range(len(self.mine)):
            mine = self.mine[i]
            one: dict[str, Any] = self.members[i]
            if mine.computed_now() != self.computed_at[i]:
                mine.num_computed_tokens = self.computed_at[i]
            if in_flight and mine.in_flight != one["num_in_flight_tokens"]:
                mine.num_in_flight_tokens = one["num_in_flight_tokens"]
            if hash_size > 0:
                known: list[int] = one["_all_token_ids"]
                if len(known) - ahead >= (mine.num_hashes + 1) * hash_size:
                    due.append(i)
        return due

    def read(self) -> None:
        """Note what `choose` would have, for requests that were chosen otherwise."""
        for i in range(len(self.members)):
            one = self.members[i]
            known: list[int] = one["_all_token_ids"]
            self.computed_at[i] = one["num_computed_tokens"]
            self.goal_at[i] = len(known) + one["num_output_placeholders"]

    def advance(
        self,
        counts: list[int],
        drafts: dict[str, list[int]],
        prefills: set[Any],
        placeholders: list[int] | None,
        eligible_at: int,
        in_flight: bool,
    ) -> None:
        """The requests as they are once the step is planned.

        `prefills`: those with more of the prompt to come. `placeholders`: what stands for drafts in
        asynchronous scheduling. `eligible_at`: the step that may compute them next; 0: any.
        `in_flight`: vLLM counts the tokens of steps that were planned and not updated.
        """
        for i in range(len(self.members)):
            one = self.members[i]
            after = self.computed_at[i]
            after += counts[i]
            one["num_computed_tokens"] = after
            if in_flight:
                flying: int = one["num_in_flight_tokens"]
                flying += counts[i]
                one["num_in_flight_tokens"] = flying
            if one["spec_token_ids"]:
                one["spec_token_ids"] = []
            is_chunk = after < self.goal_at[i]
            if one["is_prefill_chunk"] is not is_chunk:
                one["is_prefill_chunk"] = is_chunk
            if is_chunk:
                continue
            if prefills:
                prefills.discard(self.requests[i])
            if placeholders is not None:
                later: int = one["num_output_placeholders"]
                later += 1
                if drafts and self.names[i] in drafts:
                    later += len(drafts[self.names[i]])
                one["num_output_placeholders"] = later
                one["spec_token_ids"] = placeholders
                if eligible_at > 0:
                    one["next_decode_eligible_step"] = eligible_at

    def granted(
        self, rows: memoryview[Any], num_rows: int, num_groups: int
    ) -> list[tuple[list[int], ...] | None]:
        """The blocks that each got, None for none, from the rows that a call of kvfast wrote."""
        got: list[tuple[list[int], ...] | None] = [None] * len(self.names)
        handles = memoryview(self.handles)
        place = -1
        last = -1
        mine: tuple[list[int], ...] = ()
        for k in range(num_rows):
            if rows[k, 0] != last:
                last = rows[k, 0]
                place += 1
                while handles[place] != last:
                    place += 1
                mine = tuple([[] for _ in range(num_groups)])
                got[place] = mine
            blocks: list[int] = mine[rows[k, 1]]
            blocks.append(rows[k, 3])
        return got


class Chosen:
    """What a step computes: those of `seats`, with new tokens of each.

    `same`: the count that all have, 0 where they differ; `most`: the largest. `computed`: before
    the step. `outputs`: tokens that were sampled, or will be. `drafts`: of those that have any.
    """

    def __init__(
        self,
        seats: Seats,
        counts: list[int],
        same: int,
        most: int,
        computed: list[int],
        outputs: list[int],
        drafts: dict[str, list[int]],
        total: int,
    ) -> None:
        self.seats = seats
        self.counts = counts
        self.same = same
        self.most = most
        self.computed = computed
        self.outputs = outputs
        self.drafts = drafts
        self.total = total
