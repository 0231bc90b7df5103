"""Programs of managers whose hits end inside a block: steps, chunks, copies (KV-INSIDE-*).

For such a manager steps are exact: no request is scheduled twice in one, and none is released in
the step that it is scheduled in. Loads are left out.
"""

from __future__ import annotations

from kvcheck.play.runner import Runner, Tracked
from kvspec.inside import Chunk, hash_block_size
from kvspec.specs import LayerSpec


def new_step(runner: Runner) -> None:
    """Begin a step; return first what the copies of the last one held (KV-INSIDE-4)."""
    retained = list(runner.subject.retained)
    if retained:
        runner.do("free_blocks", None, {"block_ids": retained})
    runner.do("new_step_starts")
    runner.scheduled.clear()


def before_scheduling(runner: Runner, request: Tracked) -> None:
    """Begin a new step if the request is part of this one already."""
    if runner.ends_inside and request.name in runner.scheduled:
        new_step(runner)


def most_drafts(runner: Runner, num_asked: int) -> int:
    """Limit drafts of a step with one other token: each has a block, and all lie in one hash."""
    if not runner.ends_inside:
        return num_asked
    blocks = (s.num_speculative_blocks for s in runner.specs if s.is_state)
    return min(num_asked, hash_block_size(runner.config) - 1, *blocks)


def chunk_end(runner: Runner, request: Tracked, start: int, end: int) -> int:
    """Return where a chunk from `start` to at most `end` must end (KV-INSIDE-5)."""
    if not runner.ends_inside:
        return end
    seat, h = request.seat, hash_block_size(runner.config)
    prefill_end = max(seat.num_prompt, len(seat.tokens) - 1)
    specs = [spec for spec in runner.specs if spec.is_state]
    sizes = [spec.block_size for spec in specs]
    if start < prefill_end:  # no chunk of a prompt ends inside the block that it begins in
        end = max(end, min(prefill_end, (start // max(sizes) + 1) * max(sizes)))
    while start < prefill_end:
        stops = {
            stop
            for spec in specs
            for stop in _stops(spec, h, Chunk(start, end, spec.block_size), request)
            if end < prefill_end
            or not Chunk(start, end, spec.block_size).checkpoint(spec, runner.config)
        }
        sooner = min((stop for stop in stops if start < stop < end), default=end)
        if sooner == end:
            break
        end = sooner
    return end


def _stops(spec: LayerSpec, h: int, chunk: Chunk, request: Tracked) -> set[int]:
    """Return where the chunk must end if no state is left inside it."""
    size, seat = chunk.size, request.seat
    last = (len(seat.tokens) - 1) // size * size
    tail = (seat.num_prompt - 1) // h * h
    stops = {last}
    if last < tail:
        stops.add(tail)
    if chunk.start % size:
        stops.add((chunk.start // size + 1) * size)
    elif chunk.end < max(seat.num_prompt, len(seat.tokens) - 1):
        stops.add(chunk.end // size * size)
    return stops
