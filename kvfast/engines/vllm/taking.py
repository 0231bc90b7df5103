"""The loop over vLLM's requests that takes in what a step sampled; see `loops`.

The twin is `kvfast._compiled.vllm_taking`, from this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvfast.engines.vllm import loops

AHEAD = 32  # as in loops


class Taker:
    """Takes what was sampled in a step into the requests, and makes what each answers.

    `made` makes an answer of tokens alone, `told` any other; `ends` says whether the last token
    ends its request, `stopped` why. `cached` has blocks cached once their tokens are known; None:
    the next step does. `num_rewound`: how often so many drafts were tried, and so many right.

    `in_flight`: vLLM counts the tokens of steps that were not updated, as 0.33 does. `drafts`: then
    it has blocks cached here, whether tokens were sampled ahead or not. `ahead`: tokens behind a
    block that its hash covers. `prefilled` is called where a request answers for the first time.
    """

    def __init__(
        self,
        running: Any,
        preempted: Any,
        hash_size: int,
        longest: int,
        made: Callable[..., Any],
        told: Callable[..., Any],
        ends: Callable[[Any, int], bool],
        stopped: Callable[[Any, Any], Any],
        encoded: Callable[[Any], None],
        cached: Callable[[Any, int], None] | None,
        in_flight: bool,
        drafts: bool,
        ahead: int,
        prefilled: Callable[[Any], None] | None,
    ) -> None:
        self.running = running
        self.preempted = preempted
        self.hash_size = hash_size
        self.longest = longest
        self.made = made
        self.told = told
        self.ends = ends
        self.stopped = stopped
        self.encoded = encoded
        self.cached = cached
        self.in_flight = in_flight
        self.drafts = drafts
        self.ahead = ahead
        self.prefilled = prefilled
        self.num_rewound: dict[tuple[int, int], int] = {}

    def take_all(
        self,
        seats: loops.Seats,
        names: dict[str, int],
        requests: dict[str, Any],
        sampled: list[list[int]],
        places: dict[str, int],
        drafts: dict[str, list[int]],
    ) -> dict[int, list[Any]]:
        """The answers for each client. Those of `seats`, in their order, are found sooner."""
        answers: dict[int, list[Any]] = {}
        place = 0
        num_seats = len(seats.requests)
        for name in names:
            request = requests.get(name)
            if request is None:
                continue
            if place < num_seats and request is seats.requests[place]:
                if place % AHEAD == 0:
                    seats.read_ahead(place, min(place + AHEAD, num_seats))
                one: dict[str, Any] = seats.members[place]
                place += 1
            else:
                one = request.__dict__
            is_stale = self.in_flight and self.land(one, names[name])
            status = one["status"]
            if status is not self.running and status > self.preempted:
                continue  # it was aborted in the meantime
            if is_stale and one["drop_stale_output"]:
                continue
            new: list[int] = sampled[places[name]]
            if drafts and new and name in drafts:
                self.rewind(one, len(drafts[name]), len(new) - 1, is_stale)
            if one["mm_features"]:
                self.encoded(request)
            if not new:
                continue
            if (
                not self.in_flight
                and self.cached is not None
                and one["async_tokens_to_discard"] > 0
            ):
                one["async_tokens_to_discard"] -= 1
                continue  # sampled before the cache was reset
            before = len(one["_all_token_ids"])
            num_sampled = len(new)
            has_ended = self.take(request, one, new)
            if not is_stale:
                self.settle(request, one, before, num_sampled, len(new), status is self.running)
            if self.prefilled is not None and one["prefill_stats"] is not None:
                self.prefilled(request)
            answer = self.answer(request, one, name, new, status, has_ended)
            client = one["client_index"]
            if client in answers:
                answers[client].append(answer)
            else:
                answers[client] = [answer]
        return answers

    def land(self, one: dict[str, Any], count: int) -> bool:
        """So many tokens are no longer in flight; whether they are of before a preemption."""
        flying: int = one["num_in_flight_tokens"]
        flying -= count
        one["num_in_flight_tokens"] = flying
        stale: int = one["num_stale_output_tokens"]
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

    def take(self, request: Any, one: dict[str, Any], new: list[int]) -> bool:
        """Append tokens up to one that ends the request, and drop those behind it."""
        known: list[int] = one["_all_token_ids"]
        outputs: list[int] = one["_output_token_ids"]
        hashes: list[bytes] = one["block_hashes"]
        params = one["sampling_params"]
        end_token, end_tokens = params._eos_token_id, params.stop_token_ids
        always = params.repetition_detection is not None
        longest, size, most = self.longest, self.hash_size, one["max_tokens"]
        for number in range(len(new)):
            token = new[number]
            outputs.append(token)
            known.append(token)
            # vLLM's hasher is asked for each token, and mostly has nothing to hash.
            if len(known) - self.ahead - len(hashes) * size >= size:
                request.update_block_hashes()
            if (
                len(outputs) >= most
                or len(known) >= longest
                or always
                or (end_token is not None and token == end_token)
                or (end_tokens and token in end_tokens)
            ) and self.ends(request, longest):
                del new[number + 1 :]
                return True
        return False

    def settle(
        self,
        request: Any,
        one: dict[str, Any],
        before: int,
        num_sampled: int,
        num_kept: int,
        is_running: bool,
    ) -> None:
        """What the tokens of a request change in its counts, and have cached.

        It knew `before` tokens. The last step cached what was known then, and an update what was
        final: only what fills another block is cached now.
        """
        if self.cached is None and not self.in_flight:
            return
        later: int = one["num_output_placeholders"]
        done: int = one["num_computed_tokens"]
        was_ahead = later > 0
        if self.in_flight:
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
        size = self.hash_size
        if self.cached is None or size == 0 or not is_running:
            return
        if self.in_flight and not was_ahead and not self.drafts:
            return
        if self.ahead > 0 or final // size > (before - 1) // size:
            self.cached(request, final)

    def answer(
        self,
        request: Any,
        one: dict[str, Any],
        name: str,
        new: list[int],
        status: Any,
        has_ended: bool,
    ) -> Any:
        """What a request answers; one that has ended is stopped."""
        reason = self.stopped(request, status) if has_ended else None
        if (
            reason is None
            and not one["events"]
            and one["prefill_stats"] is None
            and one["stop_reason"] is None
            and one["trace_headers"] is None
            and not one["num_nans_in_logits"]
        ):
            return self.made(name, new)
        return self.told(request, new, reason)
