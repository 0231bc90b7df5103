"""Descriptions of public architectures that are part of the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped_folder() -> Path:
    """Where they are."""
    return Path(str(files("kvcheck").joinpath("data", "models")))


def shipped_names() -> tuple[str, ...]:
    """Their names, sorted."""
    return tuple(sorted(path.stem for path in shipped_folder().glob("*.json")))


def shipped_path(name: str) -> Path:
    """The file of a shipped name; it exists if the name is one of `shipped_names`."""
    return shipped_folder() / f"{name}.json"
