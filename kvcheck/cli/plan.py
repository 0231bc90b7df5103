"""`kvspec plan`: show the groups, tensors, blocks and capacity of a model's cache."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.table import Table

from kvcheck.cli._options import POSITIVE, impl_option, json_option
from kvcheck.cli._plans import plan_path, planner_of
from kvcheck.cli._support import STDOUT, fail, output_console, say, set_globally, write_json
from kvcheck.tools.plans.document import (
    AUTO,
    GIB,
    PlanFile,
    read_plan_file,
    shipped_names,
    shipped_path,
)
from kvcheck.tools.plans.report import PlanReport, make_report, used_bytes
from kvspec.errors import CacheMemoryError, ConfigError

TABLE_WIDTH = 100
"""Minimum width of tables: wrapped lines on a narrow terminal are readable, cut columns are not."""


@click.command()
@click.argument("model", required=False, metavar="[FILE|MODEL]")
@impl_option("Planner, by default the first installed one")
@json_option()
@click.option("--list", "as_list", is_flag=True, help="List the shipped models and exit.")
@click.option(
    "--memory-gib",
    type=float,
    metavar="GIB",
    help="GiB for the cache on each worker (not the whole GPU), instead of the file's.",
)
@click.option(
    "--max-model-len",
    metavar="N",
    help="Tokens of the longest request, instead of the file's; auto: as many as fit.",
)
@click.option(
    "--tensor", type=POSITIVE, metavar="N", help="Tensor-parallel ranks, instead of the file's."
)
@click.option(
    "--pipeline", type=POSITIVE, metavar="N", help="Pipeline stages, instead of the file's."
)
def command(
    model: str | None,
    name: str | None,
    json_path: Path | None,
    as_list: bool,
    memory_gib: float | None,
    max_model_len: str | None,
    tensor: int | None,
    pipeline: int | None,
) -> int:
    """Show how a model's cache is laid out and how many tokens it holds.

    FILE describes the layers and the memory of each worker; MODEL is a name shown by --list.

    Exit code 0: the plan was shown, 1: the memory cannot hold one request of full length, 2: bad
    input, or no implementation can plan.
    """
    if as_list:
        _show_list()
        return 0
    if model is None:
        fail("give a plan file, or a model that kvspec plan --list shows")
    changes = _changes(memory_gib, max_model_len, tensor, pipeline)
    file = read_plan_file(plan_path(model), changes)
    implementation, planner = planner_of(name)
    try:
        report = make_report(file, implementation, planner)
    except CacheMemoryError as error:
        return _too_little(file, error)
    except ConfigError as error:
        fail(str(file.explain(error)))
    write_json(report.to_json(), json_path)
    if str(json_path) != STDOUT:
        _show(report)
    return 0


def _changes(
    memory_gib: float | None, max_model_len: str | None, tensor: int | None, pipeline: int | None
) -> dict[str, Any]:
    """Return the values that options override, by their place in the plan file."""
    changes: dict[str, Any] = {
        "memory_gib": memory_gib,
        "engine.max_model_len": _length(max_model_len),
        "parallel.tensor": tensor,
        "parallel.pipeline": pipeline,
    }
    return {place: value for place, value in changes.items() if value is not None}


def _length(given: str | None) -> int | str | None:
    if given is None or given == AUTO:
        return given
    if not (given.isascii() and given.isdecimal() and len(given) <= 16 and int(given)):
        fail(f"--max-model-len {given[:40]}: must be a number of tokens, or {AUTO}")
    return int(given)


def _too_little(file: PlanFile, error: CacheMemoryError) -> int:
    hint = "give more memory, or a smaller max_model_len"
    hint += f" ({AUTO}: as many tokens as fit)" if file.model is not None else ""
    fail(f"{file.explain(error)}; {hint}", exit_code=1)


def _show_list() -> None:
    width = max(map(len, shipped_names()))
    for name in shipped_names():
        document = json.loads(shipped_path(name).read_text(encoding="utf-8"))
        click.echo(f"{name:<{width}}  {document['description']}")


def _show(report: PlanReport) -> None:
    console = output_console()
    console.width = max(console.width, TABLE_WIDTH)
    facts = list(_facts(report))
    if set_globally("quiet"):
        known = dict(facts)
        say(f"{report.name}: {known['capacity']} in blocks: {report.num_blocks:,}", console=console)
        return
    width = max(len(label) for label, _ in facts)
    say(*(f"{label:<{width}}  {value}" for label, value in facts), console=console)
    if report.groups:
        console.print(_groups(report))
    console.print(_workers(report))
    say(*(f"warning: {warning}" for warning in report.plan.warnings), console=console)


def _facts(report: PlanReport) -> Iterator[tuple[str, str]]:
    """Yield labels and values, the most important first."""
    length = f"{report.plan.max_model_len_tokens:,} tokens"
    if report.is_automatic:
        length += ", the most that fit"
    yield "model", f"{report.name} (planned by {report.implementation})"
    yield "longest request", length
    yield "blocks", f"{report.num_blocks:,}, including the null block"
    if report.capacity is None:
        yield "capacity", "unlimited: no request takes a block"
    else:
        yield "capacity", f"{report.capacity.num_tokens:,} tokens"
        yield "concurrency", f"{report.capacity.max_concurrency:.2f} requests of full length"
    yield "blocks per request", f"{report.blocks_per_request:,} at full length"
    sizes = report.block_sizes
    if report.config.enable_caching:
        yield "hits end at", f"multiples of {sizes.scheduler_block_size_tokens:,} tokens"
        yield "tokens per hash", f"{sizes.hash_block_size_tokens:,}"
    else:
        yield "hits", "none: caching is off"
    yield "wasted by padding", f"{report.padding_percent:.2f} %"


def _table(title: str, first: str, *others: str) -> Table:
    """Return a table whose columns are not cut, however narrow the terminal."""
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _groups(report: PlanReport) -> Table:
    columns = ("layers", "block", "window", "page", "blocks/request", "padding")
    table = _table("groups", "kind", *columns)
    for group in report.groups:
        table.add_row(
            group.kind,
            f"{group.num_layers}",
            f"{group.block_size_tokens:,}",
            "–" if group.window_tokens is None else f"{group.window_tokens:,}",
            f"{group.page_size_bytes:,} B",
            f"{group.blocks_per_request:,}",
            f"{group.padding_percent:.2f} %",
        )
    return table


def _workers(report: PlanReport) -> Table:
    """Return the table of workers; neighbours with equal numbers share a row."""
    rows: list[tuple[list[int], tuple[str, ...]]] = []
    for index, cache in enumerate(report.plan.configs):
        row: tuple[str, ...] = (
            f"{len(report.workers[index])}",
            f"{len(cache.tensors)}",
            f"{report.bytes_per_block(index):,} B",
            f"{used_bytes(cache) / GIB:.2f} GiB",
            f"{report.memory_bytes[index] / GIB:.2f} GiB",
        )
        if rows and rows[-1][1] == row:
            rows[-1][0].append(index)
        else:
            rows.append(([index], row))
    table = _table("workers", "worker", "layers", "tensors", "bytes/block", "used", "of")
    for indices, row in rows:
        name = f"{indices[0]}" if len(indices) == 1 else f"{indices[0]} … {indices[-1]}"
        table.add_row(name, *row)
    return table
