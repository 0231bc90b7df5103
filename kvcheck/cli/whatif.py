"""`kvspec whatif`: compute the hit rates of traces for other pool sizes, and the best possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
from rich.progress import TaskID

from kvcheck.cli._hybrid import show_hybrid
from kvcheck.cli._options import POSITIVE, html_option, json_option
from kvcheck.cli._plans import CachedModel, HybridModel, cached_model, with_model_options
from kvcheck.cli._support import (
    MOST_BLOCKS,
    STDOUT,
    check_outputs,
    fail,
    output_console,
    progress_bars,
    progress_console,
    right_table,
    say,
    set_globally,
    write_json,
    write_whole,
)
from kvcheck.cli._traces import with_trace_options
from kvcheck.cli._workers import workers_for, workers_options
from kvcheck.tasks import Call, Workers, in_order
from kvcheck.tools.plans.document import GIB
from kvcheck.tools.replay.policies import POLICIES, lacks, policy_of
from kvcheck.tools.replay.report import wrapped
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import TraceSource, select
from kvcheck.tools.replay.units import Units, units_of
from kvcheck.tools.replay.whatif import Curve, curve, sizes_between
from kvcheck.tools.replay.whatif_page import whatif_page
from kvcheck.tools.replay.whatif_text import (
    Speed,
    costs_line,
    enough_line,
    heading,
    side_by_side,
    table,
)


@click.command()
@click.argument("traces", nargs=-1, required=True, metavar="TRACE…")
@click.option(
    "--block-size",
    "block_sizes",
    type=POSITIVE,
    multiple=True,
    help="Tokens in a block; a divisor or multiple of the tokens per id of TRACE. May be repeated,"
    " for one curve each.  [default: the model's, or else the tokens per id]",
)
@click.option(
    "--sizes",
    type=click.IntRange(1, 1000),
    default=20,
    help="Number of pool sizes, spaced by equal ratios from the largest request to the whole"
    " trace.",
)
@click.option(
    "--num-blocks",
    "chosen",
    type=click.IntRange(2, MOST_BLOCKS),
    multiple=True,
    help="Pool size instead of --sizes, in blocks including the null block. May be repeated.",
)
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    help=f"Also try another order of eviction: {', '.join(POLICIES)}. May be repeated.",
)
@click.option(
    "--host-blocks",
    type=POSITIVE,
    metavar="N",
    help="Add a tier in host memory: N blocks that hold what the pool evicted last.",
)
@click.option(
    "--host-gib",
    type=click.FloatRange(min=0, min_open=True),
    metavar="GIB",
    help="With --model: GiB of host memory on each worker, in place of --host-blocks.",
)
@click.option(
    "--load-rate",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    metavar="GIB",
    help="GiB that a worker loads from the host in a second, to show how long loads take."
    "  [default: 20]",
)
@click.option(
    "--prefill-rate",
    type=POSITIVE,
    metavar="N",
    help="Prompt tokens that an engine computes in a second, to compare loads with recomputing.",
)
@click.option("--limit", type=POSITIVE, metavar="N", help="Use only the first N requests.")
@json_option()
@html_option
@with_model_options
@with_trace_options
@workers_options
def command(
    traces: tuple[str, ...],
    block_sizes: tuple[int, ...],
    sizes: int,
    chosen: tuple[int, ...],
    policies: tuple[str, ...],
    limit: int | None,
    json_path: Path | None,
    html_path: Path | None,
    model: str | None,
    memories_gib: tuple[float, ...],
    tensor: int | None,
    jobs: int,
    cluster: str | None,
    **reading: Any,
) -> None:
    """Show what hit rates traces would reach with pools of other sizes.

    TRACE is named as for `kvspec replay`. For each pool size, the table shows the hit rate under
    the rules, and under the best possible eviction, which knows the future (Belady); and at the end
    the hit rate of an endless pool, and the number of blocks that gives 90 % of it. Several traces
    are shown side by side, for pools that hold the same number of tokens. Requests run one at a
    time; spec/replay.md says what this simplification leaves out.

    With --model, the table also shows the memory that the tokens of a pool take on each worker, and
    --memory-gib chooses pools by it: `--model llama-3.1-8b --memory-gib 20 --memory-gib 40`.
    A model whose layers forget tokens, such as gpt-oss-20b, is replayed for each memory.

    --policy shows what another order of eviction would hit, and what its bookkeeping costs beside
    LRU's: `--policy arc --policy lfu --policy ttl:300`. The rules keep LRU.

    --jobs and --cluster divide the curves, so there must be several; the results are the same.
    --host-gib, or --host-blocks, shows what a tier in host memory would hit in addition, how long
    its loads take, and with --prefill-rate how long recomputing them would.

    --html F writes a page with the curves: point at one, or move the slider from pool to pool.
    """
    check_outputs(json_path, html_path)
    cached = cached_model(model, memories_gib, tensor)
    if chosen and memories_gib:
        fail("--num-blocks and --memory-gib both choose the pools; leave out one")
    host, speed = _host(reading)
    if any(host):
        _check_host(cached, policies, len(traces) * max(1, len(block_sizes)))
    opened = partial(open_trace, endless=limit is not None, **reading)
    for name in policies:
        policy_of(name)
    if isinstance(cached, HybridModel):
        return show_hybrid(traces, cached, opened, click.get_current_context().params)
    wanted = block_sizes or (None if cached is None else cached.block_size,)
    asked = [_read(trace, size, limit, opened) for trace in traces for size in wanted]
    policies = _possible(policies, asked)
    pools = _pools_for(asked, sizes, sorted(set(chosen)), memories_gib, cached)
    num_host_blocks = _host_of(*host, cached, asked[0][1])
    with workers_for(jobs, cluster, num_calls=len(asked)) as workers:
        policies = tuple(dict.fromkeys(policies))
        curves = curves_of(asked, pools, workers, policies, num_host_blocks=num_host_blocks)
    _write(curves, cached, html_path, json_path)
    if str(json_path) != STDOUT:
        _show(curves, cached, speed)


def _write(
    curves: Sequence[Curve],
    cached: CachedModel | None,
    html_path: Path | None,
    json_path: Path | None,
) -> None:
    if html_path is not None:
        write_whole(html_path, whatif_page(curves, cached).encode())
    named = {} if cached is None else {"model": asdict(cached)}
    write_json({"curves": [asdict(each) for each in curves], **named}, json_path)


def _host(options: dict[str, Any]) -> tuple[tuple[int | None, float | None], Speed]:
    """Take the options of a host tier: blocks and GiB, and how fast it is."""
    size = options.pop("host_blocks"), options.pop("host_gib")
    return size, Speed(options.pop("load_rate"), options.pop("prefill_rate"))


def _check_host(cached: object, policies: Sequence[str], num_curves: int) -> None:
    if policies or num_curves > 1:
        fail("a tier in host memory is shown of one trace, one block size and the rules' order")
    if isinstance(cached, HybridModel):
        fail("a tier in host memory is shown of models whose layers keep every token")


def _host_of(
    num_blocks: int | None, gib: float | None, cached: CachedModel | None, units: Units
) -> int:
    """Return the blocks of the host tier, 0 for none."""
    if gib is None:
        return num_blocks or 0
    if cached is None or num_blocks:
        fail("--host-gib goes with --model, and in place of --host-blocks")
    return int(gib * GIB) // (units.block_size * cached.bytes_per_token)


def _possible(policies: Sequence[str], asked: Sequence[tuple[str, Units]]) -> tuple[str, ...]:
    """Return the policies, without LRU and those that read what a trace does not say.

    Remarks on these; fails if nothing is left.
    """
    lines = {
        name: f"--policy {name}: {trace} has no {lacking}"
        for name, (trace, units) in product(policies, asked)
        if (lacking := lacks(units, name))
    }
    found = tuple(name for name in policies if name not in lines)
    if lines and not found:
        fail(next(iter(lines.values())))
    say(*(f"{line}; left out" for line in lines.values()), console=progress_console())
    return tuple(name for name in found if name != "lru")


def _read(
    trace: str,
    block_size: int | None,
    limit: int | None,
    opened: Callable[[str], AbstractContextManager[TraceSource]],
) -> tuple[str, Units]:
    with opened(trace) as source:
        units = units_of(select(source, limit=limit), block_size)
    if not units.requests:
        fail(f"{trace}: holds no requests")
    return trace, replace(units, notes=source.notes)


def _pools(
    asked: Sequence[tuple[str, Units]], count: int, chosen: Sequence[int]
) -> list[Sequence[int]]:
    """Return the pool sizes for each trace and block size; fails if a chosen one is too small."""
    for trace, units in asked:
        if chosen and chosen[0] < units.smallest_pool:
            problem = f"the largest request of {trace} needs {units.smallest_pool} blocks"
            fail(f"--num-blocks {chosen[0]}: {problem} of {units.block_size} tokens")
    if chosen:
        return [chosen] * len(asked)
    return [*sizes_between([units for _, units in asked], count)]


def _pools_for(
    asked: Sequence[tuple[str, Units]],
    count: int,
    chosen: Sequence[int],
    memories_gib: Sequence[float],
    cached: CachedModel | None,
) -> list[Sequence[int]]:
    """Return the pools that were chosen by memory or by blocks, or `count` of them."""
    if cached is not None and memories_gib:
        return [_pools_of(units, memories_gib, cached) for _, units in asked]
    return _pools(asked, count, chosen)


def _pools_of(units: Units, memories_gib: Sequence[float], cached: CachedModel) -> Sequence[int]:
    """Return the pools that fit in these memories; fails if one is too small for a request."""
    for memory in memories_gib:
        if cached.num_blocks(memory, units.block_size) < units.smallest_pool:
            tokens = units.smallest_pool * units.block_size
            fail(f"--memory-gib {memory:g}: the largest request needs {cached.gib(tokens)}")
    return sorted({cached.num_blocks(memory, units.block_size) for memory in memories_gib})


def curves_of(
    asked: Sequence[tuple[str, Units]],
    pools: Sequence[Sequence[int]],
    workers: Workers | None,
    policies: Iterable[str] = (),
    *,
    num_host_blocks: int = 0,
) -> list[Curve]:
    """Compute the curve of each trace and block size, with progress bars."""
    curves: list[Curve] = []
    with progress_bars() as bar:

        def calls() -> Iterator[Call]:
            for (trace, units), sizes in zip(asked, pools, strict=True):
                task = bar.add_task(f"{trace}, {units.block_size}", total=len(sizes) + 1)
                tasks.append(task)
                here = partial(curve, on_step=partial(bar.advance, task))
                yield (
                    here if workers is None else curve,
                    (trace, units, sizes, tuple(policies), num_host_blocks),
                )

        tasks: list[TaskID] = []
        for found in in_order(workers, calls()):
            bar.update(tasks[len(curves)], completed=len(found.points) + 1)
            curves.append(found)
    return curves


def _show(curves: Sequence[Curve], cached: CachedModel | None, speed: Speed) -> None:
    """Print a table of each curve, or one of several side by side, referred to by number."""
    console = output_console()
    if cached is not None and not set_globally("quiet"):
        say(cached.line, console=console)
    if set_globally("quiet"):
        say(*(f"{found.trace}: {enough_line(found, cached)}" for found in curves), console=console)
        return
    is_single = len(curves) == 1 or bool(curves[0].costs)
    for number, found in enumerate(curves, 1):
        notes = (f"  note: {note}" for note in found.notes)
        named = "" if is_single else f"{number}  "
        head = wrapped([f"{named}{heading(found, found.trace)}", *notes], console.width)
        say(*head, console=console)
        if is_single:
            if found.num_host_blocks:
                say(f"  on the host: {found.num_host_blocks:,} blocks", console=console)
            given = speed if found.num_host_blocks else None
            console.print(right_table(*table(found, cached, given)))
            costs = [costs_line(found)] if found.costs else []
            say(*wrapped([enough_line(found, cached), *costs], console.width), console=console)
    if not is_single:
        console.print(right_table(*side_by_side(curves, cached)))
