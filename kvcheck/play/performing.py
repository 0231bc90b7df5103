"""Perform steps: convert a scheduler's steps to operations and keep its bookkeeping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvcheck.play import batching
from kvcheck.play import steps as st
from kvcheck.play.admitting import admit, arrive, keeps_all
from kvcheck.play.giving_up import drop, fail_load, withdraw
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS
from kvcheck.play.inside import before_scheduling, chunk_end, most_drafts, new_step
from kvcheck.play.player import Player
from kvcheck.play.runner import Batches, Runner, Side, Tracked
from kvcheck.play.scheduler import LOADING, PREEMPTED, RUNNING, WAITING
from kvspec.audit import unwrapped
from kvspec.blocks import NULL_BLOCK
from kvspec.errors import InvariantViolation, KVSpecError
from kvspec.interface import Feature, KVCacheManager
from kvspec.saved import load, save


def perform(runner: Runner, steps: Sequence[st.Step]) -> None:
    """Perform all steps, then release everything and check that the pool is whole."""
    for step in steps:
        perform_step(runner, step)
    finish(runner)


def perform_step(runner: Runner, step: st.Step) -> None:
    """Perform one step, which does nothing if it fits no request."""
    STEPS[type(step)](runner, step)
    runner.end_step()


def finish(runner: Runner) -> None:
    if runner.ends_inside:
        new_step(runner)
    for request in [r for r in runner.requests if r.seat.holds_blocks]:
        runner.do("free", request)
        request.seat = request.seat.preempted()
    return_popped(runner, len(runner.subject.popped))
    runner.end_step()


def run_on(runner: Runner, step: st.Run) -> None:
    request = runner.pick(step.who, RUNNING)
    if request is None:
        return
    before_scheduling(runner, request)
    pending = request.seat.num_pending
    room = runner.config.max_model_len_tokens - len(request.seat.tokens)
    is_ahead = step.ahead and pending == 0 and room > 0
    if pending == 0 and room > 0:
        pending, room = 1, room - 1
        if not is_ahead:
            append(runner, request, [step.token])
    if pending == 0:
        return
    external = min(step.external_tokens, pending)
    if is_ahead or runner.ends_inside or not may_load(runner, request):
        external = 0
    left = pending - external
    chunk = left if step.chunk_tokens is None else max(1, min(left, step.chunk_tokens))
    start = request.seat.num_computed
    chunk = chunk_end(runner, request, start, start + chunk) - start
    may_draft = chunk == left > 0 and not (runner.ends_inside and chunk > 1)
    drafts = step.drafts[: max(most_drafts(runner, room), 0)] if may_draft else ()
    count = step.in_flight_tokens
    in_flight = {"num_in_flight_tokens": count} if count else {}
    granted, _ = runner.do(
        "allocate_slots",
        request,
        request.seat.asks(
            min(chunk, left) + len(drafts),
            num_external_computed_tokens=external,
            num_lookahead_tokens=step.lookahead_tokens,
            num_encoder_tokens=step.encoder_tokens,
            delay_cache_blocks=step.delayed and not runner.ends_inside,
            **request.caching_arguments,
            **in_flight,
        ),
    )
    if granted is None:
        return
    request.fresh_load = None
    runner.plan(request, start, may_stay=keeps_all(runner) or not external)
    kept = list(drafts[: step.accepted])
    if kept or is_ahead:
        append(runner, request, [step.token] * is_ahead + kept)
    request.seat = request.seat.granted(min(chunk, left) + len(kept), num_external=external)


def may_load(runner: Runner, request: Tracked) -> bool:
    """Check whether a request under way may get external tokens: it has an entry (KV-GRP-9).

    Not in a group that skips: a refusal would lose the skipped tokens (KV-MGR-6).
    """
    state = runner.view.snapshot.requests.get(request.name)
    has_entry = state is not None and any(count is not None for count in state.num_cached_blocks)
    return has_entry and keeps_all(runner)


def append(runner: Runner, request: Tracked, tokens: list[int]) -> None:
    runner.do("append_tokens", request, {"token_ids": tokens})
    request.seat = request.seat.appended(tokens)


def finish_load(runner: Runner, step: st.FinishLoad) -> None:
    request = runner.pick(step.who, LOADING)
    if request is not None:
        arguments = {"num_computed_tokens": request.seat.num_loading, **request.caching_arguments}
        runner.do("cache_blocks", request, arguments)
        request.seat = request.seat.loaded()


def cache_partial(runner: Runner, step: st.CachePartial) -> None:
    request = runner.pick(step.who, RUNNING)
    if request is None or not runner.config.enable_caching or len(runner.specs) < 2:
        return
    if runner.ends_inside:  # the manager registers the boundaries itself
        return
    group = step.group % len(runner.specs)
    if not runner.specs[group].prefix_cacheable:
        return
    size, hash_size = runner.block_sizes[group], runner.config.hash_block_size_tokens or 1
    lists = runner.subject.blocks(request)[group]
    num_hashed = len(request.seat.tokens) - runner.config.hash_lookahead_tokens  # KV-HASH-14
    end = min(request.seat.num_computed, len(lists) * size, num_hashed)
    lengths = [n for n in range(hash_size, end + 1, hash_size) if n % size]
    if lengths and size > hash_size:
        arguments = {"group": group, "num_tokens": lengths[step.index % len(lengths)]}
        runner.do("cache_partial_block", request, arguments)


def skip(runner: Runner, step: st.Skip) -> None:
    request = runner.pick(step.who, RUNNING)
    if request is not None:
        before_scheduling(runner, request)
        request.fresh_load = None
        arguments = {"total_computed_tokens": request.seat.num_computed}
        runner.do("remove_skipped_blocks", request, arguments)


def release(runner: Runner, step: st.Release) -> None:
    request = runner.pick(step.who, RUNNING, LOADING)
    if request is not None:
        drop(runner, request, again=step.again, later=step.later)


def give_up(runner: Runner, step: st.GiveUp) -> None:
    """Free whatever an engine drops, even a request that holds nothing (KV-ERR-4)."""
    request = runner.pick(step.who, WAITING, PREEMPTED)
    if request is not None:
        runner.do("free", request)
        runner.requests.remove(request)


def return_popped(runner: Runner, count: int) -> None:
    count = min(count, len(runner.subject.popped))
    if count == 0:
        return
    runner.do("free_blocks", None, {}, lambda side: {"block_ids": side.popped[-count:][::-1]})


def evict(runner: Runner, step: st.Evict) -> None:
    if not runner.requests or not runner.specs:
        return
    if named(runner, runner.subject, step):
        runner.do("evict_blocks", None, {}, lambda side: {"block_ids": named(runner, side, step)})


def named(runner: Runner, side: Side, step: st.Evict | st.Hold) -> list[int]:
    request = runner.requests[step.who % len(runner.requests)]
    group = step.group % len(runner.specs)
    places = range(step.index, step.index + step.count)
    null = [NULL_BLOCK] * (step.count > 1)
    if step.held:
        return null + side.blocks(request)[group][places.start : places.stop]
    return null + blocks_of_content(runner, side, request, group, places)


def hold(runner: Runner, step: st.Hold) -> None:
    """Hold blocks other than those set aside at start (KV-POOL-19)."""
    if Feature.HOLDING not in runner.subject.features:
        return
    if not step.free and not (runner.requests and runner.specs):
        return

    def blocks(side: Side) -> list[int]:
        state = runner.state_of(side).snapshot
        free = state.free_queue[step.index : step.index + step.count]
        found = list(free) if step.free else named(runner, side, step)
        legal = [block for block in found if block not in state.reserved_blocks]
        return legal + legal[:1] * (step.count > 2)

    asked = {id(side): blocks(side) for side in (runner.subject, runner.oracle) if side is not None}
    if asked[id(runner.subject)]:
        runner.do("hold_blocks", None, {}, lambda side: {"block_ids": asked[id(side)]})


def copy(runner: Runner, step: st.Copy) -> None:
    """Continue on a copy; events were taken with the step before (KV-MGR-20)."""
    if not {Feature.CLONE, Feature.RESTORE} <= runner.subject.features:
        return
    for side in (runner.subject, runner.oracle):
        if side is not None:
            player = side.player
            make = player.implementation
            copied = player.manager
            if step.saved:
                copied = _through_a_file(player)
            elif step.restored:
                copied = make.restore(runner.config, player.manager.snapshot())
            if copied is player.manager or player.is_timed:  # a restored one has no clock
                copied = make.clone(player.manager)
            is_audited = unwrapped(player.manager) is not player.manager
            player.manager = copied if is_audited else unwrapped(copied)
    runner.batches = Batches()
    runner.look_again()


def _through_a_file(player: Player) -> KVCacheManager:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "state"
        save(player.manager, path)
        config = player.manager.config
        return unwrapped(load(player.implementation, path, config=config, check_invariants=False))


def retell(runner: Runner, step: st.Retell) -> None:
    """Tell a followed request again, or all of them in one call (KV-REQ-8, KV-BATCH-14)."""
    if not runner.config.given_hash_bytes:
        return
    if not step.together:
        request = runner.pick(step.who, RUNNING, WAITING, PREEMPTED)
        if request is not None:
            num_kept, new, prompts = _told_again(runner, step, request)
            arguments = {"num_kept": num_kept, "token_ids": list(new), "num_prompt": prompts}
            runner.do("follow", request, arguments)
        return
    batching.register_all(runner)
    phases = (RUNNING, WAITING, PREEMPTED)
    chosen = [request for request in runner.requests if request.seat.phase in phases]
    if chosen:
        told = [_told_again(runner, step, request) for request in chosen]
        runner.do(
            "batched_follow",
            None,
            {
                "names": [request.name for request in chosen],
                "handles": [runner.batches.handles[request.name] for request in chosen],
                "num_kept": [num_kept for num_kept, *_ in told],
                "token_ids": [list(new) for _, new, _ in told],
                "num_prompt": [list(each) for each in zip(*(p for *_, p in told), strict=True)],
            },
        )


def _told_again(
    runner: Runner, step: st.Retell, request: Tracked
) -> tuple[int, tuple[int, ...], list[int | None]]:
    """Return how many tokens stay, the new ones, and the prompt's length after each; seat it so."""
    seat = request.seat
    num_kept = max(1, seat.num_computed, len(seat.tokens) - step.fewer)
    new = step.tokens[: runner.config.max_model_len_tokens - num_kept]
    tokens = (*seat.tokens[:num_kept], *new)
    first = min(seat.num_prompt, num_kept)
    last = len(tokens) if step.is_prompt else first
    prompts = [first if first < seat.num_prompt else None, last if step.is_prompt else None]
    if step.together:
        prompts = [first, last]
    request.seat = seat.told_again(tokens, last)
    return num_kept, new, prompts


def evict_ids(runner: Runner, step: st.EvictIds) -> None:
    """Evict by id, without an oracle only: it may keep the same content in other blocks."""
    if runner.oracle is None:
        num_blocks = runner.config.kv_cache.num_blocks
        ids = [block % num_blocks for block in step.blocks]
        runner.do("evict_blocks", None, {"block_ids": ids})


def blocks_of_content(
    runner: Runner, side: Side, request: Tracked, group: int, places: Iterable[int]
) -> list[int]:
    """Return blocks cached for the request's blocks at these places, free or not."""
    hash_size = runner.config.hash_block_size_tokens or 1
    per_block = max(1, runner.block_sizes[group] // hash_size)
    hashes = side.player.requests[request.name].block_hashes
    order = runner.state_of(side).snapshot.lookup_order
    ends = [(place + 1) * per_block - 1 for place in places]
    keys = [hashes[end] + group.to_bytes(4, "big") for end in ends if end < len(hashes)]
    return [block for key in keys for block in order.get(key, ())[:1]]


def break_rules(runner: Runner, step: st.Break) -> None:
    """Make an illegal call, which must raise a typed error and change nothing (KV-ERR-2)."""
    if not runner.requests:
        return
    request = runner.requests[step.who % len(runner.requests)]
    illegal = ILLEGAL_OPERATIONS[step.call % len(ILLEGAL_OPERATIONS)]
    arguments = illegal.arguments(runner, request)
    if arguments is None:
        return
    before = runner.view
    on_request = request.name if illegal.on_request else None
    runner.operations.append((illegal.operation, on_request, arguments))
    outcome = runner.subject.player.perform(illegal.operation, on_request, arguments)
    runner.look_again()
    if isinstance(outcome.error, InvariantViolation):
        raise outcome.error
    if not isinstance(outcome.error, KVSpecError):
        got = "was accepted" if outcome.error is None else f"raised {outcome.error!r}"
        raise InvariantViolation(
            "illegal_calls_raise",
            illegal.rule,
            f"{illegal.name}: {illegal.operation}({arguments}) {got}",
        )
    if runner.view != before:
        raise InvariantViolation(
            "errors_change_nothing", "KV-ERR-2", f"{illegal.name} changed the state"
        )


def take(runner: Runner, step: st.Take) -> None:
    if step.window:
        runner.do("recent_hits", None, {"max_requests": step.window})
    else:
        runner.do("make_prefix_cache_stats")
    if Feature.NEW_BLOCK_IDS in runner.subject.features:
        runner.do("take_new_block_ids")
    if runner.config.residency_sample_rate:
        runner.do("take_residency_samples")


def ask(runner: Runner, step: st.Ask) -> None:
    request = runner.pick(step.who, RUNNING, LOADING, WAITING, PREEMPTED)
    if request is None:
        return
    can = runner.subject.features
    if Feature.COMMON_PREFIX in can:
        runner.do("get_num_common_prefix_blocks", request)
    if Feature.UNHASHED_BLOCKS in can:
        runner.do("get_block_ids", request)
    num_tokens = len(request.seat.tokens) if step.num_tokens is None else step.num_tokens
    arguments = {
        "num_tokens": num_tokens,
        "total_computed_tokens": request.seat.num_computed,
        "num_tokens_main_model": num_tokens,
    }
    if Feature.NEED in can:
        runner.do("get_num_blocks_to_allocate", request, arguments)
        capped = {**arguments, "apply_admission_cap": True, "num_encoder_tokens": 5}
        runner.do("get_num_blocks_to_allocate", request, capped)
    has_hits = runner.config.enable_caching and len(runner.specs) > 1
    if has_hits and Feature.HITS_PER_GROUP in can:
        length = num_tokens - 1 if step.num_tokens is None else step.num_tokens
        asked = {"max_cache_hit_length": length}
        runner.do("find_longest_cache_hit_per_group", request, asked)


STEPS: Mapping[type[st.Step], Callable[[Runner, Any], object]] = {
    st.Arrive: arrive,
    st.Admit: admit,
    st.Run: run_on,
    st.FinishLoad: finish_load,
    st.FailLoad: fail_load,
    st.Withdraw: withdraw,
    st.CachePartial: cache_partial,
    st.Skip: skip,
    st.Release: release,
    st.GiveUp: give_up,
    st.ReturnPopped: lambda runner, step: return_popped(runner, step.count),
    st.Evict: evict,
    st.EvictIds: evict_ids,
    st.Hold: hold,
    st.Retell: retell,
    st.Copy: copy,
    st.Reset: lambda runner, step: runner.do("reset_prefix_cache"),
    st.NewStep: lambda runner, step: new_step(runner),
    st.Take: take,
    st.Ask: ask,
    st.Break: break_rules,
    st.Batch: batching.batch,
    st.TakeDeltas: batching.take_deltas,
    st.LookUps: batching.look_ups,
    st.Try: batching.attempt,
}
