"""Holes to be planted in the uncompiled build, to show that the fuzzer finds each kind of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from kvfast._core.allocator import Allocator
from kvfast._core.checks import Checks
from kvfast._core.request import FastRequest
from kvspec.errors import InvalidArgumentError


def leak() -> None:
    """A freed request leaves its references behind."""
    _replace(Allocator, "free", lambda self, row: None)


def bare_exception() -> None:
    """A block id outside the pool is an IndexError."""

    def checked_block(self: Any, block: Any) -> int:
        if type(block) is not int or not 0 <= block < self.pool.num_blocks:
            raise IndexError("no such block")
        return block

    _replace(Checks, "checked_block", checked_block)


def crash() -> None:
    """Long lists of block ids end the process."""

    def checked_blocks(self: Any, field: str, block_ids: Any) -> list[int]:
        if isinstance(block_ids, list) and len(block_ids) > 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        return [self.checked_block(block) for block in self.checked_sequence(field, block_ids)]

    _replace(Checks, "checked_blocks", checked_blocks)


def endless_loop() -> None:
    """A flag that is none is never done with."""

    def check_flag(self: Any, field: str, value: object) -> None:
        while type(value) is not bool:
            pass

    _replace(Checks, "check_flag", check_flag)


def late_refusal() -> None:
    """A list with an illegal block is refused after something was done."""

    def checked_block(self: Any, block: Any) -> int:
        self.core.allocator.to_zero.add(0, 1)
        raise InvalidArgumentError("block", block, "another")

    _replace(Checks, "checked_block", checked_block)


def parted() -> None:
    """Appended tokens are counted and not hashed."""

    def grow_to(self: Any, num_tokens: int) -> None:
        if self.num_tokens == 0:
            FastRequest.hash_until(self, num_tokens // max(1, self.hash_block_size_tokens))
        self.num_tokens = num_tokens

    _replace(FastRequest, "grow_to", grow_to)


PLANTED: Mapping[str, tuple[Callable[[], None], str]] = MappingProxyType(
    {
        "leak": (leak, "invariant "),
        "bare exception": (bare_exception, "IndexError in planted.py checked_block"),
        "crash": (crash, "ended with -11"),
        "endless loop": (endless_loop, "hang"),
        "late refusal": (late_refusal, "changed by a refused"),
        "parted": (parted, "tokens and hashes part"),
    }
)
"""Each hole, and how the key of its finding begins."""


def _replace(owner: type, name: str, function: Any) -> None:
    setattr(owner, name, function)
