"""`kvspec shrink`: reduce a record while the implementation still fails it."""

from __future__ import annotations

from pathlib import Path

import click

from kvcheck.cli._options import (
    impl_option,
    json_option,
    oracle_option,
    output_option,
    profile_option,
    record_argument,
)
from kvcheck.cli._support import fail, output_console, progress_bars, say, write_json
from kvcheck.discovery import find_implementation
from kvcheck.records.script import Script
from kvcheck.records.select import named_record
from kvcheck.records.shrink import NotFailingError, Shrinker, Shrunk
from kvspec.profile import find_profile


@click.command()
@record_argument
@impl_option("Implementation that fails the record", required=True)
@output_option("File for the smaller record.  [default: RECORD with .small before its suffix]")
@oracle_option("Implementation that gives the right results; must pass the record.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.0),
    default=60.0,
    help="Time limit; the smallest record found by then is written.",
)
@profile_option("Policies of a record that names none")
@json_option()
def command(
    record: Path,
    name: str,
    output: Path | None,
    oracle: str,
    seconds: float,
    profile: str,
    json_path: Path | None,
) -> int:
    """Reduce a record that an implementation fails to a smaller one.

    Removes the operations after the failing one, then requests, calls, tokens, options and blocks,
    as long as the last operation still fails in the same way: in the same kind of call, with the
    same field wrong. The oracle computes the right results of each candidate.
    RECORD is a file, or a shipped record: life_of_blocks or identities.

    Exit code 0: written, 1: the implementation does not fail the record, 2: could not run.
    """
    # By default KV-POOL-6.jsonl.gz -> KV-POOL-6.small.jsonl.
    target = output or record.with_name(f"{record.name.split('.jsonl')[0]}.small.jsonl")
    shrinker = Shrinker(
        named_record(record),
        find_implementation(name),
        find_implementation(oracle),
        policy=find_profile(profile).policy,
    )
    try:
        result = _run(shrinker, seconds)
    except NotFailingError as error:
        fail(str(error), exit_code=1)
    result.write(target)
    write_json(_to_json(result, target), json_path)
    sizes = f"{_size(result.after)}, of {_size(result.before)}"
    line = f"{target}: {sizes}; {result.kind.field} differs after {result.kind.call}"
    say(line, console=output_console(json_path))
    return 0


def _run(shrinker: Shrinker, seconds: float) -> Shrunk:
    with progress_bars() as progress:
        task = progress.add_task("shrinking", total=None)

        def heard(script: Script, tried: int) -> None:
            progress.update(task, description=f"{_size(script)}; {tried} tried")

        shrinker.progress = heard
        return shrinker.run(seconds)


def _size(script: Script) -> str:
    return (
        f"{len(script.calls)} operations, {len(script.request_ids)} requests,"
        f" {script.num_tokens} tokens"
    )


def _to_json(result: Shrunk, target: Path) -> dict[str, object]:
    def size(script: Script) -> dict[str, int]:
        return {
            "operations": len(script.calls),
            "requests": len(script.request_ids),
            "tokens": script.num_tokens,
            "blocks": script.config.kv_cache.num_blocks,
        }

    return {
        "record": str(target),
        "call": result.kind.call,
        "field": result.kind.field,
        "before": size(result.before),
        "after": size(result.after),
        "tried": result.tried,
    }
