"""The generators: equal on every machine, and shaped as spec/replay.md says."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import islice

import pytest

from kvcheck.tools.replay.synth import AGENT, CHAT, Draws, SynthTrace, zipf_weights
from kvcheck.tools.replay.trace import TraceRecord
from kvspec.errors import InvalidArgumentError

KINDS = ["chat", "agent", "rag"]


def some(kind: str, requests: int = 500, *, seed: int = 1) -> list[TraceRecord]:
    return list(SynthTrace(f"synth:{kind}?requests={requests}&seed={seed}"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_records_are_a_correct_trace(kind: str) -> None:
    records = some(kind)
    assert [each.line for each in records] == list(range(1, 501))
    assert all(len(each.hash_ids) == -(-each.input_length // 512) for each in records)
    assert all(each.output_length >= 1 for each in records)
    times = [each.timestamp_ms for each in records]
    assert times == sorted(times)
    assert 500 * 200 < times[-1] < 500 * 300


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_names_one_trace(kind: str) -> None:
    assert some(kind) == some(kind)
    assert some(kind) != some(kind, seed=2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_longer_trace_begins_with_the_shorter_one(kind: str) -> None:
    assert some(kind, 50) == some(kind, 200)[:50]
    endless = SynthTrace(f"synth:{kind}", seed=1, endless=True)
    assert list(islice(endless, 50)) == some(kind, 50)
    assert (endless.total, endless.position) == (None, 50)


def content(record: TraceRecord) -> tuple[object, ...]:
    return (
        record.line,
        record.timestamp_ms,
        record.input_length,
        record.output_length,
        record.hash_ids,
    )


def test_the_traces_never_change() -> None:
    assert some("chat", 2) == [
        TraceRecord(1, 67, 1721, 114, (3, 4, 5, 10)),
        TraceRecord(2, 114, 1792, 55, (3, 4, 5, 11)),
    ]
    digests = {
        kind: hashlib.sha256(repr([*map(content, some(kind, 1_000))]).encode()).hexdigest()[:16]
        for kind in KINDS
    }
    assert digests == {
        "chat": "667591eb82d33a2a",
        "agent": "ab8b6c67d9b229f1",
        "rag": "74ff68667372060f",
    }


@pytest.mark.parametrize("kind", ["chat", "agent"])
def test_a_prompt_continues_its_thread(kind: str) -> None:
    shared = sum((CHAT if kind == "chat" else AGENT).preambles_runs)
    threads: dict[int, TraceRecord] = {}
    continued = 0
    for each in some(kind):
        own = next(run for run in each.hash_ids if run >= shared)
        before = threads.get(own)
        if before is not None:
            continued += 1
            assert each.hash_ids[: len(before.hash_ids)] == before.hash_ids
            assert each.input_length > before.input_length + before.output_length
        threads[own] = each
    assert continued > 250


def test_the_more_popular_documents_come_more_often() -> None:
    seen = Counter(run for each in some("rag", 2_000) for run in each.hash_ids)
    first_document, hundredth = 1, 350
    assert seen[0] == 2_000
    assert seen[first_document] > 10 * seen[hundredth]


def test_documents_come_in_varying_order() -> None:
    positions = {each.hash_ids.index(1) for each in some("rag", 2_000) if 1 in each.hash_ids}
    assert len(positions) > 5


def test_an_octave_doubles_its_range() -> None:
    draws = Draws(3)
    values = [draws.octave(32, 3) for _ in range(3_000)]
    octaves = Counter((value // 32).bit_length() - 1 for value in values)
    assert (min(values), max(values)) == (32, 255)
    assert set(octaves) == {0, 1, 2}
    assert all(900 < number < 1_100 for number in octaves.values())


def test_zipf_weights_add_up() -> None:
    assert zipf_weights(4) == [1, 1.5, 1.5 + 1 / 3, 1.5 + 1 / 3 + 0.25]


def test_an_index_is_drawn_by_weight() -> None:
    draws = Draws(4)
    drawn = Counter(draws.index([1.0, 1.0, 4.0]) for _ in range(4_000))
    assert set(drawn) == {0, 2}
    assert 900 < drawn[0] < 1_100


def test_the_name_in_the_report_says_everything() -> None:
    assert SynthTrace("synth:rag").name == "synth:rag?seed=0&requests=1000"
    assert SynthTrace("synth:rag", seed=5).name == "synth:rag?seed=5&requests=1000"
    assert SynthTrace("synth:rag", endless=True).name == "synth:rag?seed=0"


@pytest.mark.parametrize(
    "name",
    [
        "synth:unknown",
        "synth:",
        "synth:chat?colour=red",
        "synth:chat?requests=-1",
        "synth:chat?requests=x",
        "synth:chat?requests",
        "synth:chat?requests=1&requests=2",
        "synth:chat?seed=²",
    ],
)
def test_a_wrong_name_is_an_error(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        SynthTrace(name)


def test_a_seed_given_twice_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="given once"):
        SynthTrace("synth:chat?seed=1", seed=2)
