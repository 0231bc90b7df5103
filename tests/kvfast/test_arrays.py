"""Flat arrays where the system has other maps of memory, as on Windows."""

from __future__ import annotations

import mmap

import pytest

from kvfast._core.arrays import LARGE_BYTES, grown, zeroed
from kvfast._core.hashing import Hasher
from kvfast._core.key_map import KeyMap
from kvfast._core.request import make_request
from kvspec.request import RequestInput


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


def test_eight_blocks_in_a_row_share_a_cache_line() -> None:
    keys = KeyMap(1 << 12, 4)
    request = make_request(RequestInput("r", range(16)), Hasher("sha256_cbor", "0"), 1)
    homes = [keys.home_of(request, number, 0) & keys.slot_mask for number in range(16)]
    assert len({home // 8 for home in homes[:8]}) == 1
    assert len(set(homes[:8])) == 8
    assert homes[8] // 8 != homes[0] // 8
