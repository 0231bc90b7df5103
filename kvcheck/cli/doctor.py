"""`kvspec doctor`: report what is installed, what is missing, and how to install it."""

from __future__ import annotations

import platform
import re
from importlib.metadata import (
    EntryPoint,
    PackageNotFoundError,
    entry_points,
    metadata,
    requires,
    version,
)
from pathlib import Path
from typing import Any

import click

from kvcheck.cli._options import json_option
from kvcheck.cli._support import STDOUT, write_json
from kvcheck.discovery import find_implementation
from kvcheck.installed import installed_implementations
from kvspec.errors import UnknownImplementationError

DIAGNOSTICS_GROUP = "kvspec.diagnostics"


@click.command()
@json_option()
def command(json_path: Path | None) -> None:
    """Show what is installed, what is missing, and how to get it.

    Exit code 0, whatever is missing.
    """
    found = examine()
    write_json(found, json_path)
    if str(json_path) != STDOUT:
        _print(found)


def examine() -> dict[str, Any]:
    """Return the report as a JSON document.

    `kvspec`, `python`, `platform`: text. `extras`: name to `installed`, `packages` (name to
    version or null) and `install` (the line that installs it). `implementations`: name to
    `version` and `features`, or `error`. `diagnostics`: facts that installed packages report
    about themselves, name to label to text.
    """
    names = metadata("kvspec").get_all("Provides-Extra") or []
    return {
        "kvspec": version("kvspec"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "extras": {name: _extra(name) for name in names},
        "implementations": {name: _implementation(name) for name in installed_implementations()},
        "diagnostics": {
            entry.name: _diagnostics(entry) for entry in entry_points(group=DIAGNOSTICS_GROUP)
        },
    }


def _extra(name: str) -> dict[str, Any]:
    packages = {package: _version_or_none(package) for package in _packages_of(name)}
    return {
        "installed": None not in packages.values(),
        "packages": packages,
        "install": f"pip install 'kvspec[{name}]'",
    }


def _packages_of(extra: str) -> list[str]:
    """Return the packages an extra requires, including those of extras that it includes.

    A requirement reads `click>=8.1; extra == "cli"` or `kvspec[cli,plot]; extra == "dev"`.
    """
    packages = []
    for requirement in requires("kvspec") or []:
        wanted, _, condition = requirement.partition(";")
        if not re.search(rf"""extra\s*==\s*['"]{re.escape(extra)}['"]""", condition):
            continue
        own = re.match(r"\s*kvspec\s*\[([^]]*)\]", wanted)
        if own:
            packages += [p for part in own[1].split(",") for p in _packages_of(part.strip())]
        elif name := re.match(r"\s*([\w.-]+)", wanted):
            packages.append(name[1])
    return packages


def _version_or_none(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _implementation(name: str) -> dict[str, Any]:
    try:
        capabilities = find_implementation(name).capabilities
    except UnknownImplementationError as error:
        return {"error": error.reason or str(error)}
    return {"version": capabilities.version, "features": sorted(capabilities.features)}


def _diagnostics(entry: EntryPoint) -> dict[str, str]:
    try:
        return dict(entry.load()())
    except Exception as error:  # doctor must work above all where something is broken
        return {"error": f"{type(error).__name__}: {error}"}


def _print(found: dict[str, Any]) -> None:
    rows = [(label, found[label]) for label in ("kvspec", "python", "platform")]
    for name, facts in found["diagnostics"].items():
        rows += [(f"{name}: {label}", text) for label, text in facts.items()]
    for name, facts in found["implementations"].items():
        rows.append((f"implementation {name}", facts.get("error") or facts["version"]))
    for name, facts in found["extras"].items():
        absent = [package for package, installed in facts["packages"].items() if not installed]
        missing = f"missing {', '.join(absent)}; {facts['install']}"
        rows.append((f"extra {name}", "installed" if facts["installed"] else missing))
    width = max(len(label) for label, _ in rows)
    for label, text in rows:
        click.echo(f"{label:<{width}}  {text}")
