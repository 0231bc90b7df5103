"""`kvspec bench`: measure implementations phase by phase, side by side."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from kvcheck.cli._bench_tables import show
from kvcheck.cli._options import FORMS_OF_IMPL, POSITIVE, json_option
from kvcheck.cli._support import check_outputs, fail, output_console, progress_bars, write_json
from kvcheck.discovery import find_implementation
from kvcheck.installed import installed_implementations
from kvcheck.tools.bench.calls import HOOK
from kvcheck.tools.bench.measure import Contestant, contestants, measure
from kvcheck.tools.bench.replay import recorded
from kvcheck.tools.bench.report import document
from kvcheck.tools.bench.script import (
    BLOCK_SIZE_TOKENS,
    HASH_FUNCTION,
    SECTIONS,
    Case,
    full_plan,
    quick_plan,
)
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import select

PEERS: Mapping[str, str] = {
    "vllm": "kvcheck.adapters.vllm:implementation",
}

REPLAY_BLOCKS = 131_072
REPLAY_RUNNING = 128


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
    type=click.Choice(SECTIONS),
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
@json_option("Write the times of every round as JSON; - for stdout.")
def command(
    names: tuple[str, ...],
    peer: str | None,
    sections: tuple[str, ...],
    json_path: Path | None,
    **options: Any,
) -> None:
    """Measure how fast implementations are, phase by phase, side by side.

    Each phase is timed separately: hashing a prompt, looking it up, allocating (and caching) its
    blocks, freeing them; appending a token and allocating its slot; and with --trace a whole trace.
    In every round all implementations do the same work, in random order and without audits, and
    their results are compared. Ratios are taken within a round, against the peer or else the first
    IMPL. Implementations with their own batched calls are measured both ways. One that would take
    more than half a minute for a case is left out of it, and of the larger ones.
    """
    check_outputs(json_path)
    if options["trace"] is None and "replay" in sections:
        fail("--only replay needs --trace TRACE, such as --trace demo")
    playing = _contestants(names, peer)
    plan = (quick_plan if options["quick"] else full_plan)(sections or SECTIONS)
    started = datetime.now(UTC)
    if options["trace"] is not None:
        # Not with the peer if there is another: its adapter would be called here.
        own = [each for each in playing if each.subject != peer] or playing
        plan = replace(plan, cases=(*plan.cases, _replay(own[0], options)))
    # Refreshed between cases: a refreshing thread would disturb the measurements.
    with progress_bars(counts=True, auto_refresh=False) as progress:
        bar = progress.add_task("preparing", total=len(plan.cases), completed=-1)

        def on_next(label: str) -> None:
            progress.update(bar, advance=1, description=label, refresh=True)

        measured = measure(plan, playing, on_case=on_next)
    typed = shlex.join(["kvspec", "bench", *_typed(click.get_current_context())])
    found = document(playing, measured, plan.num_rounds, typed, started)
    write_json(found, json_path)
    show(found, output_console(json_path))


def _typed(context: click.Context) -> Iterator[str]:
    """Yield the options that differ from their defaults, as one would type them."""
    for option in context.command.params:
        value = context.params.get(option.name or "")
        if option.name == "json_path" or value in (None, (), False, option.default):
            continue
        for each in value if isinstance(value, tuple) else (value,):
            yield option.opts[0]
            if value is not True:
                yield str(each)


def _contestants(names: tuple[str, ...], peer: str | None) -> list[Contestant]:
    """Return the peer, if any, and then the named or installed implementations."""
    chosen = {peer: PEERS[peer]} if peer is not None else {}
    for name in names or installed_implementations():
        if name in chosen:
            fail(f"--impl {name}: given twice")
        chosen[name] = name
    playing: list[Contestant] = []
    for name, path in chosen.items():
        implementation = find_implementation(path)
        has_it = HASH_FUNCTION in implementation.capabilities.hash_functions
        if not has_it and not hasattr(implementation, HOOK):
            fail(f"{name} has no hash function {HASH_FUNCTION}, which kvspec bench needs")
        playing += contestants(name, implementation)
    return playing


def _replay(recorder: Contestant, options: Mapping[str, Any]) -> Case:
    replayed = ReplayOptions(REPLAY_BLOCKS, BLOCK_SIZE_TOKENS, max_running=REPLAY_RUNNING)
    with open_trace(options["trace"], endless=True) as source:
        records = select(source, limit=options["requests"])
        name = Path(source.name).name
        case = recorded(recorder.implementation, replayed, records, trace_name=name)
    if not case.facts["num_requests"]:
        fail(f"{options['trace']}: holds no requests")
    return case
