"""Values keep what was checked: members of subclasses count by what they store (KV-ERR-2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvcheck.rules.bench import Bench
from kvspec.blocks import KVCacheBlocks
from kvspec.errors import InvalidArgumentError
from kvspec.request import LoRA, MultimodalItem


def answering(answer: Any) -> Callable[..., Any]:
    """A method that answers this, whatever it is asked."""
    return lambda self, *others: answer


class Liar(int):
    """Stores one number, and answers 8 or True wherever it is asked."""

    __hash__ = int.__hash__
    __index__ = __int__ = __add__ = __radd__ = __mul__ = __rmul__ = answering(8)
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = answering(True)


class Flag:
    """No bool, whatever it says of its class."""

    __class__ = bool  # type: ignore[assignment]  # the point


def test_a_configuration_keeps_the_numbers_that_it_checked(bench: Bench) -> None:
    """One of liars is the one of what they store."""
    config = bench.config(Liar(20), Liar(4), max_model_len_tokens=Liar(64))
    assert config == bench.config(20, max_model_len_tokens=64)
    manager = bench.create(config)
    request = manager.request("r", range(40))
    assert manager.admit(request, 33) == KVCacheBlocks(([*range(1, 10)],))
    for block_size in (0, -4, 2**53):
        with pytest.raises(InvalidArgumentError):
            bench.config(20, Liar(block_size))
    assert type(MultimodalItem("image", Liar(3), Liar(2)).offset) is int


@pytest.mark.rule("KV-REQ-1")
def test_a_text_of_numpy_is_a_text(bench: Bench) -> None:
    """Names, salts, adapters and items."""
    manager = bench.manager(30)
    requests = []
    for kind in (np.str_, str):
        item = MultimodalItem(kind("image"), 0, 2)
        content = {"cache_salt": kind("salt"), "lora": LoRA(kind("a"), 1), "multimodal": (item,)}
        requests.append(manager.request(kind("name"), range(9), **content))
    assert type(requests[0].request_id) is str
    assert requests[0].block_hashes == requests[1].block_hashes
    assert manager.allocate_slots(requests[0], 9) is not None
    assert manager.get_blocks(requests[1]).to_lists() == [[1, 2, 3]]


@pytest.mark.rule("KV-ERR-2")
def test_a_flag_is_a_bool(bench: Bench) -> None:
    manager = bench.manager(20)
    request = manager.request("r", range(9))
    bad: Any = Flag()
    for name in ("delay_cache_blocks", "full_sequence_must_fit", "has_scheduled_reqs"):
        with pytest.raises(InvalidArgumentError):
            manager.allocate_slots(request, 1, **{name: bad})
