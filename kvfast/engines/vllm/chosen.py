"""What the running requests compute in a step, decided as vLLM's scheduler does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Chosen:
    """What a step computes: requests in their order, with new tokens of each.

    `drafts`: of those that have any. `computed`: before the step. `placeholders`: asynchronous
    scheduling counts tokens that are sampled later.
    """

    requests: list[Any]
    names: list[str]
    handles: list[int]
    counts: list[int] | int
    tokens: list[int]
    computed: list[int]
    placeholders: list[int] | None
    drafts: dict[str, list[int]]
    total: int


def one_by_one(
    scheduler: Any, requests: list[Any], handles: list[int], tokens: list[int], computed: list[int]
) -> Chosen | str:
    """As vLLM's scheduler decides it, request by request."""
    s = scheduler
    budget: int = s.max_num_scheduled_tokens
    step, longest = s.current_step + 1, s.max_model_len - 1
    threshold = s.scheduler_config.long_prefill_token_threshold
    took: list[int] = []
    counts: list[int] = []
    held: list[int] = []
    drafts: dict[str, list[int]] = {}
    for i, request in enumerate(requests):
        if budget == 0:
            break
        later, done, spec = request.num_output_placeholders, computed[i], request.spec_token_ids
        if later and done + 2 - later >= request.num_prompt_tokens + request.max_tokens:
            continue  # what is sampled already ends it
        if step < request.next_decode_eligible_step:
            continue
        wanted = tokens[i] + len(spec) + later - done
        if 0 < threshold < wanted:
            wanted = threshold
        count = min(wanted, budget, longest - done)
        if count == 0:
            continue
        if count < 0:
            return "tokens beyond the longest sequence"
        if spec:
            num_drafts = count + done - tokens[i] - later
            if num_drafts > 0:
                drafts[request.request_id] = spec if len(spec) <= num_drafts else spec[:num_drafts]
        took.append(i)
        counts.append(count)
        held.append(later)
        budget -= count
    names = [requests[i].request_id for i in took]
    if len(took) < len(requests):
        requests, handles = [requests[i] for i in took], [handles[i] for i in took]
        tokens, computed = [tokens[i] for i in took], [computed[i] for i in took]
    total = s.max_num_scheduled_tokens - budget
    return Chosen(requests, names, handles, counts, tokens, computed, held, drafts, total)
