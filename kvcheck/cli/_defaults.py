"""Defaults of options from a file, so that a line in CI repeats nothing.

`kvspec.toml` in the current folder has a table for each command, such as `[check]`; or
`pyproject.toml` has them as `[tool.kvspec.check]`. Keys are the names of the options.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from kvcheck.cli._support import closest, fail

OWN, PROJECT = "kvspec.toml", "pyproject.toml"


def defaults_of(command: click.Command, name: str, known: list[str]) -> dict[str, Any]:
    """Return the values that the file gives the command, by parameter; fails for unknown names."""
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
