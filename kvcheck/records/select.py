"""Select the record files that a run replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kvspec.errors import FormatError
from kvspec.record import Header, PlanningHeader
from kvspec.record_file import read_header

PATTERNS = ("*.jsonl", "*.jsonl.gz")


@dataclass(frozen=True)
class Candidate:
    path: Path
    header: Header | PlanningHeader

    @property
    def is_planning(self) -> bool:
        return isinstance(self.header, PlanningHeader)


def named_record(record: Path) -> Path:
    """Return the file of a record, which may be given by the name of a shipped one."""
    shipped = shipped_records() / f"{record.name}.jsonl"
    named = len(record.parts) == 1 and not record.exists() and shipped.exists()
    return shipped if named else record


def shipped_records() -> Path:
    return Path(str(files("kvcheck").joinpath("data", "records")))


def find(paths: Iterable[Path]) -> list[Candidate]:
    """Return every record file in `paths`, with folders at any depth; each file once.

    Raises FormatError for a path that doesn't exist, a folder without record files, and a file
    that isn't a record.
    """
    found: dict[Path, Candidate] = {}
    for path in paths:
        for file in _record_files(path):
            found.setdefault(file.resolve(), Candidate(file, read_header(file)))
    return list(found.values())


def _record_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    inside = sorted({file for pattern in PATTERNS for file in path.rglob(pattern)})
    if not inside:
        raise FormatError(str(path), None, None, "no *.jsonl or *.jsonl.gz in this folder")
    return inside


def choose(candidates: Iterable[Candidate], scenarios: Sequence[str] = ()) -> list[Candidate]:
    """Return the traces of these scenarios; without any, all candidates."""
    if not scenarios:
        return list(candidates)
    headers = ((each, each.header) for each in candidates)
    return [
        each
        for each, header in headers
        if isinstance(header, Header) and header.scenario in scenarios
    ]


def scenarios_of(candidates: Iterable[Candidate]) -> list[str]:
    headers = (candidate.header for candidate in candidates)
    return sorted({header.scenario for header in headers if isinstance(header, Header)})
