"""Descriptions of public architectures that are part of the package."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def shipped_folder() -> Path:
    """Return the folder of the shipped models."""
    return Path(str(files("kvcheck").joinpath("data", "models")))


def shipped_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in shipped_folder().glob("*.json")))


def shipped_path(name: str) -> Path:
    """Return the file of a shipped name; it exists if the name is one of `shipped_names`."""
    return shipped_folder() / f"{name}.json"
