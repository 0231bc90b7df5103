"""Make the records of differences again, each by its own operations on kvref.

Each shows, in as few operations as possible, one point where the rules differ from vLLM 0.24.0; the
README beside the files says which, and what vLLM does instead.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvcheck.discovery import find_implementation
from kvcheck.records.select import shipped_records
from kvspec.errors import ConfigError
from kvspec.record import Header
from kvspec.record_file import write_trace
from tests.records.changed import Tape, made_again

REFUSED = "chunk_inside_block.jsonl"
"""The one without operations: a chunk of 6 tokens in blocks of 4 must be refused."""


def refused_again() -> Header:
    """Make its header again: the same configuration, and what building the manager says."""
    header = Tape.read(folder() / REFUSED).header
    implementation = find_implementation("kvref")
    try:
        implementation.create(header.config)
    except ConfigError as error:
        can = implementation.capabilities
        return replace(header, message=str(error), source=f"{can.name} {can.version}")
    raise AssertionError(f"{REFUSED}: a manager was built")


def folder() -> Path:
    return shipped_records() / "differences"


def write_vectors(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder().glob("*.jsonl")):
        if path.name == REFUSED:
            write_trace(target / REFUSED, refused_again(), (), {})
        else:
            made_again(path).write(target / path.name)
