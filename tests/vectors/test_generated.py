"""The shipped vectors are what the command writes, and they have every edge of their graphs."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import kvref
from kvcheck.explore.state import Move
from kvcheck.explore.vectors.graph import (
    Graph,
    all_edges,
    graph_of,
    in_form,
    in_state,
    is_of_request,
)
from kvcheck.explore.vectors.tour import tour
from kvcheck.explore.vectors.walk import record_of
from kvcheck.explore.vectors.write import sha256_of, write_set
from kvcheck.records.manifest import FILE, INDEX, read_manifest, shipped_sets, shipped_vectors
from kvcheck.rulebook import rule_sentences
from kvspec.errors import FormatError, KVSpecError
from tests.explore.exploring import explored
from tests.vectors.having import NAMES, vector_set, walks

REFERENCE = kvref.implementation()
SMALL = ("hybrid-eagle", "base")
MEGABYTES = 1.5
"""What all vectors may take in the repository and in a wheel."""

each_set = pytest.mark.parametrize(
    "name",
    [name if name in SMALL else pytest.param(name, marks=pytest.mark.deep) for name in NAMES],
)


def gone(graph: Graph, tours: Sequence[Sequence[Move]]) -> Iterator[tuple[int, Move, int]]:
    """Every edge that these walks go; KeyError where there is none to go."""
    for walk in tours:
        state = 0
        for move in walk:
            end = graph.edges[state][move]
            yield state, move, end
            state = end


@each_set
def test_the_command_writes_the_shipped_vectors_again(name: str, tmp_path: Path) -> None:
    """Texts are compared: other versions of zlib pack the same text into other bytes."""
    write_set(tmp_path, REFERENCE, vector_set(name))
    shipped = shipped_vectors() / name
    files = sorted(path.name for path in shipped.iterdir())
    assert sorted(path.name for path in (tmp_path / name).iterdir()) == files
    manifests = [(folder / name / FILE).read_bytes() for folder in (tmp_path, shipped_vectors())]
    assert without_extra_keys(manifests[0]) == without_extra_keys(manifests[1])
    for file in files[:-1]:
        again = gzip.decompress((tmp_path / name / file).read_bytes())
        before = gzip.decompress((shipped / file).read_bytes())
        assert without_extra_keys(again) == without_extra_keys(before)


def without_extra_keys(text: bytes) -> bytes:
    """The file without that policy: none of the requests has any, and shipped files stay."""
    unnamed = re.sub(rb',\s*"extra_keys": ?"tagged"', b"", text)
    return re.sub(rb'"sha256": "[0-9a-f]{64}"', b"", unnamed)  # of a walk, which is compared itself


@each_set
def test_a_tour_goes_along_every_edge(name: str) -> None:
    graph = graph_of(vector_set(name).configuration, REFERENCE)
    tours = tour(graph)
    assert set(gone(graph, tours)) == set(all_edges(graph))
    shorter = [*tours[:-1], tours[-1][:-1]]
    assert set(gone(graph, shorter)) != set(all_edges(graph))  # its last edge is nowhere else


@each_set
def test_an_exploration_counts_the_same_states_and_edges(name: str) -> None:
    """Two ways to the same numbers: by fingerprints of states, and by edges in terms of forms."""
    counts = explored(vector_set(name).configuration).counts
    manifest = read_manifest(shipped_vectors() / name)
    assert (manifest.states, manifest.edges) == (counts.states, counts.edges)
    assert (manifest.refused, manifest.errors) == (counts.refused, counts.errors)


def test_each_manifest_says_what_its_records_hold() -> None:
    index = json.loads((shipped_vectors() / INDEX).read_text("utf-8"))
    assert index["sets"] == list(NAMES)
    assert index["operations"] == sum(manifest.operations for _, manifest in shipped_sets())
    rules = rule_sentences()
    for folder, manifest in shipped_sets():
        assert set(manifest.rules) <= rules.keys()
        for walk, recorded in zip(manifest.walks, walks(manifest.name), strict=True):
            assert sha256_of(folder / walk.file) == walk.sha256
            assert len(recorded.operations) == walk.operations
            assert recorded.header.config.kv_cache == manifest.config.kv_cache


def test_the_vectors_stay_small() -> None:
    files = [path for path in shipped_vectors().rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MEGABYTES * 1e6


def test_a_move_means_the_same_in_every_state_of_one_form() -> None:
    """There and back, for each edge of a graph with evictions."""
    configuration = vector_set("pool").configuration
    from kvcheck.explore.edges import Edges
    from kvcheck.explore.moves import moves
    from kvcheck.explore.vectors.graph import named

    state = Edges(configuration, REFERENCE).first()
    names = named(configuration, state)
    for move in moves(configuration, state):
        assert in_state(in_form(move, names), names) == move
    turned = names._replace(seats=(1, 0))
    assert in_form(("free", 0), turned) == ("free", 1)
    assert in_state(("free", 1), turned) == ("free", 0)
    assert not is_of_request(("illegal", 0, "evict outside"))


def test_a_walk_that_leaves_the_graph_is_no_vector() -> None:
    """A reference whose answers depend on more than its state would make wrong records."""
    configuration = vector_set("hybrid-eagle").configuration
    graph = graph_of(configuration, REFERENCE)
    walk = tour(graph)[0]
    number = next(n for n, move in enumerate(walk) if graph.edges[0][move] != 0)
    wrong = dict(graph.edges[0]) | {walk[number]: 0}
    broken = replace(graph, edges=(wrong, *graph.edges[1:]))
    with pytest.raises(KVSpecError, match="leads elsewhere"):
        record_of(configuration, broken, walk, REFERENCE, "")


@pytest.mark.parametrize(
    ("before", "after", "wrong"),
    [
        ('"version": 1', '"version": 2', "format"),
        ('"operations": 1', '"operations": 2', "sums"),
        ('"tier"', '"tire"', "tier"),
        ("{", "[", "JSON"),
    ],
)
def test_a_manifest_that_says_something_else_is_refused(
    before: str, after: str, wrong: str, tmp_path: Path
) -> None:
    text = (shipped_vectors() / "hybrid-eagle" / FILE).read_text("utf-8")
    (tmp_path / FILE).write_text(text.replace(before, after, 1), encoding="utf-8")
    with pytest.raises(FormatError, match=wrong):
        read_manifest(tmp_path)
    with pytest.raises(FormatError, match="no such file"):
        read_manifest(tmp_path / "nowhere")
