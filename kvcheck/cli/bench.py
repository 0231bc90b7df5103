"""`kvspec bench`: measure implementations phase by phase, side by side."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
from rich.progress import Progress

from kvcheck.cli._bench_tables import show
from kvcheck.cli._options import FORMS_OF_IMPL, POSITIVE, json_option
from kvcheck.cli._support import (
    MOST_BLOCKS,
    check_outputs,
    fail,
    output_console,
    progress_bars,
    write_json,
)
from kvcheck.discovery import find_implementation
from kvcheck.installed import installed_implementations
from kvcheck.tools.bench.calls import HOOK
from kvcheck.tools.bench.cases import (
    BLOCK_SIZE_TOKENS,
    HASH_FUNCTION,
    Case,
    Plan,
    ReplayCase,
    Section,
    full_plan,
    quick_plan,
)
from kvcheck.tools.bench.measure import Measured, Patience, Subject, contestants, measure, turns
from kvcheck.tools.bench.pools import PoolCost, can_measure, pool_costs
from kvcheck.tools.bench.report import Report
from kvcheck.tools.bench.script import record
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import select

PEERS: Mapping[str, str] = {
    "vllm": "kvcheck.adapters.vllm:implementation",
    "sglang": "kvcheck.adapters.sglang:implementation",
    "nano-vllm": "kvcheck.adapters.nanovllm:implementation",
}

REPLAY_BLOCKS = 131_072
REPLAY_RUNNING = 128
PATIENCE_S = 30.0
PREPARE_FACTOR = 3
"""Filling a pool may take this many times as long as its rounds."""


@dataclass(frozen=True)
class Wanted:
    """The options of the command."""

    names: tuple[str, ...]
    peer: str | None
    sections: tuple[Section, ...]
    quick: bool
    trace: str | None
    requests: int
    num_blocks: int
    patience: float


@click.command()
@click.option(
    "--impl",
    "names",
    multiple=True,
    metavar="IMPL",
    help=f"{FORMS_OF_IMPL}. May be repeated.  [default: all installed ones]",
)
@click.option(
    "--peer", type=click.Choice(list(PEERS)), help="Compare with the manager of this project."
)
@click.option(
    "--only",
    "sections",
    type=click.Choice([*(each.value for each in Section)]),
    multiple=True,
    help="Run only this part. May be repeated. A TRACE is replayed in any case.",
)
@click.option("--quick", is_flag=True, help="Fewer and smaller cases: seconds, not minutes.")
@click.option(
    "--trace",
    metavar="TRACE",
    help="Also replay a trace, named as for `kvspec replay`: a file, demo, synth:chat….",
)
@click.option(
    "--requests",
    type=POSITIVE,
    default=200,
    help="Number of requests to replay, from the start of the trace.",
)
@click.option(
    "--num-blocks",
    type=click.IntRange(2, MOST_BLOCKS),
    default=REPLAY_BLOCKS,
    help="Blocks in the replay's pool, of 16 tokens each.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0.0),
    default=PATIENCE_S,
    metavar="SECONDS",
    help="Skip a case for an implementation that would need longer.",
)
@json_option("Write the times of every round as JSON; - for stdout.")
def command(json_path: Path | None, **given: Any) -> None:
    """Measure how fast implementations are, phase by phase, side by side.

    Each phase is timed separately: hashing a prompt, looking it up, allocating (and caching) its
    blocks, freeing them; appending a token and allocating its slot; and with --trace a whole trace.
    In every round all implementations do the same work, in random order and without audits, and
    their results are compared. Ratios are taken within a round, against the peer or else the first
    IMPL. Implementations with their own batched calls are measured both ways.
    """
    given["sections"] = tuple(Section(each) for each in given["sections"])
    wanted = Wanted(**given)
    check_outputs(json_path)
    if wanted.trace is None and Section.REPLAY in wanted.sections:
        fail("--only replay needs --trace TRACE, such as --trace demo")
    subjects = _subjects(wanted.names, wanted.peer)
    plan = (quick_plan if wanted.quick else full_plan)(wanted.sections or tuple(Section))
    started = datetime.now(UTC)
    # Refreshed between turns: a refreshing thread would disturb the measurements.
    with progress_bars(counts=True, auto_refresh=False) as bar:
        pools = _measure_pools(plan, subjects, wanted, bar)
        plan = replace(plan, cases=(*plan.cases, *_replay(wanted, subjects)))
        measured = _measure(plan, subjects, wanted, bar)
    command = shlex.join(["kvspec", "bench", *_typed(click.get_current_context())])
    report = Report(subjects, measured, plan.num_rounds, command, started, pools)
    if json_path is not None:
        write_json(report.to_json(), json_path)
    show(report, output_console(json_path))


def _typed(context: click.Context) -> Iterator[str]:
    """Yield the options that differ from their defaults, as one would type them."""
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name == "json_path" or value in (None, (), False, option.default):
            continue
        name = option.opts[0]
        if value is True:
            yield name
        else:
            values = value if isinstance(value, tuple) else (value,)
            yield from (word for each in values for word in (name, str(each)))


def _subjects(names: tuple[str, ...], peer: str | None) -> tuple[Subject, ...]:
    """Return the peer, if any, and then the named or installed implementations."""
    chosen = {peer: PEERS[peer]} if peer is not None else {}
    for name in names or installed_implementations():
        if name in chosen:
            fail(f"--impl {name}: given twice")
        chosen[name] = name
    subjects = tuple(Subject(name, find_implementation(path)) for name, path in chosen.items())
    for subject in subjects:
        has_it = HASH_FUNCTION in subject.implementation.capabilities.hash_functions
        if not has_it and not hasattr(subject.implementation, HOOK):
            fail(f"{subject.name} has no hash function {HASH_FUNCTION}, which kvspec bench needs")
    return subjects


def _replay(wanted: Wanted, subjects: tuple[Subject, ...]) -> tuple[Case, ...]:
    """Replay the trace once to record its calls; returns no case if there is no trace."""
    if wanted.trace is None:
        return ()
    options = ReplayOptions(wanted.num_blocks, BLOCK_SIZE_TOKENS, max_running=REPLAY_RUNNING)
    # Not with the peer if there is another: its adapter would be called here.
    own = subjects if wanted.peer is None else subjects[1:] or subjects
    with open_trace(wanted.trace, endless=True) as source:
        script = record(
            own[0].implementation,
            options,
            select(source, limit=wanted.requests),
            trace_name=source.name,
        )
        name = Path(source.name).name
    if not script.prompts:
        fail(f"{wanted.trace}: holds no requests")
    return (ReplayCase(name, script),)


Advance = Callable[[str], None]


def _advance(progress: Progress, total: int) -> Advance:
    bar = progress.add_task("preparing", total=total)

    def on_turn(label: str) -> None:
        progress.update(bar, advance=1, description=label, refresh=True)

    return on_turn


def _measure_pools(
    plan: Plan, subjects: tuple[Subject, ...], wanted: Wanted, progress: Progress
) -> tuple[PoolCost, ...]:
    """Measure pools first, while this process is small: each is made in a fork of it."""
    if not plan.pool_sizes:
        return ()
    if not can_measure():
        if Section.MEMORY in wanted.sections:
            fail("--only memory: this system does not report the memory of a process")
        return ()
    on_pool = _advance(progress, len(plan.pool_sizes) * len(subjects))
    return tuple(pool_costs(subjects, plan.pool_sizes, max_fill_s=wanted.patience, on_pool=on_pool))


def _measure(
    plan: Plan, subjects: tuple[Subject, ...], wanted: Wanted, progress: Progress
) -> Measured:
    on_turn = _advance(progress, turns(plan, len(contestants(subjects))))
    patience = Patience(rounds_s=wanted.patience, prepare_s=PREPARE_FACTOR * wanted.patience)
    return measure(plan, subjects, on_turn=on_turn, patience=patience)
