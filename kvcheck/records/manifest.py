"""What a set of vectors says of itself, in its `manifest.json`, and where its walks are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvspec._json import (
    Where,
    anything,
    checked_members,
    count,
    hex_text,
    list_of,
    object_of,
    structure,
    text,
)
from kvspec._jsonlines import read_document
from kvspec.codec import decode_manager_config, encode_manager_config
from kvspec.config import ManagerConfig

FORMAT = "kvspec-static-vectors"
VERSION = 1
FILE = "manifest.json"
INDEX = "index.json"
MOST_BYTES = 2**20
"""No manifest and no index is longer."""


@dataclass(frozen=True)
class Walk:
    """One record. `sha256`: of its text, since compressors differ in their bytes."""

    file: str
    moves: int
    operations: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """One set.

    `rules`: those that its edges exercise. `features`: what a subject needs besides the base for
    the operations that cannot be left out. `states` and `edges` are counted up to names; `refused`
    and `errors` are edges, too. `bounds`: of the configuration, as `kvcheck.explore.bounds` says.
    `generator`: the command that makes it, at `generator_version`. `walks`: in their order.
    """

    name: str
    summary: str
    tier: str
    rules: tuple[str, ...]
    features: tuple[str, ...]
    config: ManagerConfig
    bounds: Mapping[str, Any]
    generator: str
    generator_version: int
    states: int
    edges: int
    refused: int
    errors: int
    walks: tuple[Walk, ...]

    @property
    def operations(self) -> int:
        """Of all walks."""
        return sum(walk.operations for walk in self.walks)

    def to_json(self) -> dict[str, Any]:
        """The file."""
        counts = {"walks": len(self.walks), "operations": self.operations}
        return {
            "format": FORMAT,
            "version": VERSION,
            "name": self.name,
            "summary": self.summary,
            "tier": self.tier,
            "rules": list(self.rules),
            "features": list(self.features),
            "generator": self.generator,
            "generator_version": self.generator_version,
            **{name: getattr(self, name) for name in ("states", "edges", "refused", "errors")},
            "counts": {**counts, "moves": sum(walk.moves for walk in self.walks)},
            "config": encode_manager_config(self.config),
            "bounds": dict(self.bounds),
            "walks": [asdict(walk) for walk in self.walks],
        }


_WALK = structure({"file": text, "moves": count, "operations": count, "sha256": hex_text})


def read_manifest(folder: Path) -> Manifest:
    """The manifest of the set in a folder. Raises FormatError."""
    path = folder / FILE
    where = Where(str(path))
    value = read_document(path, most_bytes=MOST_BYTES)
    found = checked_members(value, where, _MEMBERS, {})
    if (found.pop("format"), found.pop("version")) != (FORMAT, VERSION):
        raise where.member("format").error(f"not a {FORMAT!r} of version {VERSION}")
    counts = found.pop("counts")
    walks = tuple(Walk(**walk) for walk in found.pop("walks"))
    manifest = Manifest(
        **{
            **found,
            "rules": tuple(found["rules"]),
            "features": tuple(found["features"]),
            "walks": walks,
        }
    )
    if counts != manifest.to_json()["counts"]:
        raise where.member("counts").error("not the sums of its walks")
    return manifest


_MEMBERS: Mapping[str, Any] = {
    "format": text,
    "version": count,
    "name": text,
    "summary": text,
    "tier": text,
    "rules": list_of(text),
    "features": list_of(text),
    "generator": text,
    "generator_version": count,
    "states": count,
    "edges": count,
    "refused": count,
    "errors": count,
    "counts": object_of(count),
    "config": decode_manager_config,
    "bounds": object_of(anything),
    "walks": list_of(_WALK),
}


def shipped_vectors() -> Path:
    """The folder of the sets that are part of the package."""
    return Path(str(files("kvcheck").joinpath("data", "vectors")))


def shipped_sets() -> tuple[tuple[Path, Manifest], ...]:
    """Each shipped set: its folder and its manifest, in the order in which they are played."""
    index = shipped_vectors() / INDEX
    value = read_document(index, most_bytes=MOST_BYTES)
    counts = dict.fromkeys(("states", "edges", "walks", "operations"), count)
    found = checked_members(value, Where(str(index)), {"sets": list_of(text)}, counts)
    names = found["sets"]
    folders = [shipped_vectors() / name for name in names]
    return tuple((folder, read_manifest(folder)) for folder in folders)
