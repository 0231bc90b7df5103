"""Flat arrays where the system has other maps of memory, as on Windows."""

from __future__ import annotations

import mmap

import pytest

from kvfast._core.arrays import LARGE_BYTES, grown, zeroed


def test_large_uncompiled_arrays_are_zeros_where_no_map_is_private(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(mmap, "MAP_PRIVATE", raising=False)
    length = LARGE_BYTES // 4 + 1
    zeros = zeroed("i", length)
    assert (len(zeros), zeros.format, any(zeros)) == (length, "i", False)
    zeros[0], zeros[length - 1] = 7, 9
    more = grown("i", zeros, length + 2)
    assert (more[0], more[length - 1], more[length], more[length + 1]) == (7, 9, 0, 0)
