"""Perform whole steps: plan them from the seats, make them on both sides, follow the results.

Hits that end inside a block demand chunks that no plan of unknown hits can keep to (KV-INSIDE-5):
a careful caller makes no whole steps there.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

from kvcheck.play import steps as st
from kvcheck.play.agreement import require_same, rule_of
from kvcheck.play.broken_batches import broken_follows, broken_plans
from kvcheck.play.player import Outcome
from kvcheck.play.runner import Runner, Tracked
from kvcheck.play.scheduler import PREEMPTED, RUNNING, WAITING
from kvspec.batched import StepPlan
from kvspec.errors import KVSpecError
from kvspec.inside import looks_inside
from kvspec.interface import Feature

Running: TypeAlias = tuple[Tracked, int, int]


@dataclass
class Entries:
    """The requests of a step by their part of it; running ones with their tokens, and drafts."""

    finished: list[Tracked] = field(default_factory=list)
    preempted: list[Tracked] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    new: list[tuple[Tracked, int]] = field(default_factory=list)

    def only(self, kind: str) -> Entries:
        """Return those that the call `kind` takes; all for a step."""
        member = {"free": "finished", "preempt": "preempted", "decode": "running", "admit": "new"}
        if not kind:
            return self
        return Entries(**{member[kind]: getattr(self, member[kind])})


def batch(runner: Runner, step: st.Batch) -> None:
    """Make a whole step, and sample: take back rejected drafts, and append accepted ones."""
    if runner.ends_inside:
        return
    register_all(runner)
    entries = _entries(runner, step).only(step.by)
    plan = _plan(runner, step, entries)
    lengths = _lengths(runner, step, entries)
    if step.breaks:
        try_broken(runner, plan, _lengths(runner, replace(step, more_slots=-1), entries))
    given = {"plan": plan, "by": step.by, "rows": step.rows, "lengths": lengths}
    result, _ = runner.do("batched_step", None, {**given, "schedule": _schedule(runner)})
    _release(runner, entries)
    if "scheduled" in result:
        _grant(runner, step, entries, result)
    _take_copies(runner)


def register_all(runner: Runner) -> None:
    """Register the requests that are not, and forget those that are gone."""
    batches = runner.batches
    names = {request.name: request for request in runner.requests}
    gone = [name for name in batches.handles if name not in names]
    if gone:
        handles = [batches.handles.pop(name) for name in gone]
        runner.do("unregister", None, {"handles": handles})
        for handle in handles:
            batches.table.pop(handle, None)
    new = [name for name in names if name not in batches.handles]
    if new:
        handles, _ = runner.do("register", None, {"names": new})
        batches.handles.update(zip(new, handles, strict=True))
        batches.since.update({name: names[name].num_preemptions for name in new})


def _schedule(runner: Runner) -> list[tuple[str, int, str, int]]:
    seats = [(each.name, each.seat, each.num_preemptions) for each in runner.requests]
    return [(name, seat.num_computed, seat.status, number) for name, seat, number in seats]


def _in_turn(runner: Runner, step: st.Batch, *phases: str) -> list[Tracked]:
    found = [request for request in runner.requests if request.seat.phase in phases]
    first = step.turn % len(found) if found else 0
    return found[first:] + found[:first]


def _entries(runner: Runner, step: st.Batch) -> Entries:
    entries, idle = Entries(), list[Tracked]()
    longest, can_draft = runner.config.max_model_len_tokens, Feature.DRAFTING in _features(runner)
    for number, request in enumerate(_in_turn(runner, step, RUNNING)):
        part = step.parts[number % len(step.parts)]
        room = longest - len(request.seat.tokens)
        if part == st.ENDS:
            entries.finished.append(request)
        elif part == st.PREEMPTED:
            entries.preempted.append(request)
        elif part > 0 and (request.seat.num_pending or room):
            pending = request.seat.num_pending
            if not pending:
                idle.append(request)
                pending, room = 1, room - 1
            drafts = len(step.drafts[:room]) * can_draft if part >= pending else 0
            entries.running.append((request, min(part, pending) + drafts, drafts))
    if step.by in ("", "decode"):
        append(runner, {request.name: [step.token] for request in idle})
    for number, request in enumerate(_in_turn(runner, step, WAITING, PREEMPTED)):
        part = step.new[number % len(step.new)]
        if part > 0 and len(request.seat.tokens) <= longest:
            entries.new.append((request, part))
    return entries


def _features(runner: Runner) -> frozenset[Feature]:
    oracle = runner.oracle.features if runner.oracle is not None else frozenset(Feature)
    return runner.subject.features & oracle


def append(runner: Runner, texts: Mapping[str, list[int]]) -> None:
    if not texts:
        return
    handles = [runner.batches.handles[name] for name in texts]
    given = {"names": list(texts), "handles": handles, "token_ids": list(texts.values())}
    runner.do("batched_append", None, given)
    for request in runner.requests:
        if request.name in texts:
            request.seat = request.seat.appended(texts[request.name])


def _ints(values: Sequence[int], turn: int) -> Any:
    """Return numbers as one that applies to all, as a list or as an array of either width."""
    if values and len({*values}) == 1 and turn % 2:
        return values[0]
    fits = all(number < 2**31 for number in values)
    return (list, tuple, lambda v: array("q", v), lambda v: array("i" if fits else "q", v))[
        turn % 4
    ](values)


def _plan(runner: Runner, step: st.Batch, entries: Entries) -> StepPlan:
    """Return the plan; of the running requests every second only computes in `prefilling`."""
    handle, turn = runner.batches.handles, step.turn
    decoding, prefilling = _split(step, entries)
    return StepPlan(
        finished=[handle[each.name] for each in entries.finished],
        preempted=array("i", [handle[each.name] for each in entries.preempted]),
        decoding=[handle[each.name] for each, *_ in decoding],
        decode_tokens=_ints([number for _, number, _ in decoding], turn),
        prefilling=tuple(handle[each.name] for each, *_ in prefilling),
        prefill_tokens=_ints([number for _, number, _ in prefilling], turn + 1),
        new=array("q", [handle[each.name] for each, _ in entries.new]),
        max_new_tokens=_ints([number for _, number in entries.new], turn + 2),
        token_budget=step.token_budget,
        num_lookahead_tokens=step.lookahead_tokens,
        full_sequence_must_fit=step.must_fit,
        reserved_blocks=step.reserved_blocks,
        stops_at_refusal=step.stops_at_refusal,
        starts_step=step.starts_step,
    )


def _lengths(runner: Runner, step: st.Batch, entries: Entries) -> list[int | None] | None:
    """Return the length of each group's mapping; None for groups, or a step, without."""
    if step.more_slots is None:
        return None
    certain = sum(number for _, number, _ in entries.running)
    wanted = sum(min(most, len(each.seat.tokens)) for each, most in entries.new)
    length = certain + min(wanted, max(0, step.token_budget - certain))
    return [
        None if not spec.has_slots or (group + step.turn) % 4 == 3 else length + step.more_slots
        for group, spec in enumerate(runner.specs)
    ]


def _release(runner: Runner, entries: Entries) -> None:
    for request in (*entries.finished, *entries.preempted):
        runner.batches.table.pop(runner.batches.handles[request.name], None)
        request.num_lost, request.fresh_load = request.seat.num_computed, None
        request.num_preemptions += 1
        request.seat = request.seat.preempted()
        runner.batches.since[request.name] = request.num_preemptions
    for request in entries.finished:
        runner.requests.remove(request)


def _grant(runner: Runner, step: st.Batch, entries: Entries, result: Mapping[str, Any]) -> None:
    batches = runner.batches
    scheduled, hits = iter(result["scheduled"]), iter(result["hits"])
    drafted: list[tuple[Tracked, int, list[int]]] = []
    for request, number, drafts in chain(*_split(step, entries)):
        granted = next(scheduled)
        if not granted:
            continue
        request.fresh_load = None
        kept = list(step.drafts[: min(step.accepted, drafts)])
        request.seat = request.seat._replace(num_computed=request.seat.num_computed + number)
        if drafts:
            drafted.append((request, drafts - len(kept), kept))
    for request, _ in entries.new:
        granted, hit = next(scheduled), next(hits)
        if granted:
            batches.table.pop(batches.handles[request.name], None)
            batches.since[request.name] = request.num_preemptions
            request.fresh_load = None
            request.seat = request.seat.granted(granted, num_hit=hit)
    _note_rows(runner, result["rows"], result["counts"][1])
    if drafted:
        handles = [batches.handles[request.name] for request, *_ in drafted]
        back = _ints([rejected for _, rejected, _ in drafted], step.turn)
        runner.do("rewind", None, {"handles": handles, "num_tokens": back})
        for request, rejected, _ in drafted:
            computed = request.seat.num_computed - rejected
            request.seat = request.seat._replace(num_computed=computed)
        append(runner, {request.name: kept for request, _, kept in drafted})
    _answer(runner, step, entries)


def _answer(runner: Runner, step: st.Batch, entries: Entries) -> None:
    entered = [each[0] for each in entries.running] + [each for each, _ in entries.new]
    going = [each for each in entered if each.seat.phase == RUNNING]
    for request in going[step.turn % len(going) :][:1] if going else ():
        room = runner.config.max_model_len_tokens - len(request.seat.tokens)
        if min(step.answer, room) > 0:
            append(runner, {request.name: [step.token] * min(step.answer, room)})


def _split(step: st.Batch, entries: Entries) -> tuple[Sequence[Running], Sequence[Running]]:
    """Return the entries of `decoding` and of `prefilling`, which differ in name only."""
    if step.by or step.turn % 3 == 0:
        return entries.running, ()
    return entries.running[::2], entries.running[1::2]


def _take_copies(runner: Runner) -> None:
    """Take the copies of the step, and return the references that they hold (KV-INSIDE-4)."""
    has_copies = Feature.HITS_INSIDE_BLOCKS in runner.subject.features
    if has_copies and looks_inside(runner.config):
        runner.do("take_block_copies")
        if runner.subject.retained:
            runner.do("free_blocks", None, {}, lambda side: {"block_ids": list(side.retained)})


# Rows and queries.


def _note_rows(runner: Runner, rows: array[int], number: int) -> None:
    for first in range(0, 4 * number, 4):
        handle, group, index, block = rows[first : first + 4]
        runner.batches.table.setdefault(handle, {})[group, index] = block


def take_deltas(runner: Runner, step: st.TakeDeltas) -> None:
    """Take rows, and check that all of them make the lists (KV-BATCH-10)."""
    if runner.ends_inside:
        return
    register_all(runner)
    result, _ = runner.do("take_deltas", None, {"rows": step.rows})
    _note_rows(runner, result["rows"], result["taken"])
    if result["taken"] == step.rows or Feature.STABLE_LISTS not in runner.subject.features:
        return
    batches = runner.batches
    for request in runner.requests:
        if batches.since[request.name] != request.num_preemptions:
            continue
        table = batches.table.get(batches.handles[request.name], {})
        for group, blocks in enumerate(runner.subject.blocks(request)):
            for index, block in enumerate(blocks):
                if block:
                    reported = table.get((group, index))
                    require_same("KV-BATCH-10", "an entry of the table", block, reported)


def look_ups(runner: Runner, step: st.LookUps) -> None:
    """Look some requests up, and ask the queries."""
    if runner.ends_inside:
        return
    register_all(runner)
    handles = runner.batches.handles
    waiting = [each for each in runner.requests if each.seat.phase in (WAITING, PREEMPTED)]
    asked = [handles[each.name] for each in waiting[step.after % 2 :: 2]]
    runner.do("look_ups", None, {"handles": asked, "schedule": _schedule(runner)})
    _look_at(runner, (3, 2 * runner.config.kv_cache.num_blocks)[step.after % 2])
    _both(runner, "walk", None, {"after": step.after % (runner.config.kv_cache.num_blocks + 1)})


def _look_at(runner: Runner, num_blocks: int) -> None:
    """Ask the queries of whole steps, and what growing changes of requests."""
    handles = runner.batches.handles
    asked = {"names": list(handles), "handles": list(handles.values()), "num_blocks": num_blocks}
    runner.do("look_at_batch", None, asked)


# Calls that may be illegal.


def _both(
    runner: Runner, name: str, request: Tracked | None, arguments: Mapping[str, Any]
) -> Outcome:
    """Make a call that may be illegal: the same result or error, by type and field, of both."""
    _, outcome, expected = runner.ask(name, request, arguments, lambda side: {})
    if expected is not None:
        theirs, ours = map(_ending, (expected, outcome))
        require_same(rule_of(name), f"{name} answers", theirs, ours)
    return outcome


def _ending(outcome: Outcome) -> object:
    error = outcome.error
    if error is None:
        return outcome.result
    if not isinstance(error, KVSpecError):
        raise error
    return f"{type(error).__name__} of {getattr(error, 'field', None)}"


def try_broken(runner: Runner, plan: StepPlan, short: Sequence[int | None] | None) -> None:
    """Make every mistake: an error of the same type and field, and no effect (KV-BATCH-2).

    `short`: mappings of a slot too few.
    """
    before, handles = runner.view, runner.batches.handles
    idle = [r for r in runner.requests if r.seat.phase in (WAITING, PREEMPTED)]
    running = [r for r in runner.requests if r.seat.phase == RUNNING]
    longest = runner.config.max_model_len_tokens
    names = ([handles[each.name] for each in idle], [handles[each.name] for each in running])
    room = [longest - each.seat.num_computed for each in running]
    more = {"by": "", "rows": 7, "lengths": None, "schedule": ()}  # which would repair the effect
    tried: list[tuple[str, dict[str, Any]]] = [
        ("batched_step", {**more, "plan": broken}) for broken in broken_plans(plan, *names, room)
    ]
    if short and any(length is not None and length >= 0 for length in short):
        short = [None if length is None or length < 0 else length for length in short]
        tried.append(("batched_step", {**more, "plan": plan, "lengths": short}))
    tried[0][1]["schedule"] = _schedule(runner)
    kept = runner.subject.player.kept
    if kept and runner.requests:
        known = [(handles[r.name], len(r.seat.tokens)) for r in runner.requests]
        wrong = broken_follows(known, runner.config.given_hash_bytes)
        tried += [("wrong_follow", each) for each in wrong]
        handle, length = known[0]
        tried += [("wrong_append", {"handle": handle, "alone": alone}) for alone in (False, True)]
        own = kept[runner.requests[0].name]
        longer = max(length, own.ahead) + own.block_size
        length = longer if own.block_size else 0
        tried.append(("wrong_length", {"handle": handle, "num_tokens": length}))
    if Feature.HOLDING in _features(runner):
        blocks = [1, runner.config.kv_cache.num_blocks]
        tried.append(("wrong_hold", {"block_ids": blocks}))
    for name, arguments in tried:
        is_legal = _both(runner, name, None, arguments).error is None
        require_same("KV-BATCH-2", f"{arguments} is legal", False, is_legal)
    require_same("KV-BATCH-2", "state after illegal calls", before.snapshot, runner.view.snapshot)
    _look_at(runner, 3)


def attempt(runner: Runner, step: st.Try) -> None:
    """Make a single call that may be illegal."""
    request = runner.pick(step.who, RUNNING, WAITING, PREEMPTED)
    if request is None or runner.ends_inside:
        return
    group = step.number % (len(runner.specs) + 1)
    name, arguments = TRIED[step.call % len(TRIED)]
    given = {key: {"group": group}.get(key, step.number) for key in arguments}
    if step.call % 2 and name == "cache_partial_block":
        given["num_tokens"] -= given["num_tokens"] % 2
    _both(runner, name, request, given)
    runner.planned.clear()


TRIED: Sequence[tuple[str, tuple[str, ...]]] = (
    ("cache_partial_block", ("group", "num_tokens")),
    ("cache_partial_block", ("group", "num_tokens")),
    ("cache_blocks", ("num_computed_tokens",)),
    ("withdraw", ("num_computed_tokens",)),
    ("find_longest_cache_hit_per_group", ("max_cache_hit_length",)),
)
