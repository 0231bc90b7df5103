"""The generators: equal on every machine, and shaped as spec/replay.md says."""

from __future__ import annotations

import hashlib
from dataclasses import astuple
from itertools import islice

import pytest

from kvcheck.tools.replay.synth import SynthTrace
from kvcheck.tools.replay.trace import TraceRecord
from kvspec.errors import InvalidArgumentError

KINDS = ["chat", "agent", "rag"]


def some(kind: str, requests: int = 500, *, seed: int = 1) -> list[TraceRecord]:
    return list(SynthTrace(f"synth:{kind}?requests={requests}&seed={seed}"))


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


def test_the_traces_never_change() -> None:
    assert some("chat", 2) == [
        TraceRecord(1, 67, 1721, 114, (3, 4, 5, 10)),
        TraceRecord(2, 114, 1792, 55, (3, 4, 5, 11)),
    ]
    digests = {
        kind: hashlib.sha256(
            repr([astuple(each)[:5] for each in some(kind, 1_000)]).encode()
        ).hexdigest()[:16]
        for kind in KINDS
    }
    assert digests == {
        "chat": "667591eb82d33a2a",
        "agent": "ab8b6c67d9b229f1",
        "rag": "74ff68667372060f",
    }


def test_the_name_in_the_report_says_everything() -> None:
    assert SynthTrace("synth:rag").name == "synth:rag?seed=0&requests=1000"
    assert SynthTrace("synth:rag", seed=5).name == "synth:rag?seed=5&requests=1000"
    assert SynthTrace("synth:rag", endless=True).name == "synth:rag?seed=0"


@pytest.mark.parametrize(
    "name",
    [
        *("synth:unknown", "synth:", "synth:chat?colour=red", "synth:chat?requests=-1"),
        *("synth:chat?requests=x", "synth:chat?requests", "synth:chat?requests=1&requests=2"),
        "synth:chat?seed=²",
    ],
)
def test_a_wrong_name_is_an_error(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        SynthTrace(name)


def test_a_seed_given_twice_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="given once"):
        SynthTrace("synth:chat?seed=1", seed=2)
