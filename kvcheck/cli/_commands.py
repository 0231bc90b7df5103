"""The list of commands, and their defaults from a file; a command is imported when it runs."""

from __future__ import annotations

import importlib
import tomllib
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvcheck.cli._options import global_options
from kvcheck.cli._support import EXIT_CODES, closest, fail


@dataclass(frozen=True)
class Entry:
    """One command: its name, its module in `kvcheck.cli`, and its line in `kvspec --help`.

    The module has a `command`, a `click.Command` whose help begins with `summary`, and whose
    callback returns the exit code (None: 0).
    """

    name: str
    summary: str

    @property
    def module(self) -> str:
        return f"kvcheck.cli.{self.name.replace('-', '_')}"


COMMANDS: tuple[Entry, ...] = (
    Entry("bench", "Measure how fast implementations are, phase by phase, side by side."),
    Entry("check", "Show which rules an implementation breaks, with the smallest example of each."),
    Entry("doctor", "Show what is installed, what is missing, and how to get it."),
    Entry("examples", "Run the rules' examples on an implementation and show each failure."),
    Entry("explore", "Explore every state of small configurations, and try every operation there."),
    Entry("golden", "Replay records against an implementation and show every difference."),
    Entry("hazards", "Check a record of copies and steps for accesses in the wrong order."),
    Entry("plan", "Show how a model's cache is laid out and how many tokens it holds."),
    Entry("probe", "Check a server's replies one message at a time, while it is being written."),
    Entry("prompts", "Show where prompts part, and what another template would hit."),
    Entry("redact", "Replace the tokens and names in a record so that it can be shared."),
    Entry("replay", "Replay a request trace and report hits, evictions, usage."),
    Entry("rule", "Show a rule, its examples, and what happens in them, line by line."),
    Entry("serve", "Serve an implementation over stdin and stdout, for `--impl cmd:…`."),
    Entry("shrink", "Reduce a record that an implementation fails to a smaller one."),
    Entry("vectors", "Write the examples as JSON lines, for tests without Python."),
    Entry("view", "Write a page that shows a record step by step: blocks, requests, free queue."),
    Entry("whatif", "Show what hit rates traces would reach with pools of other sizes."),
)


class LazyGroup(click.Group):
    """A group that lists its commands from `COMMANDS` and imports one only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [entry.name for entry in COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        names = self.list_commands(ctx)
        for entry in COMMANDS:
            if entry.name == cmd_name:
                command: click.Command = importlib.import_module(entry.module).command
                command = copy(command)  # a module keeps its own
                command.params = [*command.params, *global_options()]
                command.epilog = EXIT_CODES
                ctx.default_map = {cmd_name: defaults_of(command, cmd_name, names)}
                return command
        return ctx.fail(f"No such command {cmd_name!r}{closest(cmd_name, names)}")

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(entry.name, entry.summary) for entry in COMMANDS])


OWN, PROJECT = "kvspec.toml", "pyproject.toml"


def defaults_of(command: click.Command, name: str, known: list[str]) -> dict[str, Any]:
    """Return a command's defaults from a file, so that a line in CI repeats nothing.

    `kvspec.toml` in the current folder has a table for each command, such as `[check]`; or
    `pyproject.toml` has them as `[tool.kvspec.check]`. Keys are the names of the options; fails
    for unknown ones.
    """
    path = Path(OWN if Path(OWN).is_file() else PROJECT)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        fail(f"{path}: {error}")
    if path.name == PROJECT:
        content = content.get("tool", {}).get("kvspec", {})
    else:
        for table in content:
            if table not in known:
                fail(f"{path}: [{table}] is no command of kvspec{closest(table, known)}")
    given = content.get(name, {})
    if not isinstance(given, dict):
        fail(f"{path}: {name} must be a table of options")
    found = {_parameter(command, name, path, key): value for key, value in given.items()}
    return {
        each.name: [value] if each.multiple and isinstance(value, str) else value
        for each, value in found.items()
        if each.name
    }


def _parameter(command: click.Command, name: str, path: Path, key: str) -> click.Parameter:
    """Return the parameter that an option sets, or an argument as the help shows it."""
    names: dict[str, click.Parameter] = {}
    for each in command.params:
        shown = each.opts
        if isinstance(each, click.Argument):
            shown = each.make_metavar(click.Context(command)).lower().strip("[]….").split("|")
        names |= {opt.lstrip("-"): each for opt in shown}
    wanted = key.replace("_", "-")
    if wanted not in names:
        fail(f"{path}: [{name}] has no option {key}{closest(wanted, names)}")
    return names[wanted]
