"""Calls of whole steps by name, as a player makes them (KV-BATCH-*).

Before a call that schedules, the requests get what their scheduler owns: `schedule` has the name,
the computed tokens, the status and the preemptions of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from kvcheck.play.keeping import Kept
from kvcheck.play.outputs import Outputs
from kvspec.batched import BatchedManager
from kvspec.following import FollowingImplementation
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import Request, RequestStatus


class Playing(Protocol):
    """The parts of a player that these calls need."""

    implementation: Implementation
    manager: KVCacheManager
    requests: dict[str, Request]
    kept: dict[str, Kept]

    @property
    def batched(self) -> BatchedManager:
        """Return whole steps on the manager."""


def register(player: Playing, _: str, args: Mapping[str, Any]) -> list[int]:
    return [player.batched.register(player.requests[name]) for name in args["names"]]


def unregister(player: Playing, _: str, args: Mapping[str, Any]) -> None:
    player.batched.unregister(args["handles"])


def step(player: Playing, _: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Make a step, or the call `by` that is named after its only kind of entries."""
    _schedule(player, args)
    plan, batched = args["plan"], player.batched
    outputs = Outputs(args["rows"], args["lengths"])
    if args["by"] in ("free", "preempt"):
        getattr(batched, args["by"])(plan.finished if args["by"] == "free" else plan.preempted)
        return {"members": _members(player, _names(args))}
    if args["by"] == "decode":
        ahead = plan.num_lookahead_tokens
        result = batched.decode(
            plan.decoding, plan.decode_tokens, num_lookahead_tokens=ahead, output=outputs.given
        )
    elif args["by"] == "admit":
        names = (
            "token_budget", "num_lookahead_tokens", "full_sequence_must_fit", "reserved_blocks",
            "stops_at_refusal",
        )  # fmt: skip
        options = {name: getattr(plan, name) for name in names}
        result = batched.admit(plan.new, plan.max_new_tokens, output=outputs.given, **options)
    else:
        result = batched.step(plan, outputs.given)
    return {
        "scheduled": list(result.num_scheduled_tokens),
        "hits": list(result.hit_tokens),
        "counts": (result.num_slots, result.num_deltas, result.num_deltas_left),
        "slots": outputs.slots,
        "rows": outputs.rows,
        "members": _members(player, _names(args)),
    }


def _names(args: Mapping[str, Any]) -> list[str]:
    return [name for name, *_ in args["schedule"]]


def _schedule(player: Playing, args: Mapping[str, Any]) -> None:
    for name, computed, status, preemptions in args["schedule"]:
        request = player.requests[name]
        if request.num_computed_tokens != computed:  # to set it is to make a step look again
            request.num_computed_tokens = computed
        if request.status is not RequestStatus(status):
            request.status = RequestStatus(status)
        if request.num_preemptions != preemptions:
            request.num_preemptions = preemptions


def _members(player: Playing, names: Sequence[str]) -> list[tuple[object, ...]]:
    """Return what a step sets of requests."""
    requests = [player.requests[name] for name in names]
    return [(each.num_computed_tokens, each.num_preemptions, each.status) for each in requests]


def rewind(player: Playing, _: str, args: Mapping[str, Any]) -> list[int]:
    """Take back computed tokens; return what is left of each request's."""
    player.batched.rewind(args["handles"], args["num_tokens"])
    requests = map(player.batched.request_of, args["handles"])
    return [each.num_computed_tokens for each in requests]


def append(player: Playing, _: str, args: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Append tokens to requests, or follow those whose tokens the engine keeps."""
    names, texts = args["names"], args["token_ids"]
    handles = args["handles"]
    if player.kept:
        _follow(player, args, [None] * len(names))
    else:
        counts = [len(text) for text in texts]
        tokens = [token for text in texts for token in text]
        player.batched.append(handles, tokens, _plainest(counts))
    return _seen(player, names)


def follow(player: Playing, _: str, args: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Keep the first tokens of requests in one call, and append others in a second."""
    names: Sequence[str] = args["names"]
    none: list[list[int]] = [[] for _ in names]
    for name, num_kept in zip(names, args["num_kept"], strict=True):
        player.kept[name].cut(num_kept)
    first, last = args["num_prompt"]
    _follow(player, {**args, "token_ids": none}, first)
    _follow(player, args, last)
    return _seen(player, names)


def _follow(player: Playing, args: Mapping[str, Any], prompts: Sequence[int | None]) -> None:
    kept = [player.kept[name] for name in args["names"]]
    new = [each.extend(text) for each, text in zip(kept, args["token_ids"], strict=True)]
    numbers = _plainest([len(each.tokens) for each in kept])
    told: Any = None if None in prompts else list(prompts)
    hashes = [block_hash for each in new for block_hash in each]
    player.batched.follow(args["handles"], numbers, hashes, num_prompt_tokens=told)


def _plainest(numbers: list[int]) -> list[int] | int:
    return numbers[0] if len({*numbers}) == 1 else numbers


def _seen(player: Playing, names: Sequence[str]) -> list[tuple[object, ...]]:
    """Return what growing changes of requests; the last hash depends on all before it."""
    requests = [player.requests[name] for name in names]
    return [
        (r.num_tokens, r.num_prompt_tokens, len(r.block_hashes), list(r.block_hashes[-1:]))
        for r in requests
    ]


def wrong_follow(player: Playing, _: str, args: Mapping[str, Any]) -> None:
    """Report what no engine keeps."""
    prompts = args["num_prompt_tokens"]
    given = (args["handles"], args["num_tokens"], args["hashes"])
    player.batched.follow(*given, num_prompt_tokens=prompts)


def wrong_append(player: Playing, _: str, args: Mapping[str, Any]) -> None:
    """Append to a request whose tokens the engine keeps; `alone`: in a single call."""
    if args["alone"]:
        request = player.batched.request_of(args["handle"])
        player.implementation.append_tokens(player.manager, request, [1])
    else:
        player.batched.append([args["handle"]], [1])


def wrong_length(player: Playing, _: str, args: Mapping[str, Any]) -> None:
    """Report in a single call that a request is longer, without the hashes."""
    engine = cast(FollowingImplementation, player.implementation)
    request = player.batched.request_of(args["handle"])
    engine.follow(player.manager, request, args["num_tokens"])


def wrong_hold(player: Playing, _: str, args: Mapping[str, Any]) -> None:
    player.manager.hold_blocks(tuple(args["block_ids"]))


def look_ups(player: Playing, _: str, args: Mapping[str, Any]) -> list[int]:
    """Look up requests without admission."""
    _schedule(player, args)
    return list(player.batched.lookup(args["handles"]))


def take_deltas(player: Playing, _: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Take rows that were not reported yet, and say how many there were."""
    outputs, pending = Outputs(args["rows"]), player.batched.num_pending_deltas()
    rows: Any = outputs.given.block_deltas
    taken = player.batched.take_deltas(rows)
    return {"taken": taken, "pending": pending, "rows": outputs.rows}


def look_at(player: Playing, _: str, args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the queries of whole steps."""
    batched = player.batched
    return {
        "requests": _seen(player, args["names"]),
        "members": _members(player, args["names"]),
        "lengths": list(batched.list_lengths(args["handles"])),
        "pending": batched.num_pending_deltas(),
        "next": list(batched.next_free_blocks(args["num_blocks"])),
    }


def walk(player: Playing, _: str, args: Mapping[str, Any]) -> list[int]:
    return list(player.batched.next_free_blocks(3, after=args["after"]))


PLAYS: Mapping[str, Any] = {
    "register": register,
    "unregister": unregister,
    "batched_step": step,
    "rewind": rewind,
    "batched_append": append,
    "batched_follow": follow,
    "wrong_follow": wrong_follow,
    "wrong_append": wrong_append,
    "wrong_length": wrong_length,
    "wrong_hold": wrong_hold,
    "look_ups": look_ups,
    "take_deltas": take_deltas,
    "look_at_batch": look_at,
    "walk": walk,
}
"""Players of whole steps."""
