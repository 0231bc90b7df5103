"""`kvspec replay --engines N`: one trace through several engines, by one route after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from kvcheck.cli._support import fail, write_json
from kvcheck.cli._watch import Shown, watching
from kvcheck.cli._workers import workers_for
from kvcheck.discovery import find_implementation
from kvcheck.tasks import in_order
from kvcheck.tools.replay.driver import ReplayError
from kvcheck.tools.replay.fleet import ROUTES, Fleet, fleet_report, fleet_text
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.source import open_trace
from kvcheck.tools.replay.trace import select
from kvspec.errors import InvariantViolation
from kvspec.fleet import FleetImplementation, PrefixIndex

_Command = TypeVar("_Command", bound=Callable[..., Any])
_STDIN = _STDOUT = "-"
_ONE_POOL = ("plot_path", "html_path", "record_path")
_INDEX = "kvfast"
"""Whose index the router uses, whoever the engines are of."""


def with_fleet_options(command: _Command) -> _Command:
    """`--engines` and `--route`."""
    routes = click.option(
        "--route",
        "routes",
        type=click.Choice(ROUTES),
        multiple=True,
        help="With --engines: how requests are sent; may be given several times.  [default: all]",
    )
    return click.option(
        "--engines",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Through N engines, each with a pool of its own.",
    )(routes(command))


def replay_fleet(
    trace: str,
    impl: str,
    options: ReplayOptions,
    given: Mapping[str, Any],
    shown: Shown,
) -> None:
    """Each route from the start of the trace; the rows, and the JSON if that is wanted."""
    for name in _ONE_POOL:
        if given[name] is not None:
            fail(f"--{name.partition('_')[0]} is about one pool; leave out it or --engines")
    routes = given["routes"] or ROUTES
    if trace == _STDIN and len(routes) > 1:
        fail("standard input can be read once; give one --route, or a file")
    with workers_for(given["jobs"], given["cluster"], num_calls=len(routes)) as workers:
        shown = shown if workers is None else shown.divided([trace])
        calls = ((_replay, (trace, impl, options, given, route, shown)) for route in routes)
        found = list(in_order(workers, calls))
    reports, notes = [each for each, _ in found], found[0][1]
    if not reports[0]["requests"]:
        fail(f"{trace}: holds no requests that are kept; nothing was replayed")
    content = fleet_report(
        reports,
        options,
        trace=trace,
        notes=list(notes),
        implementation=find_implementation(impl).capabilities.name,
        engines=given["engines"],
        sample=given["sample"],
        limit=given["limit"],
    )
    if given["json_path"] is not None:
        write_json(content, Path(given["json_path"]))
    if given["json_path"] != _STDOUT:
        click.echo(fleet_text(content), nl=False)


def _replay(
    trace: str,
    impl: str,
    options: ReplayOptions,
    given: Mapping[str, Any],
    route: str,
    shown: Shown,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """One route, and what is not exact in the trace."""
    implementation = find_implementation(impl)
    timed, limit = given["arrival"] == "timestamp", given["limit"]
    with open_trace(
        trace,
        ordered=timed,
        seed=given["seed"],
        endless=limit is not None,
        form=given["form"],
        tokenizer=given["tokenizer"],
        run_length=given["run_length"],
    ) as source:
        engines = f"{given['engines']:,} engines of {implementation.capabilities.name}"
        title = f"{Path(source.name).name} through {engines} by {route}"
        records = select(source, sample=given["sample"], limit=limit)
        with watching(
            source, records, options, shown, title=title, limit=limit, route=route
        ) as watch:
            try:
                fleet = Fleet(
                    implementation,
                    options,
                    watch.records,
                    num_engines=given["engines"],
                    route=route,
                    index=_index(),
                    trace_name=source.name,
                    check_invariants=given["check"],
                    on_progress=watch,
                )
                found = fleet.run()
            except (InvariantViolation, ReplayError) as error:
                fail(f"{implementation.capabilities.name}: {error}", exit_code=1)
            watch.end(fleet)
        return found, source.notes


def _index() -> PrefixIndex:
    found = find_implementation(_INDEX)
    if not isinstance(found, FleetImplementation):
        fail(f"{_INDEX} has no index of engines; install kvspec again")
    return found.make_prefix_index()
