"""Admission of a request: it arrives, is looked up, and asks for its first slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvcheck.play import steps as st
from kvcheck.play.inside import before_scheduling, chunk_end
from kvcheck.play.runner import Runner, Tracked
from kvcheck.play.scheduler import PREEMPTED, WAITING, Seat
from kvspec.interface import Feature


def arrive(runner: Runner, step: st.Arrive) -> None:
    request = Tracked(f"r{runner.num_made}", step, Seat.of(step.prompt))
    runner.num_made += 1
    arguments: dict[str, Any] = {"prompt_token_ids": list(step.prompt)}
    if step.salt is not None:
        arguments["cache_salt"] = step.salt
    if step.lora is not None:
        arguments["lora"] = {"name": step.lora, "id": 1}
    if step.items:
        keys = ("identifier", "offset", "length")
        arguments["mm_features"] = [dict(zip(keys, item, strict=True)) for item in step.items]
    if step.skip_reading:
        arguments["skip_reading_prefix_cache"] = True
    if step.reports_hits:
        arguments["reports_hits"] = True
    if step.priority:
        arguments["priority"] = step.priority
    if step.embedded is not None:
        arguments["prompt_embeddings"] = list(step.embedded)
    runner.do("new_request", request, arguments)
    runner.requests.append(request)


def admit(runner: Runner, step: st.Admit) -> None:
    request = runner.pick(step.who, WAITING, PREEMPTED)
    if request is None:
        return
    before_scheduling(runner, request)
    hit_tokens, hits = look_up(runner, step, request)
    rest = len(request.seat.tokens) - hit_tokens
    external = 0 if runner.ends_inside else min(step.external_tokens, rest)
    if Feature.DELAYED_CACHING not in runner.subject.features:
        external = min(external, rest - 1)  # a load of all tokens is registered when it arrives
    loading = external > 0 and step.load_later
    new = 0 if loading else rest - external
    if step.chunk_tokens is not None:
        new = min(new, step.chunk_tokens)
    new = chunk_end(runner, request, hit_tokens, hit_tokens + new) - hit_tokens
    if new == 0 and external == 0:
        return
    granted, _ = runner.do(
        "allocate_slots",
        request,
        request.seat.asks(
            new,
            num_new_computed_tokens=hit_tokens,
            num_external_computed_tokens=external,
            delay_cache_blocks=loading,
            num_lookahead_tokens=step.lookahead_tokens,
            num_encoder_tokens=step.encoder_tokens,
            full_sequence_must_fit=step.must_fit,
            reserved_blocks=step.reserved_blocks,
            has_scheduled_reqs=step.others_scheduled,
            **request.caching_arguments,
        ),
        lambda side: {"new_computed_blocks": hits.get(id(side)) if hit_tokens else None},
    )
    if granted is not None:
        count_look_up(runner, step, request, hit_tokens)
        request.fresh_load = (hit_tokens, hit_tokens + external) if external else None
        runner.plan(request, hit_tokens, may_stay=keeps_all(runner) or not external)
        if external and step.own_hits:  # where a list is short, more than the new tokens is planned
            runner.planned.clear()
        request.seat = request.seat.granted(
            new, num_hit=hit_tokens, num_external=external, later=loading
        )


def keeps_all(runner: Runner) -> bool:
    """Check that no block list ever contains null."""
    specs = runner.specs
    return all(s.reads_whole_prefix for s in specs)


def count_look_up(runner: Runner, step: st.Admit, request: Tracked, hit_tokens: int) -> None:
    """Count the look-up of an admitted request where that is chosen (KV-POL-18)."""
    is_counted = runner.config.policy.lookups_counted == "admitted" and runner.config.log_stats
    if step.look_up and is_counted:
        told = {"num_hits": hit_tokens, "num_preemptions": request.num_preemptions}
        runner.do("record_prefix_cache_stats", request, told)


def look_up(
    runner: Runner, step: st.Admit, request: Tracked
) -> tuple[int, Mapping[int, list[list[int]]]]:
    """Return the tokens that the request hits, and its hit blocks on each side."""
    if not step.look_up:
        return 0, {}
    can_differ = runner.config.enable_caching and len(runner.specs) > 1
    can_differ &= not runner.ends_inside
    if step.own_hits and step.external_tokens and can_differ and not request.arrival.skip_reading:
        length = {"max_cache_hit_length": len(request.seat.tokens) - 1}
        ours, theirs = runner.do("find_longest_cache_hit_per_group", request, length)
        hit_tokens = max(ours["hit_lengths"])
    else:
        arguments = {"num_preemptions": request.num_preemptions}
        ours, theirs = runner.do("get_computed_blocks", request, arguments)
        hit_tokens = ours["num_computed_tokens"]
        note_junction(runner, request, hit_tokens, ours["num_uncached_common_prefix_tokens"])
    hits = {id(runner.subject): ours["blocks"]}
    if runner.oracle is not None:
        hits[id(runner.oracle)] = theirs["blocks"]
    return hit_tokens, hits


def note_junction(runner: Runner, request: Tracked, hit_tokens: int, uncached: int | None) -> None:
    """Keep, with retention, how far the hits of some groups reached (KV-RET-7)."""
    sides = [side for side in (runner.subject, runner.oracle) if side is not None]
    can = all(Feature.JUNCTIONS in side.features for side in sides)
    if can and runner.config.retention_interval_tokens is not None:
        request.junction_tokens = hit_tokens + uncached if uncached else 0
