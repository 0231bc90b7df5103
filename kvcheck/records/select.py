"""Select the record files that a run replays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kvspec.errors import FormatError
from kvspec.record import Header, PlanningHeader
from kvspec.record_file import read_header
from kvspec.specs import FullAttentionSpec, MLAAttentionSpec

PATTERNS = ("*.jsonl", "*.jsonl.gz")

SINGLE_GROUP_KINDS: Mapping[str, tuple[str, ...]] = {
    "full": (FullAttentionSpec.kind, MLAAttentionSpec.kind)
}
"""The values of `--single-group`, and the spec kinds that each includes."""


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


def choose(
    candidates: Iterable[Candidate], scenarios: Sequence[str] = (), single_group: str | None = None
) -> list[Candidate]:
    """Return the candidates that pass both filters; a filter leaves out planning files."""
    if not scenarios and single_group is None:
        return list(candidates)
    chosen = []
    for candidate in candidates:
        header = candidate.header
        if not isinstance(header, Header) or (scenarios and header.scenario not in scenarios):
            continue
        if single_group is None or is_single_group(header, single_group):
            chosen.append(candidate)
    return chosen


def is_single_group(header: Header, kind: str) -> bool:
    """Return whether a trace has exactly one group, of this kind of `SINGLE_GROUP_KINDS`."""
    groups = header.config.kv_cache.groups
    return len(groups) == 1 and groups[0].spec.kind in SINGLE_GROUP_KINDS[kind]


def scenarios_of(candidates: Iterable[Candidate]) -> list[str]:
    """Return the names of all scenarios, sorted."""
    headers = (candidate.header for candidate in candidates)
    return sorted({header.scenario for header in headers if isinstance(header, Header)})
