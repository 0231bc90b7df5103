"""Loops over vLLM's requests: what planning a batched step does for each of them.

They read and write the dict of a request's members. Compiled, that takes a fraction of what asking
the object does; the twin is `kvfast._compiled.vllm_loops`, from this file.
"""

from __future__ import annotations

from array import array
from typing import Any

from kvfast._core import hot

AHEAD = 32
PROMPT, ITEMS, LAST, LACKS, DONE, GOAL, LATER, FLYING = range(8)
TOOK, DUE, STOP, END, ALWAYS, PLAIN, CLIENT, WIDTH = range(8, 16)
"""Columns of `Seats.notes`, in tokens unless stated otherwise.

DUE: length at which vLLM's hasher has something to hash. STOP: length that may end the request.
END: the token that ends it, or -1. ALWAYS: 1 if any may. PLAIN: 1 if its outputs are known to be
tokens alone, -1 if it wants logprobs, or pools. CLIENT: the number of its client. PROMPT: its
tokens before its first output. ITEMS: the end of its last image or sound, or 0. LAST: as STOP, were
no sequence too long. LACKS: length at which kvfast may lack a hash. Of the step: DONE: computed
before. GOAL: with those that are sampled later; LATER: how many these are. FLYING: those in flight.
TOOK, of row k: the place of the kth request that it computes.
"""


class Seats:
    """Requests that run, in their order: vLLM's, their members, handles and kvfast's own.

    They are kept from step to step: `drop` and `keep` are for those that leave, `join` for those
    that come. `known`, `sampled`, `hashes`: the lists of each, which vLLM never replaces; `stops`:
    further tokens that end it. `notes`: a row of each, which holds from when it joined, but for
    what is of the step.

    `longest`: tokens that a sequence may have. `hash_size`: tokens of a block that is hashed, 0
    without caching; `ahead`: tokens after a block that its hash covers. `has_drafts`, `has_later`:
    whether requests may have drafts, and tokens that are sampled later (async scheduling). `each`:
    tokens that a step samples beside drafts: 1, or 0 where the model pools. `in_flight`: vLLM
    counts the tokens of steps that were planned and not updated. `staggers`: a request may have to
    skip a step after its decode. `split` cuts a chunk where a state has to be kept, if any.
    `batch`: kvfast's steps, of which the handles are. `touched`: of what was read ahead.
    """

    def __init__(
        self, longest: int, hash_size: int, ahead: int, has_drafts: bool, has_later: bool, each: int
    ) -> None:
        self.longest, self.each = longest, each
        self.hash_size, self.ahead = hash_size, ahead
        self.has_drafts, self.has_later = has_drafts, has_later
        self.requests: list[Any] = []
        self.names: list[str] = []
        self.handles = array("q")
        self.mine: list[Any] = []
        self.members: list[dict[str, Any]] = []
        self.known: list[list[int]] = []
        self.sampled: list[list[int]] = []
        self.hashes: list[list[bytes]] = []
        self.stops: list[Any] = []
        self.notes = memoryview(bytearray(8 * WIDTH)).cast("q", [1, WIDTH])
        self.in_flight = self.staggers = False
        self.split: Any = None
        self.batch: Any = None
        self.last_step: dict[str, int] = {}
        self.touched = self.last_count = 0

    def nobody(self) -> Seats:
        """Seats of the same scheduler, without requests."""
        sizes = self.longest, self.hash_size, self.ahead
        made = Seats(*sizes, self.has_drafts, self.has_later, self.each)
        made.in_flight = self.in_flight
        return made

    def join(self, requests: list[Any], handles: list[int], mine: list[Any]) -> None:
        first = len(self.requests)
        self.requests += requests
        self.handles.extend(handles)
        self.mine += mine
        self.make_room()
        for i in range(first, len(self.requests)):
            one: dict[str, Any] = vars(self.requests[i])
            self.members.append(one)
            self.names.append(one["request_id"])
            self.known.append(one["_all_token_ids"])
            self.sampled.append(one["_output_token_ids"])
            self.hashes.append(one["block_hashes"])
            self.stops.append(None)
            self.last_step[self.names[i]] = self.last_count
            self.note(i)

    def make_room(self) -> None:
        old, number = self.notes, 2 * len(self.requests)
        if number > 2 * len(old):
            self.notes = memoryview(bytearray(8 * WIDTH * number)).cast("q", [number, WIDTH])
            for i in range(len(old)):
                for column in range(WIDTH):
                    self.notes[i, column] = old[i, column]

    def note(self, i: int) -> None:
        """Note what stays as it is while a request runs."""
        one, notes = self.members[i], self.notes
        prompt = len(self.known[i]) - len(self.sampled[i])
        params = one["sampling_params"]
        notes[i, PROMPT] = prompt
        notes[i, LAST] = prompt + one["max_tokens"]
        notes[i, PLAIN] = -(params is None or params.num_logprobs is not None)
        if params is not None:  # else it pools
            end = params._eos_token_id
            notes[i, STOP] = min(self.longest, notes[i, LAST])
            notes[i, END] = -1 if end is None else end
            notes[i, ALWAYS] = params.repetition_detection is not None
            self.stops[i] = params.stop_token_ids or None
        places = [each.mm_position for each in one["mm_features"] or ()]
        notes[i, ITEMS] = max([place.offset + place.length for place in places], default=0)
        notes[i, CLIENT] = one["client_index"]
        notes[i, LACKS] = 0
        self.note_due(i)

    def note_due(self, i: int) -> None:
        self.notes[i, DUE] = (len(self.hashes[i]) + 1) * self.hash_size + self.ahead

    def append(self, i: int, token: int) -> bool:
        """Append a token to a request; return whether that may end it."""
        known: list[int] = self.known[i]
        outputs: list[int] = self.sampled[i]
        notes, stops, number = self.notes, self.stops[i], token
        outputs.append(token)
        known.append(token)
        # vLLM asks its hasher for each token, and mostly there is nothing to hash.
        if len(known) >= notes[i, DUE]:
            self.requests[i].update_block_hashes()
            self.note_due(i)
        return (
            len(known) >= notes[i, STOP]
            or number == notes[i, END]
            or notes[i, ALWAYS] > 0
            or (stops is not None and token in stops)
        )

    def plain(self, i: int) -> int:
        return self.notes[i, PLAIN]

    def client(self, i: int) -> int:
        return self.notes[i, CLIENT]

    def note_plain(self, i: int) -> None:
        self.notes[i, PLAIN] = 1

    def forget_plain(self) -> None:
        """Forget which outputs are tokens alone, after an update made elsewhere."""
        for i in range(len(self.requests)):
            self.notes[i, PLAIN] = min(self.notes[i, PLAIN], 0)

    def drop(self, place: int, forgotten: set[str]) -> None:
        """Take away the seat of one that left; see `keep`."""
        name = self.names[place]
        self.last_step.pop(name, None)
        forgotten.discard(name)
        del self.requests[place], self.names[place], self.handles[place], self.mine[place]
        del self.members[place], self.known[place], self.sampled[place], self.hashes[place]
        del self.stops[place]
        for i in range(place, len(self.requests)):
            for column in range(WIDTH):
                self.notes[i, column] = self.notes[i + 1, column]

    def keep(self, running: list[Any], forgotten: set[str]) -> int:
        """Drop the seats of requests that left; return how many of `running` have the first seats.

        New ones run after all others; where they do not, fewer seats are kept. `forgotten`: names
        that lost their handles since the last call, whose seats are dropped; empty afterwards.
        """
        place = 0
        while place < len(self.requests):
            if place == len(running):
                self.drop(len(self.requests) - 1, forgotten)
            elif self.requests[place] is running[place]:
                place += 1
            else:
                self.drop(place, forgotten)
        if forgotten:
            back = [i for i in range(len(self.names)) if self.names[i] in forgotten]
            while back and len(self.names) > back[0]:  # freed, and back in its place
                self.drop(len(self.names) - 1, forgotten)
            forgotten.clear()
        return len(self.requests)

    # What a step computes.

    def choose(self, budget: int, threshold: int, step: int) -> Chosen | None:
        """Choose what each computes, as vLLM's scheduler does; None if that must decide."""
        chosen, left = Chosen(self), budget
        counts, drafts = chosen.counts, chosen.drafts
        most = same = num_drafts = later = 0
        for i in range(len(self.members)):
            if left == 0:
                break
            self.read_ahead(i)
            one = self.members[i]
            before: int = one["num_computed_tokens"]
            done = before
            if self.has_later:
                later = one["num_output_placeholders"]
                if later > 0 and done + 2 - later >= self.notes[i, LAST]:
                    continue  # what is sampled already ends it
                if self.staggers and step < one["next_decode_eligible_step"]:
                    continue
            known: list[int] = self.known[i]
            goal = len(known) + later
            count = goal - done
            if self.has_drafts:
                spec: list[int] = one["spec_token_ids"]
                count += len(spec)
            if 0 < threshold < count:
                count = threshold
            count = min(count, left, self.longest - self.each - done)
            if count < 0 or done < self.notes[i, ITEMS]:
                return None
            if self.split is not None and done < max(one["num_prompt_tokens"], len(known) - 1):
                count = self.split(self.requests[i], count)
            if count == 0:
                continue
            if self.has_drafts and len(spec) > 0 and done + count > goal:
                num_drafts = done + count - goal
                drafts[self.names[i]] = spec if len(spec) <= num_drafts else spec[:num_drafts]
            self.notes[i, DONE], self.notes[i, GOAL], self.notes[i, LATER] = done, goal, later
            if self.in_flight:
                self.notes[i, FLYING] = one["num_in_flight_tokens"]
            self.notes[len(counts), TOOK] = i
            chosen.skip_to(i)
            counts.append(count)
            chosen.computed.append(before)
            chosen.outputs.append(goal - self.notes[i, PROMPT])
            left, most = left - count, max(most, count)
            same = count if len(counts) == 1 or same == count else 0
        chosen.same, chosen.most, chosen.total = same, most, budget - left
        chosen.skip_to(len(self.names))
        chosen.names, chosen.handles = chosen.those(self.names), chosen.those(self.handles)
        return chosen

    def read_ahead(self, first: int) -> None:
        """Read what is needed soon of every so many; the reads do not wait for each other."""
        end = min(first + AHEAD, len(self.members)) if first % AHEAD == 0 else first
        for i in range(first, end):
            one: dict[str, Any] = self.members[i]
            known: list[int] = self.known[i]
            self.touched ^= len(one) ^ len(known)

    def scheduled(self, chosen: Chosen) -> dict[str, int]:
        """Return the tokens of each by its name, in a new dict."""
        if chosen.same == 0:
            return dict(zip(chosen.names, chosen.counts, strict=True))
        if chosen.same != self.last_count:
            self.last_step = dict.fromkeys(self.names, chosen.same)
            self.last_count = chosen.same
        found = self.last_step.copy()
        for place in chosen.skipped:
            del found[self.names[place]]
        return found

    def make_equal(self, chosen: Chosen) -> tuple[list[int], list[int], list[bytes]]:
        """Update kvfast's computed tokens; return the hashes that it lacks.

        These are the handles of their requests, the tokens of each, and the hashes of all.
        """
        due: list[int] = []
        num_tokens: list[int] = []
        hashes: list[bytes] = []
        notes, fields = self.notes, self.batch.calls.registry.fields
        handles = memoryview(chosen.handles)
        for k in range(len(chosen.counts)):
            i = notes[k, TOOK]
            if fields[hot.STRIDE * handles[k] + hot.COMPUTED] != notes[i, DONE]:
                self.mine[i].num_computed_tokens = notes[i, DONE]
            if self.in_flight:
                mine = self.mine[i]
                if mine.in_flight != notes[i, FLYING]:
                    mine.num_in_flight_tokens = notes[i, FLYING]
            length = notes[i, GOAL] - notes[i, LATER]
            if self.hash_size > 0 and length >= notes[i, LACKS]:
                mine = self.mine[i]
                first, end = mine.num_hashes, (length - self.ahead) // self.hash_size
                notes[i, LACKS] = (max(first, end) + 1) * self.hash_size + self.ahead
                if end > first:
                    due.append(handles[k])
                    num_tokens.append(length)
                    hashes += self.hashes[i][first:end]
        return due, num_tokens, hashes

    def read(self, first: int, place: int) -> None:
        """Note what `choose` would have, of all seats from `first` on, after `place` others."""
        notes = self.notes
        for i in range(first, len(self.members)):
            one = self.members[i]
            notes[place + i - first, TOOK] = i
            notes[i, DONE] = one["num_computed_tokens"]
            notes[i, LATER] = one["num_output_placeholders"]
            notes[i, GOAL] = len(self.known[i]) + notes[i, LATER]
            if self.in_flight:
                notes[i, FLYING] = one["num_in_flight_tokens"]

    def advance(
        self,
        counts: list[int],
        drafts: dict[str, list[int]],
        prefills: set[Any],
        placeholders: list[int] | None,
        eligible_at: int,
    ) -> None:
        """Advance the requests that it computes to their state after planning the step.

        `prefills`: those with more of the prompt to come. `placeholders`: placeholders of drafts in
        asynchronous scheduling. `eligible_at`: the step that may compute them next; 0: any.
        """
        for k in range(len(counts)):
            i = self.notes[k, TOOK]
            one = self.members[i]
            count = counts[k]
            after = self.notes[i, DONE] + count
            one["num_computed_tokens"] = after
            if self.in_flight:
                one["num_in_flight_tokens"] = self.notes[i, FLYING] + count
            if self.has_drafts and one["spec_token_ids"]:
                one["spec_token_ids"] = []
            is_chunk = after < self.notes[i, GOAL]
            if one["is_prefill_chunk"] is not is_chunk:
                one["is_prefill_chunk"] = is_chunk
            if is_chunk:
                continue
            if prefills:
                prefills.discard(self.requests[i])
            if placeholders is not None:
                later = self.notes[i, LATER] + self.each
                if drafts and self.names[i] in drafts:
                    later += len(drafts[self.names[i]])
                one["num_output_placeholders"] = later
                if self.has_drafts:
                    one["spec_token_ids"] = placeholders
                if eligible_at > 0:
                    one["next_decode_eligible_step"] = eligible_at


class Chosen:
    """The requests of `seats` that a step computes. `names`: a separate list.

    `skipped`: the places of the others. `same`: the count that all have, 0 where they differ;
    `most`: the largest. `computed`: before the step. `outputs`: tokens that were sampled, or will
    be. `drafts`: of those that have any.
    """

    def __init__(self, seats: Seats) -> None:
        self.seats, self.names, self.handles = seats, seats.names, seats.handles
        self.counts: list[int] = []
        self.computed: list[int] = []
        self.outputs: list[int] = []
        self.skipped: list[int] = []
        self.drafts: dict[str, list[int]] = {}
        self.same = self.most = self.total = 0

    def skip_to(self, place: int) -> None:
        """Note that the others before this place are skipped."""
        while (next_place := len(self.counts) + len(self.skipped)) < place:
            self.skipped.append(next_place)

    def those(self, values: Any) -> Any:
        """Return, of the values of all seats, a list or an array, those of the chosen."""
        found = values[: len(self.counts) + len(self.skipped)]
        for place in reversed(self.skipped):
            del found[place]
        return found

    def requests(self) -> Any:
        return self.those(self.seats.requests)

    def granted(
        self, rows: memoryview[Any], num_rows: int, num_groups: int
    ) -> list[tuple[list[int], ...] | None]:
        """Return the blocks that each got, None for none, from the rows that kvfast wrote."""
        got: list[tuple[list[int], ...] | None] = [None] * len(self.names)
        handles = memoryview(self.handles)
        place = last = -1
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
