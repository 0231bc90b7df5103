"""Loss of planned or loaded tokens of a request, or of all its blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvcheck.play import steps as st
from kvcheck.play.admitting import keeps_all
from kvcheck.play.inside import before_scheduling
from kvcheck.play.runner import Runner, Side, Tracked
from kvcheck.play.scheduler import LOADING, RUNNING
from kvspec.interface import Feature
from kvspec.specs import FullAttentionSpec


def fail_load(runner: Runner, step: st.FailLoad) -> None:
    """Void what the load should have brought, and all that was computed after it."""
    request = runner.pick(step.who, RUNNING, LOADING)
    if request is None or request.fresh_load is None:
        return
    lists = runner.subject.blocks(request)
    counts = runner.view.snapshot.ref_counts
    sizes = runner.block_sizes
    first, end = request.fresh_load
    valid = min(first + step.index * min(sizes), end - 1) // max(sizes) * max(sizes)
    valid = max(first, valid)

    def void(side: Side) -> list[int]:
        lists = side.blocks(request)
        sized = zip(lists, sizes, strict=True)
        return [block for blocks, size in sized for block in blocks[valid // size :]]

    lost = void(runner.subject)
    gone: list[Tracked] = []
    if not any(counts[block] > 1 for block in lost):
        runner.do("evict_blocks", None, {}, lambda side: {"block_ids": void(side)}, lost=lost)
    elif Feature.WITHDRAWAL not in runner.subject.features:
        return
    else:
        is_planned = request.name in runner.planned
        planned = {name: part.num_computed for name, part in runner.planned.items() if is_planned}
        gone = take_back(runner, request, {**planned, request.name: valid}, valid, lost)
    request.fresh_load = None
    for each in reversed(gone[1:]):
        drop(runner, each, again=True, later=False)
    if keeps_all(runner) and all(map(any, lists)):
        request.seat = request.seat.set_back(valid)
    else:
        drop(runner, request, again=True, later=False)
    runner.planned.clear()


def take_back(
    runner: Runner,
    request: Tracked,
    computed: Mapping[str, int],
    otherwise: int,
    lost: Sequence[int] = (),
) -> list[Tracked]:
    """Withdraw a request and all that hit what does not come; return them (KV-MGR-24).

    `computed`: the computed tokens of each by name; `otherwise`: of those that are missing there.
    """
    gone = [request]
    for each in gone:  # grows
        tokens = computed.get(each.name, otherwise)
        names, _ = runner.do("withdraw", each, {"num_computed_tokens": tokens}, lost=lost)
        gone += [r for r in runner.requests if r.name in names and r not in gone]
        lost = ()
    return gone


def set_back(runner: Runner, step: st.Withdraw) -> None:
    """Take back tokens that a request has computed (KV-MGR-23)."""
    request = runner.pick(step.who, RUNNING)
    if request is None:
        return
    tokens = max(0, request.seat.num_computed - max(step.back, 0))
    may_stay = tokens > 0 and all(type(spec) is FullAttentionSpec for spec in runner.specs)
    if not step.only_counts:
        runner.do("withdraw", request, {"num_computed_tokens": tokens})
    if may_stay and not step.again:
        request.seat, request.fresh_load = request.seat.set_back(tokens), None
        runner.planned.clear()
    elif not step.only_counts:
        drop(runner, request, again=True, later=False)


def withdraw(runner: Runner, step: st.Withdraw) -> None:
    """Withdraw a request and all that hit what it planned, as schedulers must (KV-MGR-24)."""
    if step.back:
        set_back(runner, step)
        return
    planned = [r for r in runner.requests if r.seat.phase == RUNNING and r.name in runner.planned]
    if not planned:
        return
    request = planned[step.who % len(planned)]
    part = runner.planned[request.name]
    computed = {name: each.num_computed for name, each in runner.planned.items()}
    gone = take_back(runner, request, computed, part.num_computed)
    has_states = any(spec.is_state for spec in runner.specs)
    if part.may_stay and not has_states and not step.again:
        gone.remove(request)
        request.fresh_load = None
        request.seat = request.seat.set_back(part.num_computed)
    for each in reversed(gone):
        drop(runner, each, again=True, later=False)
    runner.planned.clear()


def drop(runner: Runner, request: Tracked, *, again: bool, later: bool) -> None:
    """Free or pop the request's blocks; forget it unless it returns."""
    before_scheduling(runner, request)
    if later:
        runner.do("pop_blocks_for_free", request)
    else:
        runner.do("free", request)
    request.num_lost, request.fresh_load = request.seat.num_computed, None
    request.num_preemptions += 1
    request.seat = request.seat.preempted()
    if not again:
        runner.requests.remove(request)
