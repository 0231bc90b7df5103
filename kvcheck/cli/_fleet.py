"""`kvspec replay --engines N`: replay a trace through several engines, once for each route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from kvcheck.cli._options import together
from kvcheck.cli._support import STDOUT, fail, say, set_globally, write_json
from kvcheck.cli._traces import opened
from kvcheck.cli._watch import Shown, watching
from kvcheck.cli._workers import workers_for
from kvcheck.discovery import find_implementation
from kvcheck.tasks import in_order
from kvcheck.tools.replay.driver import ReplayError
from kvcheck.tools.replay.file import STDIN
from kvcheck.tools.replay.fleet import ALONE, ROUTES, Fleet, fleet_report, fleet_text, fleet_verdict
from kvcheck.tools.replay.options import ReplayOptions
from kvcheck.tools.replay.trace import select
from kvspec.errors import InvariantViolation
from kvspec.fleet import FleetImplementation, PrefixIndex

_ONE_POOL = ("plot_path", "html_path", "record_path")
_INDEX = "kvfast"
"""The router uses this implementation's prefix index, whatever the engines run."""


with_fleet_options = together(
    click.option(
        "--engines",
        type=click.IntRange(1, 10_000),
        metavar="N",
        help="Replay through N engines, each with its own pool of --num-blocks.",
    ),
    click.option(
        "--route",
        "routes",
        type=click.Choice(ROUTES),
        multiple=True,
        help="With --engines: how requests are routed. May be repeated.  [default: all routes]",
    ),
)


def replay_fleet(
    trace: str,
    impl: str,
    options: ReplayOptions,
    given: Mapping[str, Any],
    shown: Shown,
) -> None:
    """Replay the trace once for each route; print a row for each, and write the JSON if asked."""
    for name in _ONE_POOL:
        if given[name] is not None:
            option = f"--{name.partition('_')[0]}"
            fail(f"{option} works with one pool only and cannot be combined with --engines")
    routes = given["routes"] or ROUTES
    if trace == STDIN and len(routes) > 1:
        fail("standard input can be read only once; give one --route, or a file")
    with workers_for(given["jobs"], given["cluster"], num_calls=len(routes)) as workers:
        shown = shown if workers is None else shown.divided([trace])
        ways = [(options, given["engines"], route, shown) for route in routes]
        if not given["routes"]:
            unseen = Shown(live=False, quiet=True)
            num_blocks = given["engines"] * (options.num_blocks - 1) + 1  # of all, and one null
            pools = options, replace(options, num_blocks=num_blocks)
            ways += [(pool, 1, ROUTES[0], unseen) for pool in pools]
        calls = (
            (_replay, (trace, impl, pool, {**given, "engines": engines}, route, seen))
            for pool, engines, route, seen in ways
        )
        found = list(in_order(workers, calls))
    every, notes = [each for each, _ in found], found[0][1]
    reports, alone = every[: len(routes)], every[len(routes) :]
    if not reports[0]["requests"]:
        fail(f"{trace}: no request was kept; nothing was replayed")
    content = fleet_report(
        reports,
        options,
        trace=trace,
        notes=list(notes),
        implementation=find_implementation(impl).capabilities.name,
        engines=given["engines"],
        alone=[{**each, "route": name} for name, each in zip(ALONE, alone, strict=False)],
        sample=given["sample"],
        limit=given["limit"],
    )
    write_json(content, given["json_path"])
    if str(given["json_path"]) != STDOUT:
        quiet = bool(set_globally("quiet"))
        say(*(fleet_verdict(content) if quiet else fleet_text(content).splitlines()))


def _replay(
    trace: str,
    impl: str,
    options: ReplayOptions,
    given: Mapping[str, Any],
    route: str,
    shown: Shown,
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Replay one route; returns its report, and the notes on what is inexact in the trace."""
    implementation = find_implementation(impl)
    limit = given["limit"]
    with opened(trace, given, ordered=given["arrival"] == "timestamp") as source:
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
        return found, source.notes


def _index() -> PrefixIndex:
    found = find_implementation(_INDEX)
    if not isinstance(found, FleetImplementation):
        fail(f"{_INDEX} has no prefix index; reinstall kvspec")
    return found.make_prefix_index()
