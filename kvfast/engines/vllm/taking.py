"""The loop over vLLM's requests that takes in what a step sampled; see `loops`.

The twin is `kvfast._compiled.vllm_taking`, from this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvfast.engines.vllm import loops


class Taker:
    """Adds the sampled tokens of a step to the requests, and makes their outputs.

    `made` makes an output of tokens alone, `told` any other, with its place in the model's logprobs
    or pooled outputs, -1 for none; `ends` says whether the last token ends its request, `stopped`
    why. `cached` has blocks cached once their tokens are known; None: the next step does.
    `num_rewound`: counts of steps by drafts tried and accepted. `ended`: the seats
    of those that ended, in order.

    `in_flight`: vLLM counts the tokens of steps that were not updated, as from 0.26 on.
    `by_flight`: all others are final, as in 0.33; `drafts`: then it has blocks cached here, whether
    tokens were sampled ahead or not. `is_strict`: drafts of a discarded output are not taken back,
    as from 0.25 on. `prefilled` is called with a request's first output, and `let_go` with those
    that have images or sounds. `pooled`: the outputs of a model that pools, None for chunks; each
    ends its request.
    """

    def __init__(
        self,
        running: Any,
        preempted: Any,
        made: Callable[..., Any],
        told: Callable[..., Any],
        ends: Callable[[Any, int], bool],
        stopped: Callable[[Any, Any], Any],
        cached: Callable[[Any, int], None] | None,
        in_flight: bool,
        by_flight: bool,
        drafts: bool,
        is_strict: bool,
        prefilled: Callable[[Any], None] | None,
    ) -> None:
        self.running = running
        self.preempted = preempted
        self.made = made
        self.told = told
        self.ends = ends
        self.stopped = stopped
        self.cached = cached
        self.in_flight = in_flight
        self.by_flight = by_flight
        self.drafts = drafts
        self.is_strict = is_strict
        self.prefilled = prefilled
        self.let_go: Any = None
        self.pooled: Any = None
        self.num_rewound: dict[tuple[int, int], int] = {}
        self.ended: list[int] = []
        self.answers: dict[int, list[Any]] = {}
        self.client = -1
        self.of_client: list[Any] = []

    def take_all(
        self,
        seats: loops.Seats,
        names: dict[str, int],
        requests: dict[str, Any],
        sampled: list[list[int]],
        places: dict[str, int],
        drafts: dict[str, list[int]],
    ) -> dict[int, list[Any]]:
        """Return the outputs for each client. `seats`: exactly those of all running requests.

        `names`: tokens of each in the step; running requests in the order of their seats.
        """
        place = 0
        num_seats = len(seats.names)
        for name in names:
            new = sampled[places[name]] if sampled else []
            found = self.place_of(seats, name, place)
            if found < num_seats:
                place = found + 1
                seats.read_ahead(found)
                count = names[name]
                if self.take(seats, found, new, count, drafts, self.running, places[name]):
                    self.ended.append(found)
            elif name in requests:
                # Preempted in the meantime, or aborted.
                request = requests[name]
                alone = seats.nobody()
                alone.join([request], [0], [None])
                self.take(alone, 0, new, names[name], drafts, request.status, places[name])
        return self.answers

    def place_of(self, seats: loops.Seats, name: str, place: int) -> int:
        """Return where a request sits, from this place on; the number of seats if nowhere."""
        for i in range(place, len(seats.names)):
            if seats.names[i] is name:
                return i
        return len(seats.names)

    def take(
        self,
        seats: loops.Seats,
        i: int,
        new: list[int],
        count: int,
        drafts: dict[str, list[int]],
        status: Any,
        place: int,
    ) -> bool:
        """Give a request what was sampled for it; return whether it has ended."""
        one: dict[str, Any] = seats.members[i]
        is_stale = self.in_flight and self.land(one, count)
        is_running = status is self.running
        if not is_running and status > self.preempted:
            return False  # it was aborted in the meantime
        if is_stale and one["drop_stale_output"]:
            return False
        if self.let_go is not None and one["mm_features"]:
            self.let_go(seats.requests[i])
        num_sampled = len(new)
        if num_sampled == 0:
            if self.pooled is None or self.pooled[place] is None:
                return False
            self.answer(seats, i, new, status, True, place)
            return True
        is_discarded = self.cached is not None and one.get("async_tokens_to_discard", 0) > 0
        if drafts and seats.names[i] in drafts and not (is_discarded and self.is_strict):
            self.rewind(one, len(drafts[seats.names[i]]), num_sampled - 1, is_stale)
        if is_discarded:
            one["async_tokens_to_discard"] -= 1
            return False  # sampled before the cache was reset
        known: list[int] = seats.known[i]
        before = len(known)
        has_ended = self.append(seats, i, new)
        if not is_stale and (self.cached is not None or self.by_flight):
            self.settle(seats, i, before, num_sampled, len(new), is_running)
        self.answer(seats, i, new, status, has_ended, place)
        return has_ended

    def land(self, one: dict[str, Any], count: int) -> bool:
        """Land `count` tokens in flight; return whether they are from before a preemption."""
        flying: int = one["num_in_flight_tokens"]
        flying -= count
        one["num_in_flight_tokens"] = flying
        stale: int = one.get("num_stale_output_tokens", 0)  # since 0.27
        if stale <= 0:
            return False
        stale -= count
        one["num_stale_output_tokens"] = stale
        return True

    def rewind(self, one: dict[str, Any], num_drafts: int, num_right: int, is_stale: bool) -> None:
        """Take back the drafts that were wrong."""
        if num_drafts != num_right and not is_stale:
            for field in ("num_computed_tokens", "num_output_placeholders"):
                count: int = one[field]
                if count > 0:
                    one[field] = count - (num_drafts - num_right)
        pair = (num_drafts, num_right)
        self.num_rewound[pair] = self.num_rewound.get(pair, 0) + 1

    def append(self, seats: loops.Seats, i: int, new: list[int]) -> bool:
        """Append tokens up to one that ends the request, and drop those after it."""
        for number in range(len(new)):
            if seats.append(i, new[number]) and self.ends(seats.requests[i], seats.longest):
                del new[number + 1 :]
                return True
        return False

    def settle(
        self,
        seats: loops.Seats,
        i: int,
        before: int,
        num_sampled: int,
        num_kept: int,
        is_running: bool,
    ) -> None:
        """Update a request's counts for its tokens, and have blocks cached.

        It knew `before` tokens. The last step cached what was known then, and an update what was
        final: only what fills another block is cached now.
        """
        one: dict[str, Any] = seats.members[i]
        later: int = one["num_output_placeholders"]
        done: int = one["num_computed_tokens"]
        was_ahead = later > 0
        if self.by_flight:
            if num_kept < num_sampled:
                done -= num_sampled - num_kept
                one["num_computed_tokens"] = done
            if was_ahead:
                one["num_output_placeholders"] = later - num_sampled
            final = done - one["num_in_flight_tokens"]
        else:
            later -= num_kept
            one["num_output_placeholders"] = later
            final = done - later
        size = seats.hash_size
        if self.cached is None or size == 0 or not is_running:
            return
        if self.by_flight and not was_ahead and not self.drafts:
            return
        if seats.ahead > 0 or final // size > (before - 1) // size:
            self.cached(seats.requests[i], final)

    def answer(
        self, seats: loops.Seats, i: int, new: list[int], status: Any, has_ended: bool, place: int
    ) -> None:
        """Make a request's output, for its client; stop one that has ended."""
        request = seats.requests[i]
        plain = seats.plain(i)
        is_plain, at = plain > 0, place if plain < 0 else -1
        if not is_plain:
            one: dict[str, Any] = seats.members[i]
            if self.prefilled is not None and one["prefill_stats"] is not None:
                self.prefilled(request)
        reason = self.stopped(request, status) if has_ended else None
        if not is_plain and at < 0 and reason is None and self.becomes_plain(one):
            # Neither changes while it runs, but by updates that are not made here.
            is_plain = True
            seats.note_plain(i)
        client = seats.client(i)
        if client != self.client:
            self.client = client
            self.of_client = self.answers.setdefault(self.client, [])
        if is_plain and reason is None:
            self.of_client.append(self.made(seats.names[i], new))
        else:
            self.of_client.append(self.told(request, new, reason, at))

    def becomes_plain(self, one: dict[str, Any]) -> bool:
        return (
            not one["events"]
            and one["prefill_stats"] is None
            and one["stop_reason"] is None
            and one["trace_headers"] is None
            and not one["num_nans_in_logits"]
        )
