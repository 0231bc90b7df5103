"""Short ways to read what a test writes in some format."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from kvcheck.tools.replay.formats.choice import reader_of
from kvcheck.tools.replay.trace import TraceError, TraceRecord


def read(form: str, content: str, *, chunk_bytes: int = 1_000) -> list[TraceRecord]:
    data = content.encode("utf-8", errors="surrogatepass")
    chunks = (data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes))
    return list(reader_of(form).records(chunks, "t"))


def lines_of(objects: Sequence[object]) -> str:
    return "".join(json.dumps(each) + "\n" for each in objects)


def error_of(form: str, content: str) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read(form, content)
    assert caught.value.file == "t"
    assert "\n" not in str(caught.value)
    return caught.value
