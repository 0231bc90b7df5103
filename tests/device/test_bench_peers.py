"""Other projects' kernels in bench/device: called as documented, not timed where they are wrong."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from bench.device.peers import Tokens, WrongPeerError, writers

SIZE = 4


def tokens() -> Tokens:
    """Return ten tokens in blocks 3, 1 and 5, with alternating keys and values, as in pools."""
    slots = torch.tensor([12, 13, 14, 15, 4, 5, 6, 7, 20, 21])
    keys, values = torch.randn((2, 10, 2, 8)).unbind()
    pages = torch.zeros((6, 2, SIZE, 2, 8))
    return Tokens(keys, values, slots, pages[:, 0], pages[:, 1])


def append(*given: Any) -> None:
    keys, values, request, places, cache, pages, bounds, last, layout = given
    assert layout == "NHD"
    for number, (owner, place) in enumerate(zip(request.tolist(), places.tolist(), strict=True)):
        own = pages[bounds[owner] : bounds[owner + 1]]
        assert place < (len(own) - 1) * SIZE + last[owner]
        cache[0][own[place // SIZE], place % SIZE] = keys[number]
        cache[1][own[place // SIZE], place % SIZE] = values[number]


def reshape(*given: Any) -> None:
    keys, values, key_pages, value_pages, slots, dtype, key_scale, value_scale = given
    assert (dtype, float(key_scale), float(value_scale)) == ("auto", 1.0, 1.0)
    for number, slot in enumerate(slots.tolist()):
        key_pages[slot // SIZE, slot % SIZE] = keys[number]
        value_pages[slot // SIZE, slot % SIZE] = values[number]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flashinfer", "vllm", "vllm._custom_ops"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["flashinfer"], "append_paged_kv_cache", append, raising=False)
    monkeypatch.setattr(
        sys.modules["vllm._custom_ops"], "reshape_and_cache_flash", reshape, raising=False
    )


@pytest.mark.usefixtures("installed")
def test_peers_write_the_same_tokens_to_the_same_slots() -> None:
    given = tokens()
    for name, write in writers(given):
        for pages in (given.key_pages, given.value_pages):
            pages.zero_()
        write()
        keys, values = given.read()
        assert torch.equal(keys, given.keys), name
        assert torch.equal(values, given.values), name
    assert [name for name, _ in writers(given)] == ["FlashInfer", "vLLM"]


@pytest.mark.usefixtures("installed")
def test_a_peer_that_writes_something_else_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def shifted(*given: Any) -> None:
        reshape(*given[:4], given[4].roll(1), *given[5:])

    monkeypatch.setattr(sys.modules["vllm._custom_ops"], "reshape_and_cache_flash", shifted)
    with pytest.raises(WrongPeerError, match="vLLM"):
        list(writers(tokens()))


def test_without_them_nothing_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flashinfer", "vllm"):
        monkeypatch.setitem(sys.modules, name, None)
    assert list(writers(tokens())) == []
