"""Hashes for engines that hash themselves: pickled and as CBOR, in both builds."""

from __future__ import annotations

import hashlib
import importlib
import pickle
from typing import Any

import cbor2
import pytest

from kvspec.errors import InvalidArgumentError
from tests.kvfast.hash_cores import BUILDS, SMALL, core

PARENT = bytes(range(32))
KEYS = (None, ("adapter",), (("image", 2), "salt", b"\x01" * 32), ("x" * 300, ("x", -70_000)))


def chain(build: str, block_size: int, is_pickled: bool) -> Any:
    return modules(build).block_chain("sha256_cbor", block_size, is_pickled)


def modules(build: str) -> Any:
    core(build)  # skips where it is not there
    return importlib.import_module(f"kvfast.{build}.chain")


def expected(tokens: list[int], block_size: int, keys: object, is_pickled: bool) -> list[bytes]:
    found, parent = [], PARENT
    for i in range(0, len(tokens) - block_size + 1, block_size):
        content = (parent, tuple(tokens[i : i + block_size]), keys)
        spelled = pickle.dumps(content, 5) if is_pickled else cbor2.dumps(content, canonical=True)
        parent = hashlib.sha256(spelled).digest()
        found.append(parent)
    return found


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("is_pickled", [False, True])
def test_hashes_are_those_of_the_whole_content(build: str, is_pickled: bool) -> None:
    for block_size in (4, 5, 16, 40):
        tokens = [*SMALL, *reversed(SMALL), *([7, 256, 65535, 2**31 - 1] * 400)]
        for keys in KEYS:
            made = chain(build, block_size, is_pickled)
            extra = made.spelled(keys)
            for length in (0, block_size - 1, block_size, 30, 1 + 2 * block_size, 1600):
                wanted = expected(tokens[:length], block_size, keys, is_pickled)
                assert made.hashes(tokens[:length], PARENT, extra) == wanted


@pytest.mark.parametrize("build", BUILDS)
def test_what_cannot_be_spelled_is_said(build: str) -> None:
    for is_pickled in (False, True):
        made = chain(build, 4, is_pickled)
        extra = made.spelled(None)
        for odd in (-1, 2**63, True, 1.0, "1", None):
            assert made.hashes([1, 2, 3, odd], PARENT, extra) is None
        assert made.hashes([1, 2, 3, 4], PARENT[:16], extra) is None
        assert (made.hashes([1, 2, 3, 2**31], PARENT, extra) is None) == is_pickled
        assert made.hashes([1, 2, 3, 4], PARENT, extra) is not None  # it still works
        assert made.spelled((("x", 1.5),) if not is_pickled else ("x" * 5000,)) is None
    assert chain(build, 3, True) is None
    assert chain(build, 10_000, True) is None
    with pytest.raises(InvalidArgumentError, match="hash_function"):
        modules(build).block_chain("md5", 16, False)


def test_another_way_to_write_a_number_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules("_core"), "ONE_BYTE", 0x4C)
    with pytest.raises(AssertionError):
        test_hashes_are_those_of_the_whole_content("_core", True)


@pytest.mark.parametrize("build", BUILDS)
def test_threads_share_a_chain(build: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    made = chain(build, 16, False)
    prompts = [[i, *range(2000)] for i in range(8)]
    extra = made.spelled(None)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda tokens: made.hashes(tokens, PARENT, extra), prompts))
    assert found == [expected(tokens, 16, None, False) for tokens in prompts]
