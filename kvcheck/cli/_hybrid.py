"""`kvspec whatif` for a model whose layers forget tokens: a replay for each memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from kvcheck.cli._plans import HybridModel
from kvcheck.cli._support import (
    STDOUT,
    fail,
    output_console,
    progress_bars,
    right_table,
    say,
    set_globally,
    write_json,
)
from kvcheck.cli._workers import workers_for
from kvcheck.discovery import find_implementation
from kvcheck.tasks import in_order
from kvcheck.tools.plans.document import MAX_NUM_BATCHED_TOKENS
from kvcheck.tools.replay.driver import Driver
from kvcheck.tools.replay.options import Layout, ModelOptions, Readable
from kvcheck.tools.replay.report import wrapped
from kvcheck.tools.replay.trace import TraceSource, select
from kvcheck.tools.replay.units import units_of
from kvcheck.tools.replay.whatif import endless_hits, look_up
from kvspec.errors import InvalidArgumentError

_IMPL = "kvfast"
_FULL_ATTENTION_ONLY = ("block_sizes", "chosen", "policies", "html_path")

Opened = Callable[[str], AbstractContextManager[TraceSource]]


def show_hybrid(
    traces: Sequence[str], model: HybridModel, opened: Opened, given: Mapping[str, Any]
) -> None:
    """Print a table of hit rates for each trace, and write the JSON if asked."""
    for name in _FULL_ATTENTION_ONLY:
        if given[name]:
            option = {"block_sizes": "block-size", "chosen": "num-blocks", "policies": "policy"}
            fail(f"--{option.get(name, 'html')}: not with {model.name}, which forgets tokens")
    if not given["memories_gib"]:
        fail(f"--model {model.name}: forgets tokens, so name pools by --memory-gib")
    memories = sorted(set(given["memories_gib"]))
    layouts = [model.layout(memory, MAX_NUM_BATCHED_TOKENS) for memory in memories]
    asked = [(trace, layout, given["limit"], opened) for trace in traces for layout in layouts]
    points: list[dict[str, Any]] = []
    with progress_bars() as bar, workers_for(given["jobs"], given["cluster"]) as workers:
        task = bar.add_task(f"{model.name}, {len(asked)} replays", total=len(asked))
        for found in in_order(workers, ((_replayed, each) for each in asked)):
            points.append(found)
            bar.advance(task)
    sizes, limit = len(layouts), given["limit"]
    found = [
        _curve(trace, layouts[0], points[sizes * n : sizes * (n + 1)], limit, opened)
        for n, trace in enumerate(traces)
    ]
    if given["json_path"] is not None:
        content = {"model": layouts[0].model, "groups": layouts[0].kinds, "curves": found}
        write_json(content, given["json_path"])
    if str(given["json_path"]) != STDOUT:
        _show(found, layouts[0])


def _replayed(trace: str, layout: Layout, limit: int | None, opened: Opened) -> dict[str, Any]:
    """Replay one request at a time with this layout's pool."""
    options = ModelOptions.of(layout, max_running=1)
    implementation = find_implementation(_IMPL)
    with opened(trace) as source:
        records = Readable(select(source, limit=limit), layout)
        driver = Driver(
            implementation, options, records, trace_name=source.name, check_invariants=False
        )
        counts = driver.run().counts
        notes = (*source.notes, *records.notes)
    if not counts.requests:
        fail(f"{trace}: holds no requests")
    return {
        "trace": trace,
        "notes": notes,
        "requests": counts.requests,
        "memory_gib": layout.memory_gib,
        "num_blocks": options.num_blocks,
        "hit_rate": counts.hit_rate,
    }


def _curve(
    trace: str,
    layout: Layout,
    points: Sequence[dict[str, Any]],
    limit: int | None,
    opened: Opened,
) -> dict[str, Any]:
    """Return the points of a trace, and what an endless pool hits if it keeps all that is hit."""
    infinite = None
    if not any(group.spec.is_state for group in layout.kv_cache.groups):
        try:
            with opened(trace) as source:
                read = Readable(select(source, limit=limit), layout)
                units = units_of(read, layout.block_size)
        except InvalidArgumentError:
            pass  # the blocks cut across ids
        else:
            infinite = endless_hits(look_up(units)) * units.block_size / units.tokens
    shared = {name: points[0][name] for name in ("trace", "notes", "requests")}
    names = ("memory_gib", "num_blocks", "hit_rate")
    return {
        **shared,
        "block_size": layout.block_size,
        "infinite": infinite,
        "points": [{name: point[name] for name in names} for point in points],
    }


def _show(curves: Sequence[Mapping[str, Any]], layout: Layout) -> None:
    console = output_console()
    if set_globally("quiet"):
        for found in curves:
            best = found["points"][-1]
            held = f"{best['memory_gib']:g} GiB hit {best['hit_rate']:.2%} of the tokens"
            say(f"{found['trace']}: {held}", console=console)
        return
    model = f"{layout.model}: {'; '.join(layout.kinds)}; one request at a time"
    say(*wrapped([model], console.width), console=console)
    for found in curves:
        sizes = f"blocks of {found['block_size']} tokens"
        head = [f"{found['trace']}: {found['requests']:,} requests, {sizes}"]
        head += [f"  note: {note}" for note in found["notes"]]
        say(*wrapped(head, console.width), console=console)
        names = ("GiB", "blocks", "hit rate", "of an endless pool's hits")
        console.print(right_table(names, _rows(found)))


def _rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each memory, then the endless pool if it is known."""
    infinite = found["infinite"]
    for point in found["points"]:
        share = f"{point['hit_rate'] / infinite:.1%}" if infinite else "–"
        yield (
            f"{point['memory_gib']:,.2f}",
            f"{point['num_blocks']:,}",
            f"{point['hit_rate']:.2%}",
            share,
        )
    if infinite is not None:
        yield ("endless", "", f"{infinite:.2%}", "100.0%" if infinite else "–")
