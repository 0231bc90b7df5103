"""Digests: the same bytes from every implementation, and fallbacks where one is missing."""

from __future__ import annotations

import _ctypes
import hashlib
import sys
from typing import Any

import pytest
import xxhash

import kvfast
from kvfast import _native
from kvspec.config import HASH_FUNCTIONS
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.request import RequestInput
from tests.kvfast.hash_cores import BUILDS, core, everything, expect_equal_hashes

LENGTHS = (*range(300), 1000, 2047, 2048, 65536, 10**6)


def expected(function: str, data: bytes) -> bytes:
    if function == "xxhash_cbor":
        return xxhash.xxh3_128_digest(data)
    return hashlib.sha256(data).digest()[-8 if function.endswith("64bit") else 0 :]


def expect_right_digests(digest: Any, function: str) -> None:
    for length in LENGTHS:
        data = bytes(i * 7 & 255 for i in range(length))
        assert digest.of(data) == expected(function, data), length
    assert len(digest.of(b"")) == digest.size


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("function", HASH_FUNCTIONS)
def test_digests_are_those_of_the_libraries(build: str, function: str) -> None:
    expect_right_digests(core(build).digest.Digest(function), function)


@pytest.mark.parametrize("build", BUILDS)
def test_an_unknown_function_has_no_digest(build: str) -> None:
    with pytest.raises(InvalidArgumentError, match="hash_function"):
        core(build).digest.Digest("md5")


def test_c_functions_are_used_where_they_are_found() -> None:
    compiled = core("_compiled").digest
    if _native.sha256() is None or _native.xxh3_128() is None:
        pytest.skip("no C functions to be found on this machine")
    assert compiled.Digest("sha256_cbor").origin != "hashlib"
    assert compiled.Digest("xxhash_cbor").origin != "the package xxhash"


@pytest.fixture
def nothing_native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "sha256", lambda: None)
    monkeypatch.setattr(_native, "xxh3_128", lambda: None)


@pytest.mark.usefixtures("nothing_native")
@pytest.mark.parametrize("function", HASH_FUNCTIONS)
def test_without_c_functions_python_packages_compute_the_same(function: str) -> None:
    """Also for the many blocks that are hashed without the GIL, which each take it then."""
    compiled = core("_compiled")
    digest = compiled.digest.Digest(function)
    assert digest.origin in ("hashlib", "the package xxhash")
    expect_right_digests(digest, function)
    expect_equal_hashes(compiled, everything(), 4, function)
    expect_equal_hashes(compiled, RequestInput("r", range(5000)), 4, function)


def found(library: str, *names: str) -> _native.NativeFunctions:
    made = _native._find(names, [library])
    assert made is not None
    return made


@pytest.mark.parametrize("function", HASH_FUNCTIONS)
def test_c_functions_with_wrong_answers_are_not_used(
    function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offer SHA-224, called like SHA-256, and the 64-bit XXH3, called like that of 128."""
    sha256, xxh3 = _native.sha256(), _native.xxh3_128()
    if sha256 is None or xxh3 is None:
        pytest.skip("no C functions to be found on this machine")
    wrong_sha = found(sha256.origin, "SHA224_Init", "SHA256_Update")
    wrong_xxh3 = found(xxh3.origin, "XXH3_64bits")
    monkeypatch.setattr(_native, "sha256", lambda: wrong_sha)
    monkeypatch.setattr(_native, "xxh3_128", lambda: wrong_xxh3)
    digest = core("_compiled").digest.Digest(function)
    assert digest.origin in ("hashlib", "the package xxhash")
    expect_right_digests(digest, function)


@pytest.mark.usefixtures("nothing_native")
@pytest.mark.parametrize("build", BUILDS)
def test_without_xxhash_its_function_is_a_typed_error(
    build: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'kvspec\[xxhash\]'"):
        core(build).hashing.Hasher("xxhash_cbor", "0")
    assert core(build).hashing.Hasher("sha256_cbor", "0").size == 32


def test_a_library_is_enough_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    native = _native.xxh3_128()
    if native is None:
        pytest.skip("no C functions to be found on this machine")
    monkeypatch.setattr(_native, "xxh3_128", lambda: native)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    digest = core("_compiled").digest.Digest("xxhash_cbor")
    assert digest.origin == "C functions, found through " + native.origin
    assert digest.of(b"").hex() == "99aa06d3014798d86001c324468d497f"


def test_nothing_is_found_where_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _native._find(("SHA256_Init",), ["libnothing.so.0"]) is None
    assert _native._find(("no_such_function",), [_ctypes.__file__]) is None
    assert list(_native._extension("no_such_package.module")) == []
    assert list(_native._extension("sys")) == []
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert _native.sha256() is None


def test_doctor_says_whose_code_computes_the_hashes() -> None:
    facts = kvfast.diagnose()
    assert facts["SHA-256"]
    assert facts["XXH3-128"]
