"""Options and arguments shared by several commands, and those that every command has."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, TypeVar

import click

from kvcheck.cli._support import closest, fail
from kvcheck.rulebook import rule_sentences
from kvspec.profile import RECORDS_PROFILE

Command = TypeVar("Command", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
POSITIVE = click.IntRange(min=1)

FORMS_OF_IMPL = "a name such as kvref, package.module:factory, or cmd:PROGRAM ARGS…"


def _a_file(context: click.Context, option: click.Parameter, given: Path | None) -> Path | None:
    """Return the path; fails for -, which is for JSON."""
    if str(given) == "-":
        fail("--html -: must be the name of a file")
    return given


def together(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return these options as one, for commands that have all of them."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


impl_argument = click.argument("name", metavar="IMPL")
record_argument = click.argument("record", metavar="RECORD", type=PATH)
records_option = click.option(
    "--records",
    "records_path",
    type=FOLDER,
    metavar="DIR",
    help="Write each violation to DIR as a record, for kvspec golden, view, shrink and redact.",
)
plot_option = click.option(
    "--plot", "plot_path", type=PATH, metavar="FILE", help="Write a chart to FILE (.png or .svg)."
)
html_option = click.option(
    "--html",
    "html_path",
    type=PATH,
    callback=_a_file,
    metavar="FILE",
    help="Write a report as a single HTML page that needs no network.",
)
fail_fast_option = click.option("-x", "--fail-fast", is_flag=True, help="End at the first failure.")
verbose_option = click.option("-v", "--verbose", is_flag=True, help="Show everything, in full.")


def impl_option(text: str = "Implementation", **options: Any) -> Callable[[Command], Command]:
    shown = f"{text}: {FORMS_OF_IMPL}."
    return click.option("--impl", "name", **{"metavar": "IMPL", "help": shown, **options})


def oracle_option(text: str = "Implementation to compare with.") -> Callable[[Command], Command]:
    return click.option("--oracle", default="kvref", metavar="IMPL", help=text)


def profile_option(text: str, default: str = RECORDS_PROFILE) -> Callable[[Command], Command]:
    """Return the option --profile; `text`: what it applies to."""
    return click.option(
        "--profile",
        default=default,
        metavar="NAME_OR_FILE",
        help=f"{text}: the name of a shipped profile, or a TOML file.",
    )


def output_option(text: str, **options: Any) -> Callable[[Command], Command]:
    """Return the option --output, a file unless `options` override its type."""
    return click.option(
        "-o", "--output", **{"type": FILE, "metavar": "FILE", "help": text, **options}
    )


def json_option(
    text: str = "Write a report as JSON; - for stdout.",
) -> Callable[[Command], Command]:
    """Return the option --json, which names a file, or - for stdout."""
    return click.option("--json", "json_path", type=PATH, metavar="FILE", help=text)


def rules_option(command: Command) -> Command:
    """Add the option --rules: patterns of the rules' ids, in any case."""
    return click.option(
        "--rules",
        multiple=True,
        metavar="GLOB",
        callback=_patterns,
        help="Only these rules, e.g. 'KV-POOL-*,kv-sw-2'. May be repeated.",
    )(command)


def _patterns(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> Any:
    """Return the patterns; fails for one that no rule matches, unless a folder has others."""
    found = tuple(part.strip() for each in given for part in each.split(","))
    found = tuple(each.upper() if each[:3].upper() == "KV-" else each for each in found)
    has_others = any(each.name == "folder" for each in context.command.params)
    for pattern in () if has_others else found:
        if not any(fnmatchcase(rule, pattern) for rule in rule_sentences()):
            like = closest(pattern, rule_sentences()) or "; rules have names like KV-POOL-4"
            fail(f"--rules {pattern}: no rule matches{like}")
    return found


def global_options() -> list[click.Parameter]:
    """Return the options that each command has beside its own, for `set_globally` to read."""

    def note(context: click.Context, option: click.Parameter, value: object) -> None:
        context.meta[f"kvspec.{option.name}"] = value

    return [
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            expose_value=False,
            callback=note,
            help="Show neither progress nor remarks, and of a report the verdict alone.",
        ),
        click.Option(
            ["--color"],
            type=click.Choice(["auto", "always", "never"]),
            default="auto",
            expose_value=False,
            callback=note,
            help="auto: colours on a terminal, unless NO_COLOR is set.",
        ),
    ]
