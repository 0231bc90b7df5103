"""Damage in any format names its place, what belongs there and what to do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvcheck.tools.replay.formats.choice import FORMATS, reader_of
from kvcheck.tools.replay.trace import TraceError
from tests.cases import Case, cases
from tests.replay.reading import error_of, read

LOGGED = "DEBUG 06-01 10:00:00 [a.py:1] Request r details: prompt: '', prompt_token_ids: "


@pytest.mark.parametrize("case", cases(__file__, "damaged.txt"), ids=str)
def test_damage_names_its_place_and_what_is_expected(case: Case) -> None:
    form, _, _ = case.name.partition(":")
    case.expect([str(error_of(form, "\n".join(case.given)))])


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_file_has_no_requests(form: str) -> None:
    assert read(form, "") == []


def test_a_session_that_does_not_end_is_not_read_into_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvcheck.tools.replay.formats.input.MAX_OBJECT_BYTES", 1_000)
    taken = []

    def endless() -> Iterator[bytes]:
        yield b'{"block_size": 16, "requests": ['
        while True:
            taken.append(1)
            yield b"1, " * 100

    with pytest.raises(TraceError, match="more than 1000 bytes"):
        list(reader_of("weka").records(endless(), "t"))
    assert len(taken) < 10


def test_requests_wait_for_their_outputs_but_not_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvcheck.tools.replay.formats.vllm_log._MOST_WAITING", 2)
    lines = [
        f"{LOGGED.replace('Request r', f'Request r{n}')}[{n}], prompt_embeds\n" for n in range(9)
    ]
    taken = []

    def log() -> Iterator[bytes]:
        for each in lines:
            taken.append(1)
            yield each.encode()

    next(reader_of("vllm-log").records(log(), "t"))
    assert len(taken) < 5
