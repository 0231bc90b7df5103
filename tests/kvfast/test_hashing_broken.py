"""Encoders and runs with one mistake each, and the check that notices it.

In the uncompiled build only: C functions can't be replaced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kvfast._core import extra_keys as core_extra_keys
from kvfast._core import hashing as core_hashing
from tests.kvfast.hash_checks import (
    every_kind_of_extra_key,
    parents_of_few_bytes,
    tokens_at_every_boundary,
)
from tests.kvfast.hash_cores import Core, core


def long_form_at_255(right: Any) -> Any:
    def put_head(message: memoryview[int], at: int, major: int, value: int) -> int:
        if value != 255:
            return int(right(message, at, major, value))
        message[at : at + 3] = bytes([(major << 5) + 25, 0, 255])
        return at + 3

    return put_head


def no_step_at_32_bits(right: Any) -> Any:
    return lambda message, at, major, value: right(message, at, major, value & (2**32 - 1))


def runs_up_to_the_item(right: Any) -> Any:
    """The block after one with an item is taken for another with the same keys."""
    return lambda request, size, block, ahead: right(request, size, block, ahead) + 1


def items_that_touch(right: Any) -> Any:
    """An item that ends where the block starts is taken for one that overlaps it."""
    return lambda items, start: right(items, start - 1)


def parents_of_eight_bytes(right: Any) -> Any:
    return lambda hasher, message, place: place + core_hashing.PARENT - 2


BROKEN = (
    (core_hashing, "put_head", long_form_at_255, tokens_at_every_boundary),
    (core_hashing, "put_head", no_step_at_32_bits, tokens_at_every_boundary),
    (core_extra_keys, "_next_change", runs_up_to_the_item, every_kind_of_extra_key),
    (core_extra_keys, "_first_item", items_that_touch, every_kind_of_extra_key),
    (core_hashing.Hasher, "shorten_parent", parents_of_eight_bytes, parents_of_few_bytes),
)


@pytest.mark.parametrize(("owner", "name", "broken", "check"), BROKEN)
def test_a_broken_twin_is_caught(
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    broken: Callable[[Any], Any],
    check: Callable[[Core], None],
) -> None:
    monkeypatch.setattr(owner, name, broken(getattr(owner, name)))
    with pytest.raises(AssertionError):
        check(core("_core"))
