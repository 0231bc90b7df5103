"""`python -m bench.saved`: that it runs and finds what was saved, never how long."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvfast
from bench import saved
from kvspec.saved import save


def test_it_measures_managers_with_every_block_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "PROMPT_BLOCKS", 10)
    monkeypatch.setattr(saved, "NUM_BLOCKS", (20, 30))
    manager = saved.filled(30)
    state = manager.snapshot()
    assert all(len(keys) == 1 for keys in state.block_keys[1:])
    path = tmp_path / "cache.state"
    save(manager, path)
    assert saved.loaded(path).snapshot() == state
    lines = list(saved.rows(2))
    assert [line.count("…") for line in lines] == [0, 0, 4, 4, 0, 0, 0, 3, 3]
    monkeypatch.setattr(saved, "PROMPT_BLOCKS", 12)
    with pytest.raises(AssertionError, match="are found"):
        saved.looked_up(manager, [kvfast.implementation().make_request(manager, saved.prompt(0))])
