"""A step of vLLM's scheduler over its running requests, stated plainly, request by request."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from types import SimpleNamespace
from typing import Any

RUNNING, PREEMPTED, ABORTED = 5, 6, 9
LONGEST, SIZE = 30, 4


class Made:
    """A request; two are equal if they are one, as vLLM's."""

    def __init__(self, **members: Any) -> None:
        vars(self).update(members)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def whole_answer(request: Any, new: list[int], reason: str | None, place: int) -> Any:
    events, request.events = request.events, []
    stats, request.prefill_stats = request.prefill_stats, None
    return request.request_id, new, place, reason, request.stop_reason, events, stats


def ends(request: Any, longest: int) -> bool:
    """Decide as vLLM does whether the request ends; `min_tokens` may keep it from ending."""
    params, last = request.sampling_params, request._output_token_ids[-1]
    if len(request._output_token_ids) < params.min_tokens:
        return False
    return bool(
        last == params._eos_token_id
        or last in (params.stop_token_ids or ())
        or len(request._all_token_ids) >= longest
        or len(request._output_token_ids) >= request.max_tokens
        or (params.repetition_detection and request._output_token_ids[-2:] == [last, last])
    )


def item(rng: Random) -> Any:
    return SimpleNamespace(mm_position=SimpleNamespace(offset=rng.randint(0, 2), length=2))


def items_end(request: Any) -> int:
    """Tokens after which no image is left to be read."""
    places = [each.mm_position for each in request.mm_features]
    return max((place.offset + place.length for place in places), default=0)


def split(request: Any, count: int) -> int:
    """Return the tokens up to the last whole block; call it for chunks of known tokens only."""
    done: int = request.num_computed_tokens
    return max((done + count) // SIZE * SIZE - done, 0)


def stop(request: Any, status: int) -> str:
    request.status = ABORTED
    return f"stopped at {status}"


class Given:
    """The configuration of a scheduler, drawn at random.

    `ahead`: tokens behind a block that its hash covers. `in_flight`: it counts tokens of steps that
    were planned and not updated, as vLLM does since 0.26; `by_flight`: all others are final, as in
    0.33. `splits`: chunks of prompts end where a block does. `pools`: no token is sampled, and the
    output for a whole prompt ends its request.
    """

    def __init__(self, rng: Random) -> None:
        self.is_async, self.in_flight = rng.random() < 0.5, rng.random() < 0.5
        self.by_flight = self.in_flight and rng.random() < 0.7
        self.is_staggered = self.is_async and rng.random() < 0.3
        self.pools = self.by_flight and rng.random() < 0.3
        self.each = 1 - self.pools
        self.num_drafts = rng.choice((0, 2)) * self.each
        self.has_drafts = self.num_drafts > 0
        self.ahead = rng.choice((0, 0, 1)) if self.in_flight else 0
        self.splits = rng.random() < 0.4
        self.has_items = rng.random() < 0.3
        self.is_strict = rng.random() < 0.5
        self.caches = self.is_async or (self.by_flight and self.has_drafts)


def made_request(rng: Random, given: Given, number: int) -> Any:
    """Return a request whose prompt is partly computed."""
    prompt = [rng.randrange(50) for _ in range(rng.randint(1, LONGEST if given.pools else 12))]
    params = SimpleNamespace(
        _eos_token_id=rng.choice((None, 7)),
        stop_token_ids=rng.choice((None, [], [3, 4])),
        repetition_detection=rng.choice((None, None, 1)),
        min_tokens=rng.choice((0, 0, 3)),
        num_logprobs=rng.choice((None, None, 1)),
    )
    request = Made(
        request_id=f"r{number}",
        status=RUNNING,
        client_index=rng.randrange(2),
        sampling_params=None if given.pools else params,
        max_tokens=rng.randint(2, 20),
        num_prompt_tokens=len(prompt),
        _all_token_ids=prompt,
        _output_token_ids=[],
        block_hashes=[bytes(8)] * (len(prompt) // SIZE),
        num_computed_tokens=rng.randrange(len(prompt)),
        num_output_placeholders=0,
        next_decode_eligible_step=0,
        async_tokens_to_discard=0,
        num_in_flight_tokens=0,
        num_stale_output_tokens=0,
        drop_stale_output=rng.random() < 0.5,
        spec_token_ids=[],
        is_prefill_chunk=True,
        events=rng.choice(([], ["scheduled"])),
        prefill_stats=rng.choice((None, "stats")),
        stop_reason=rng.choice((None, None, None, 3)),
        trace_headers=rng.choice((None, None, None, {"a": "b"})),
        num_nans_in_logits=rng.choice((0, 0, 0, 1)),
        mm_features=[item(rng)] * (given.has_items and rng.random() < 0.3),
    )
    ahead = given.ahead

    def update_block_hashes() -> None:
        while len(request._all_token_ids) - ahead >= SIZE * (len(request.block_hashes) + 1):
            request.block_hashes.append(bytes(8))

    vars(request)["update_block_hashes"] = update_block_hashes
    return request


@dataclass
class Told:
    """A planned step: the tokens of each request by name, and its earlier values."""

    counts: dict[str, int]
    computed: list[int]
    outputs: list[int]
    drafts: dict[str, list[int]]


class Plainly:
    """As `test_vllm_loops.ByLoops`, by what vLLM's scheduler does."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.goals: list[tuple[Any, int]] = []

    def seat(self, running: list[Any], forgotten: set[str]) -> None:
        """Keep nothing."""

    def plan(
        self, running: list[Any], came: dict[Any, int], budget: int, threshold: int, step: int
    ) -> Told | None:
        """Return the new tokens of each; None if one exceeds the longest sequence.

        `came`: further requests that start in the step, with their tokens in it.
        """
        told = Told({}, [], [], {})
        self.goals = []
        for one in running:
            done, later = one.num_computed_tokens, one.num_output_placeholders
            limit = one.num_prompt_tokens + one.max_tokens
            if budget == 0:
                break
            if later > 0 and done + 2 - later >= limit:
                continue
            if step < one.next_decode_eligible_step:
                continue
            goal = len(one._all_token_ids) + later
            count = goal + len(one.spec_token_ids) - done
            if threshold and count > threshold:
                count = threshold
            count = min(count, budget, LONGEST - self.given.each - done)
            if count < 0 or done < items_end(one):
                return None
            if self.given.splits and done < max(one.num_prompt_tokens, len(one._all_token_ids) - 1):
                count = split(one, count)
            if count == 0:
                continue
            drafts = one.spec_token_ids[: max(0, done + count - goal)]
            if drafts:
                told.drafts[one.request_id] = drafts
            told.counts[one.request_id] = count
            told.computed.append(done)
            told.outputs.append(len(one._output_token_ids) + later)
            self.goals.append((one, goal))
            budget -= count
        for one, count in came.items():
            told.counts[one.request_id] = count
            self.goals.append((one, len(one._all_token_ids)))
        return told

    def advance(self, told: Told, prefills: set[Any], eligible_at: int) -> None:
        for one, goal in self.goals:
            count = told.counts[one.request_id]
            one.num_computed_tokens += count
            if self.given.in_flight:
                one.num_in_flight_tokens += count
            one.spec_token_ids = []
            one.is_prefill_chunk = one.num_computed_tokens < goal
            if one.is_prefill_chunk:
                continue
            prefills.discard(one)
            if self.given.is_async:
                num_drafts = len(told.drafts.get(one.request_id, ()))
                one.num_output_placeholders += self.given.each + num_drafts
                one.spec_token_ids = [-1] * self.given.num_drafts
                if eligible_at:
                    one.next_decode_eligible_step = eligible_at

    def take(self, told: Told, requests: dict[str, Any], sampled: Any, pooled: Any) -> Any:
        """Return outputs by client, accepted drafts, the log, and the requests that ended."""
        self.pooled = pooled
        self.answers: dict[int, list[Any]] = {}
        self.rewound: dict[tuple[int, int], int] = {}
        self.log: list[Any] = []
        self.ended: list[str] = []
        for place, (name, count) in enumerate(told.counts.items()):
            new = sampled[place] if sampled else []
            if name in requests:
                drafts = told.drafts.get(name, ())
                self.take_one(requests[name], count, new, len(drafts), place)
        return self.answers, self.rewound, self.log, self.ended

    def take_one(self, one: Any, count: int, new: list[int], num_drafts: int, place: int) -> None:
        status = one.status
        is_stale = False
        if self.given.in_flight:
            one.num_in_flight_tokens -= count
            is_stale = one.num_stale_output_tokens > 0
            if is_stale:
                one.num_stale_output_tokens -= count
        if status > PREEMPTED or (is_stale and one.drop_stale_output):
            return
        is_discarded = not self.given.in_flight and one.async_tokens_to_discard > 0
        if num_drafts and new and not (self.given.is_strict and is_discarded):
            self.rewind(one, num_drafts, len(new) - 1, is_stale)
        if one.mm_features:
            self.log.append(("let go", one.request_id))
        is_pooled = self.pooled is not None and self.pooled[place] is not None
        if not new and not is_pooled:
            return
        if is_discarded:
            one.async_tokens_to_discard -= 1
            return
        before, num_sampled, has_ended = len(one._all_token_ids), len(new), is_pooled
        for number, token in enumerate(new):
            one._all_token_ids.append(token)
            one._output_token_ids.append(token)
            one.update_block_hashes()
            if ends(one, LONGEST):
                has_ended = True
                del new[number + 1 :]
                break
        if new and not is_stale:
            self.settle(one, before, num_sampled, len(new))
        if self.given.in_flight and one.prefill_stats is not None:
            self.log.append(one.request_id)
        reason = stop(one, status) if has_ended else None
        more = (one.events, one.prefill_stats, one.stop_reason, one.trace_headers)
        wants = is_pooled or one.sampling_params.num_logprobs is not None
        is_plain = not any((wants, reason, *more, one.num_nans_in_logits))
        at = place if wants else -1
        answer = (one.request_id, new) if is_plain else whole_answer(one, new, reason, at)
        self.answers.setdefault(one.client_index, []).append(answer)
        if has_ended and status == RUNNING:
            self.ended.append(one.request_id)

    def rewind(self, one: Any, num_drafts: int, num_right: int, is_stale: bool) -> None:
        pair = (num_drafts, num_right)
        self.rewound[pair] = self.rewound.get(pair, 0) + 1
        wrong = 0 if is_stale else num_drafts - num_right
        if one.num_computed_tokens > 0:
            one.num_computed_tokens -= wrong
        if one.num_output_placeholders > 0:
            one.num_output_placeholders -= wrong

    def settle(self, one: Any, before: int, num_sampled: int, num_kept: int) -> None:
        """Cache what is final now, if that fills another block."""
        given, was_ahead = self.given, one.num_output_placeholders > 0
        if given.by_flight:
            one.num_computed_tokens -= num_sampled - num_kept
            if was_ahead:
                one.num_output_placeholders -= num_sampled
            final = one.num_computed_tokens - one.num_in_flight_tokens
        elif given.caches:
            one.num_output_placeholders -= num_kept
            final = one.num_computed_tokens - one.num_output_placeholders
        if not given.caches or one.status == PREEMPTED:
            return
        if given.by_flight and not was_ahead and not given.has_drafts:
            return
        if given.ahead or final // SIZE > (before - 1) // SIZE:
            self.log.append((one.request_id, final))
