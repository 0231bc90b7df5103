"""nano-vllm's scheduler over kvfast, where a checkout of nano-vllm is on the path."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from examples.nanovllm import engine


@pytest.mark.parametrize("is_broken", [False, True])
def test_nano_vllm_answers_the_same_on_kvfast(
    monkeypatch: pytest.MonkeyPatch, is_broken: bool
) -> None:
    if importlib.util.find_spec("nanovllm") is None:
        pytest.skip("no checkout of nano-vllm on PYTHONPATH")
    if not is_broken:
        assert engine.compare(100, 1).startswith("100 sequences, the same ")
        return

    def may_append(manager: engine.BlockManager, seq: Any) -> None:
        """Have the slot before the last token's."""
        request = manager.request_of(seq)
        request.num_computed_tokens = len(seq) - 2
        manager.take(seq, request, 1)

    monkeypatch.setattr(engine.BlockManager, "may_append", may_append)
    with pytest.raises((SystemExit, IndexError)):
        engine.compare(100, 1)
