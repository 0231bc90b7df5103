"""Hashes of requests by both builds: as the reference and the libraries make them."""

from __future__ import annotations

import _ctypes
import hashlib
import importlib
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cbor2
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

import kvfast
from kvcheck.mistakes import Mistake
from kvfast import _native
from kvspec.config import HASH_FUNCTIONS
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput
from tests.device.mistakes import planted
from tests.kvfast.hash_cores import (
    BOUNDARIES,
    BUILDS,
    SMALL,
    Core,
    core,
    everything,
    expect_equal_hashes,
    functions,
    requests,
)


def tokens_at_every_boundary(core: Core) -> None:
    for function in HASH_FUNCTIONS:
        for token in BOUNDARIES:
            expect_equal_hashes(core, RequestInput("r", [token, 1, token]), 3, function)
        expect_equal_hashes(core, RequestInput("r", BOUNDARIES * 3), 5, function)
    for place in range(4):
        fours = [b if i == place else a for a in SMALL for b in BOUNDARIES for i in range(4)]
        expect_equal_hashes(core, RequestInput("r", fours), 4)
    powers = [2**bits + step for bits in range(1, 63) for step in (-1, 0, 1)]
    expect_equal_hashes(core, RequestInput("r", [*range(300), *powers]), 1)


def every_kind_of_extra_key(core: Core) -> None:
    request = everything()
    for block_size in (1, 2, 3, 4, 7, 16, 40):
        expect_equal_hashes(core, request, block_size)
        for name in ("cache_salt", "lora", "prompt_embeddings"):
            without: dict[str, Any] = {name: None}
            expect_equal_hashes(core, replace(request, **without), block_size)
        expect_equal_hashes(core, replace(request, multimodal=()), block_size)
        alone = RequestInput("r", request.prompt_token_ids, multimodal=request.multimodal)
        expect_equal_hashes(core, alone, block_size)


def parents_of_few_bytes(core: Core) -> None:
    """Write parents as ints in the shortest form; one in 2^32 is below 2^32."""
    for number in (0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**64 - 1):
        hasher = core.hashing.Hasher("sha256_cbor_64bit", "0")
        hasher.set_none_hash(number.to_bytes(8, "big"))
        made = core.request.make_request(RequestInput("r", range(8)), hasher, 4)
        expected, parent = [], number
        for tokens in ([0, 1, 2, 3], [4, 5, 6, 7]):
            encoded = cbor2.dumps([parent, tokens, None], canonical=True)
            expected.append(hashlib.sha256(encoded).digest()[-8:])
            parent = int.from_bytes(expected[-1], "big")
        assert list(made.block_hashes) == expected, number


CHECKS: dict[str, Callable[[Core], None]] = {
    "WritesTwoBytesFor255": tokens_at_every_boundary,
    "EndsAt32Bits": tokens_at_every_boundary,
    "RunsUpToTheItem": every_kind_of_extra_key,
    "ItemsThatTouchOverlap": every_kind_of_extra_key,
    "ParentsHaveEightBytes": parents_of_few_bytes,
}
"""What sees each mistake."""


@pytest.mark.parametrize(
    "mistake", planted(Path(__file__).with_name("hashing.diff")), ids=lambda one: str(one.id)
)
def test_a_mistake_is_seen(mistake: Mistake) -> None:
    with mistake.make(), pytest.raises(AssertionError):
        CHECKS[mistake.id](core("_core"))


builds = pytest.mark.parametrize("build", BUILDS)


@builds
@given(request=requests(), block_size=st.integers(1, 20), function=functions)
def test_any_request_is_hashed_as_the_reference_does(
    build: str, request: RequestInput, block_size: int, function: str
) -> None:
    expect_equal_hashes(core(build), request, block_size, function)


@builds
@pytest.mark.parametrize(
    "check",
    [tokens_at_every_boundary, every_kind_of_extra_key, parents_of_few_bytes],
    ids=lambda check: check.__name__,
)
def test_it_holds_for(build: str, check: Callable[[Core], None]) -> None:
    check(core(build))


@builds
@pytest.mark.parametrize("length", [0, 1, 23, 24, 255, 256, 65535, 65536, 10**6])
def test_texts_of_any_length_are_encoded(build: str, length: int) -> None:
    for text in ("x" * length, "é" * length):
        request = RequestInput(
            "r",
            range(8),
            cache_salt=text or None,
            lora=LoRA(text or "-", 1, text or None),
            multimodal=(MultimodalItem(text, 5, 1),),
        )
        expect_equal_hashes(core(build), request, 4)
        hasher = core(build).hashing.Hasher("sha256_cbor", text)
        assert hasher.none_hash == hashlib.sha256(cbor2.dumps(text, canonical=True)).digest()


@builds
def test_items_far_from_the_tokens_are_encoded(build: str) -> None:
    items = (MultimodalItem("a", 0, 70_000), MultimodalItem("b", 2**53 - 2, 1))
    request = RequestInput("r", bytes(70_100), multimodal=items)
    expect_equal_hashes(core(build), request, 300)


@builds
def test_a_request_without_items_is_one_run_or_two(build: str) -> None:
    runs = core(build).extra_keys.runs
    request = RequestInput("r", [1], lora=LoRA("sql", 1))
    assert list(runs(request, 16, 0, 10**6, 0)) == [(0, 10**6, ("sql",))]
    request = RequestInput("r", [1], cache_salt="a")
    assert list(runs(request, 16, 0, 10**6, 0)) == [(0, 1, ("a",)), (1, 10**6, None)]
    request = RequestInput("r", [1], prompt_embeddings=PromptEmbeddings(bytes(40), 1))
    assert [run[:2] for run in runs(request, 16, 0, 10**6, 0)] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 10**6),
    ]


@builds
@pytest.mark.parametrize("wrong", [b"", b"1234567", b"123456789", "12345678", None], ids=repr)
def test_a_first_parent_of_another_length_is_refused(build: str, wrong: object) -> None:
    hasher = core(build).hashing.Hasher("sha256_cbor_64bit", "0")
    with pytest.raises(InvalidArgumentError, match="none_hash"):
        hasher.set_none_hash(wrong)
    assert hasher.none_hash.hex() == "f8b55adff2e61c3e"


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


LENGTHS = (*range(300), 1000, 2047, 2048, 65536, 10**6)


def expected_of_hash_digest(function: str, data: bytes) -> bytes:
    if function == "xxhash_cbor":
        return xxhash.xxh3_128_digest(data)
    return hashlib.sha256(data).digest()[-8 if function.endswith("64bit") else 0 :]


def expect_right_digests(digest: Any, function: str) -> None:
    for length in LENGTHS:
        data = bytes(i * 7 & 255 for i in range(length))
        assert digest.of(data) == expected_of_hash_digest(function, data), length
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
