"""Making the files: each set's graph, its walks as records, and the manifest."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field
from pathlib import Path
from typing import Any

from kvcheck.explore.bounds import Configuration
from kvcheck.explore.vectors.graph import graph_of
from kvcheck.explore.vectors.sets import SETS, VectorSet
from kvcheck.explore.vectors.tour import tour
from kvcheck.explore.vectors.walk import GENERATOR_VERSION, record_of
from kvcheck.play.features import needed_features
from kvcheck.play.text import changed_members
from kvcheck.records.manifest import FILE, INDEX, Manifest, Walk
from kvspec.interface import Feature, Implementation
from kvspec.record_file import write_trace

TIER = "static"

Heard = Callable[[str, float], None]
"""Told a set's name and the share of it that is done."""


def write_sets(
    folder: Path,
    oracle: Implementation,
    sets: Sequence[VectorSet] = SETS,
    heard: Heard = lambda name, share: None,
) -> tuple[Manifest, ...]:
    """Write each set into its own folder there; with all of them also the index."""
    folder.mkdir(parents=True, exist_ok=True)
    written = tuple(write_set(folder, oracle, each, heard) for each in sets)
    if tuple(sets) == SETS:
        index = {
            "sets": [manifest.name for manifest in written],
            "states": sum(manifest.states for manifest in written),
            "edges": sum(manifest.edges for manifest in written),
            "walks": sum(len(manifest.walks) for manifest in written),
            "operations": sum(manifest.operations for manifest in written),
        }
        _write_json(folder / INDEX, index)
    return written


def write_set(
    folder: Path, oracle: Implementation, what: VectorSet, heard: Heard = lambda name, share: None
) -> Manifest:
    """Write one set; records that it does not have any more are removed."""
    configuration = what.configuration
    name = configuration.name
    heard(name, 0.0)
    graph = graph_of(configuration, oracle)
    walks = tour(graph)
    place = folder / name
    place.mkdir(exist_ok=True)
    for old in place.glob("*.jsonl.gz"):
        old.unlink()
    written: list[Walk] = []
    features: set[Feature] = set()
    for number, walk in enumerate(walks, 1):
        heard(name, number / len(walks))
        scenario = f"every edge of {name!r}, walk {number} of {len(walks)}"
        header, operations, coverage = record_of(configuration, graph, walk, oracle, scenario)
        path = place / f"{number:02}.jsonl.gz"
        write_trace(path, header, operations, coverage)
        features |= needed_features(operations)
        written.append(Walk(path.name, len(walk), len(operations), sha256_of(path)))
    manifest = Manifest(
        name=name,
        summary=configuration.summary,
        tier=TIER,
        rules=tuple(dict.fromkeys(what.rules)),
        features=tuple(sorted(feature.value for feature in features)),
        config=configuration.config,
        bounds=_bounds(configuration),
        generator=f"kvspec explore --vectors DIR --config {name}",
        generator_version=GENERATOR_VERSION,
        states=len(graph.edges),
        edges=graph.num_edges,
        refused=graph.refused,
        errors=graph.errors,
        walks=tuple(written),
    )
    _write_json(place / FILE, manifest.to_json())
    return manifest


def sha256_of(path: Path) -> str:
    """Of a record's text, in hex."""
    return hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()


def _bounds(configuration: Configuration) -> dict[str, Any]:
    """What bounds the graph besides the manager's configuration; what is at its default is not."""
    others = {member.name: getattr(configuration, member.name) for member in _said(configuration)}
    bounds: dict[str, Any] = {
        "num_requests": configuration.num_requests,
        "prompts": configuration.prompts,
        **others,
        "calls": sorted(configuration.calls),
    }
    found: dict[str, Any] = json.loads(json.dumps(bounds, default=_plain))  # tuples as lists
    return found


def _said(configuration: Configuration) -> Iterator[Field[Any]]:
    """Members of the bounds that are not at their defaults."""
    own = ("name", "summary", "config", "calls", "is_deep", "up_to_names")
    return (member for member in changed_members(configuration) if member.name not in own)


def _plain(value: Any) -> dict[str, Any]:
    """An option as an object; the plainest is an empty one."""
    return {member.name: getattr(value, member.name) for member in changed_members(value)}


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
