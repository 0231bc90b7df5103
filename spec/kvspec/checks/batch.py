"""Check that a batch is legal, before its first change (KV-BATCH-2)."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol

from kvspec.arrays import beginning, counts_of, delta_rows, ints_of, slot_array
from kvspec.batched import Ints, StepOutput, StepPlan
from kvspec.blocks import NULL_BLOCK
from kvspec.config import ManagerConfig, span_tokens
from kvspec.domains import boolean, count, exact, is_int
from kvspec.errors import InvalidArgumentError, UnknownBlockError, UnsupportedError
from kvspec.following import checked_counts, checked_hashes
from kvspec.interface import Capabilities, Feature, Implementation, KVCacheManager
from kvspec.request import Request, RequestStatus, is_status
from kvspec.specs import LayerSpec


class Batched(Protocol):
    """The part of a batched manager that these checks read. `requests`: by their handles."""

    @property
    def implementation(self) -> Implementation: ...

    @property
    def manager(self) -> KVCacheManager: ...

    @property
    def requests(self) -> Mapping[int, Request]: ...


@dataclass(frozen=True)
class CheckedStep:
    """A legal plan and its outputs.

    `running`: decoding and prefilling requests, `new`: new ones; each a handle and a count.
    """

    finished: Sequence[int]
    preempted: Sequence[int]
    running: Sequence[tuple[int, int]]
    new: Sequence[tuple[int, int]]
    rows: memoryview | None
    slots: Sequence[memoryview | None]


# Handles and numbers.


def check_registration(
    manager: KVCacheManager, request: Request, others: Iterable[Request]
) -> None:
    """Check that the request is the manager's own and its id not registered (KV-BATCH-4)."""
    if not isinstance(getattr(request, "request_id", None), str):
        raise InvalidArgumentError("request", request, "a request made by make_request")
    manager.get_blocks(request)  # raises for a foreign one
    if any(other.request_id == request.request_id for other in others):
        raise InvalidArgumentError("request", request.request_id, "one that is not registered yet")


def registered(field: str, handle: object, requests: Mapping[int, Request]) -> int:
    """Return the handle if it names a registered request; raises InvalidArgumentError."""
    if not is_int(handle) or exact(handle) not in requests:
        raise InvalidArgumentError(field, handle, "the handle of a registered request")
    return exact(handle)


def handles_of(field: str, handles: Ints, requests: Mapping[int, Request]) -> array[int]:
    """Return handles of registered requests, each at most once."""
    chosen = ints_of(field, beginning(handles, len(requests) + 1))  # one too many is enough
    seen: dict[int, str] = {}
    _check_handles(field, chosen, requests, seen)
    return chosen


def _check_handles(
    field: str, handles: array[int], requests: Mapping[int, Request], seen: dict[int, str]
) -> None:
    """Check that handles are registered and distinct; adds their places to `seen`."""
    for place, handle in enumerate(handles):
        where = f"{field}[{place}]"
        registered(where, handle, requests)
        if handle in seen:
            raise InvalidArgumentError(where, handle, f"named once; it is also {seen[handle]}")
        seen[handle] = where


def tokens_of(token_ids: Ints, counts: Ints | int, length: int) -> list[list[int]]:
    """Return the tokens of each of `length` requests (KV-BATCH-12)."""
    numbers = counts_of("counts", counts, length, 0)
    tokens = ints_of("token_ids", beginning(token_ids, sum(numbers) + 1))
    for place, token in enumerate(tokens):
        if token < 0:
            raise InvalidArgumentError(f"token_ids[{place}]", token, "an int in 0 … 2^63 - 1")
    if len(tokens) != sum(numbers):
        allowed = f"{sum(numbers)} tokens, the sum of the counts"
        raise InvalidArgumentError("token_ids", len(tokens), allowed)
    ends = accumulate(numbers, initial=0)
    return [tokens[start:end].tolist() for start, end in pairwise(ends)]


def place_in_queue(queue: Sequence[int], after: int, config: ManagerConfig) -> int:
    """Return the place of a free block in the queue (KV-BATCH-15)."""
    num_blocks = config.kv_cache.num_blocks
    if not is_int(after) or not 0 <= exact(after) < num_blocks:
        raise UnknownBlockError(after, num_blocks)
    if after not in queue:
        raise InvalidArgumentError("after", after, "a block in the free queue")
    return queue.index(exact(after))


def check_follows(config: ManagerConfig, can: Capabilities) -> None:
    """Check that this manager has followed requests (KV-BATCH-14)."""
    if Feature.GIVEN_HASHES not in can.features:
        raise UnsupportedError(Feature.GIVEN_HASHES, can.name)
    if not config.given_hash_bytes:
        raise InvalidArgumentError("manager", config.hash_function, "one that is given hashes")


@dataclass(frozen=True)
class CheckedFollow:
    """The checked arguments of `follow` for one request."""

    num_tokens: int
    num_prompt_tokens: int
    hashes: Sequence[bytes]


def follows_of(
    requests: Sequence[Request],
    num_tokens: Ints | int,
    num_prompt_tokens: Ints | int | None,
    hashes: Sequence[bytes],
    config: ManagerConfig,
) -> list[CheckedFollow]:
    """Check the arguments of `follow` for each request (KV-BATCH-14)."""
    length = len(requests)
    tokens = counts_of("num_tokens", num_tokens, length, 1)
    prompts = [request.num_prompt_tokens for request in requests]
    if num_prompt_tokens is not None:
        prompts = list(counts_of("num_prompt_tokens", num_prompt_tokens, length, 1))
    for place, counts in enumerate(zip(tokens, prompts, strict=True)):
        checked_counts(*counts, 0, where=f"[{place}]")
    size = (config.hash_block_size_tokens or 0) if config.enable_caching else 0
    ahead = config.hash_lookahead_tokens
    new = [
        max(0, (total - ahead) // size - len(request.block_hashes)) if size else 0
        for request, total in zip(requests, tokens, strict=True)
    ]
    given = checked_hashes(hashes, sum(new), config.given_hash_bytes)
    ends = pairwise(accumulate(new, initial=0))
    told = zip(tokens, prompts, (given[start:end] for start, end in ends), strict=True)
    return [CheckedFollow(*each) for each in told]


def rewinds_of(
    handles: Sequence[int], num_tokens: Ints | int, requests: Mapping[int, Request]
) -> array[int]:
    """Check that each request gives up at most the computed tokens that it has (KV-BATCH-12)."""
    numbers = counts_of("num_tokens", num_tokens, len(handles), 0)
    for place, (handle, number) in enumerate(zip(handles, numbers, strict=True)):
        field = f"handles[{place}].num_computed_tokens"
        computed = count(field, requests[handle].num_computed_tokens)
        if number > computed:
            allowed = f"at most {computed}, the tokens that are computed"
            raise InvalidArgumentError(f"num_tokens[{place}]", number, allowed)
    return numbers


# Requests, as their scheduler left them.


def check_scheduling(where: str, request: Request) -> None:
    """Check that counts and status are legal for `get_computed_blocks`."""
    count(f"{where}.num_preemptions", request.num_preemptions)
    in_flight = getattr(request, "num_in_flight_tokens", 0)
    count(f"{where}.num_in_flight_tokens", in_flight)
    count(f"{where}.junction_tokens", getattr(request, "junction_tokens", 0))
    if not is_status(request.status):
        allowed = "one of " + ", ".join(RequestStatus)
        raise InvalidArgumentError(f"{where}.status", request.status, allowed)


def _check_running(batched: Batched, field: str, place: int, handle: int, num_tokens: int) -> None:
    """Check the demands of `allocate_slots`, and that every token has a slot (KV-BATCH-6)."""
    where, request, manager = f"{field}[{place}]", batched.requests[handle], batched.manager
    check_scheduling(where, request)
    computed = count(f"{where}.num_computed_tokens", request.num_computed_tokens)
    blocks = manager.get_blocks(request)
    if blocks.is_empty and computed == 0:
        raise InvalidArgumentError(where, handle, "under way; start it as a new one")
    for group, spec in enumerate(manager.config.managed_specs):
        slots = len(blocks.groups[group]) * span_tokens(manager.config, group)
        if computed > slots and (spec.has_slots or spec.is_state):
            allowed = f"at most the {slots} slots it holds"
            raise InvalidArgumentError(f"{where}.num_computed_tokens", computed, allowed)
        first = _first_read_token(spec, request)
        read = blocks.groups[group][max(first, 0) // span_tokens(manager.config, group) :]
        if first >= 0 and read and read[0] == NULL_BLOCK:  # KV-REQ-9
            allowed = "a number whose window is still there"
            raise InvalidArgumentError(f"{where}.num_computed_tokens", computed, allowed)
    counts = {"decoding": "decode_tokens", "prefilling": "prefill_tokens"}[field]
    longest = manager.config.max_model_len_tokens
    if computed + num_tokens > longest:
        allowed = f"at most {longest - computed}: no slot lies beyond max_model_len_tokens"
        raise InvalidArgumentError(f"{counts}[{place}]", num_tokens, allowed)
    if computed + num_tokens > request.num_tokens:
        _need(batched, Feature.DRAFTING)


def _first_read_token(spec: LayerSpec, request: Request) -> int:
    """Return the first token that the next one to compute reads (KV-REQ-9); -1 if all are kept."""
    computed = request.num_computed_tokens
    if spec.replays_window:
        return computed
    if spec.rswa_window:
        return max(request.num_prompt_tokens, computed - spec.rswa_window)
    if spec.window_tokens:
        return max(0, computed - spec.window_tokens + 1)
    if spec.chunk_tokens:
        return computed // spec.chunk_tokens * spec.chunk_tokens
    return -1


def _check_new(batched: Batched, place: int, handle: int) -> None:
    """Check that a request holds nothing and every token can have a slot (KV-BATCH-7)."""
    where, request = f"new[{place}]", batched.requests[handle]
    check_scheduling(where, request)
    computed = request.num_computed_tokens
    if not is_int(computed) or exact(computed) != 0:
        raise InvalidArgumentError(f"{where}.num_computed_tokens", computed, "0: it is new")
    if not batched.manager.get_blocks(request).is_empty:
        raise InvalidArgumentError(where, handle, "a request that holds no blocks")
    longest = batched.manager.config.max_model_len_tokens
    if request.num_tokens > longest:
        allowed = f"at most max_model_len_tokens = {longest}"
        raise InvalidArgumentError(f"{where}.num_tokens", request.num_tokens, allowed)


def _need(batched: Batched, feature: Feature) -> None:
    """Check early that the manager has this feature: a call would fail halfway through a step."""
    capabilities = batched.implementation.capabilities
    if feature not in capabilities.features:
        raise UnsupportedError(feature, capabilities.name)


# Whole steps.


def check_step(batched: Batched, plan: StepPlan, output: StepOutput | None) -> CheckedStep:
    """Check everything that a step demands (KV-BATCH-2)."""
    if not isinstance(plan, StepPlan):
        raise InvalidArgumentError("plan", plan, "a StepPlan")
    rows, slots = _outputs(batched.manager.config, output)  # first: arrays may run code
    _check_options(batched, plan)
    seen: dict[int, str] = {}
    chosen: dict[str, array[int]] = {}
    for field in ("finished", "preempted", "decoding", "prefilling", "new"):
        handles = beginning(getattr(plan, field), len(batched.requests) + 1)
        chosen[field] = ints_of(field, handles)
        _check_handles(field, chosen[field], batched.requests, seen)
    counts = {
        field: counts_of(name, getattr(plan, name), len(chosen[field]), 1)
        for field, name in (
            ("decoding", "decode_tokens"),
            ("prefilling", "prefill_tokens"),
            ("new", "max_new_tokens"),
        )
    }
    for place, handle in enumerate(chosen["preempted"]):
        preemptions = batched.requests[handle].num_preemptions
        count(f"preempted[{place}].num_preemptions", preemptions)
    running: list[tuple[int, int]] = []
    for field in ("decoding", "prefilling"):
        entries = list(zip(chosen[field], counts[field], strict=True))
        for place, (handle, num_tokens) in enumerate(entries):
            _check_running(batched, field, place, handle, num_tokens)
        running += entries
    for place, handle in enumerate(chosen["new"]):
        _check_new(batched, place, handle)
    new = list(zip(chosen["new"], counts["new"], strict=True))
    most = _most_tokens(batched, running, new, plan.token_budget)
    for group, view in enumerate(slots):
        if view is not None and len(view) < most:
            allowed = f"at least {most} slots long"
            raise InvalidArgumentError(f"slot_mappings[{group}]", len(view), allowed)
    return CheckedStep(chosen["finished"], chosen["preempted"], running, new, rows, slots)


def _check_options(batched: Batched, plan: StepPlan) -> None:
    """Check the members of the plan that apply to all its entries."""
    for field in ("token_budget", "num_lookahead_tokens", "reserved_blocks"):
        count(field, getattr(plan, field))
    for field in ("full_sequence_must_fit", "stops_at_refusal", "starts_step"):
        boolean(field, getattr(plan, field), error=InvalidArgumentError)
    if plan.num_lookahead_tokens > 0:
        _need(batched, Feature.DRAFTING)
    if plan.full_sequence_must_fit or plan.reserved_blocks > 0:
        _need(batched, Feature.ADMISSION)


def _most_tokens(
    batched: Batched,
    running: Sequence[tuple[int, int]],
    new: Sequence[tuple[int, int]],
    budget: int,
) -> int:
    """Bound the tokens that a step may schedule, and so the slots it writes (KV-BATCH-9)."""
    certain = sum(num_tokens for _, num_tokens in running)
    wanted = sum(min(most, batched.requests[handle].num_tokens) for handle, most in new)
    return certain + min(max(0, budget - certain), wanted)


def _outputs(
    config: ManagerConfig, output: StepOutput | None
) -> tuple[memoryview | None, list[memoryview | None]]:
    """Open the outputs for writing."""
    if output is None:
        output = StepOutput()
    if not isinstance(output, StepOutput):
        raise InvalidArgumentError("output", output, "a StepOutput or None")
    rows = None
    if output.block_deltas is not None:
        rows = delta_rows("block_deltas", output.block_deltas)
    return rows, mappings(config, output.slot_mappings)


def mappings(config: ManagerConfig, given: object) -> list[memoryview | None]:
    """Return one view per group, None where no mapping is wanted."""
    specs = config.managed_specs
    if given is None:
        return [None] * len(specs)
    given = list(given) if isinstance(given, Sequence) and type(given) is not memoryview else None
    if given is None or len(given) != len(specs):
        allowed = f"an array or None for each of the {len(specs)} groups"
        raise InvalidArgumentError("slot_mappings", given, allowed)
    views: list[memoryview | None] = []
    for group, (slots, spec) in enumerate(zip(given, specs, strict=True)):
        field = f"slot_mappings[{group}]"
        if slots is not None and not spec.has_slots:
            raise InvalidArgumentError(field, slots, f"None: a group of {type(spec).__name__}")
        views.append(None if slots is None else slot_array(field, slots))
    return views
