"""Many requests at once: the same as one by one, while other threads run."""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Iterator

import pytest

from kvspec.errors import InvalidArgumentError
from kvspec.request import RequestInput
from tests.kvfast.hash_cores import BUILDS, core, everything

INPUTS = [
    RequestInput(f"r{i}", array("q", range(i, i + 37 * i % 3000 + 1)), cache_salt="s" * (i % 3))
    for i in range(50)
] + [everything(3000)]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("num_threads", [None, 1, 2, 7, 100])
def test_a_batch_is_one_by_one(build: str, num_threads: int | None) -> None:
    hasher = core(build).hashing.Hasher("xxhash_cbor", "0")
    request = core(build).request
    batch = request.hash_many(iter(INPUTS), hasher, 16, num_threads=num_threads)
    assert [one.input for one in batch] == INPUTS
    for one, content in zip(batch, INPUTS, strict=True):
        alone = request.make_request(content, hasher, 16)
        assert (one.token_ids, one.block_hashes) == (alone.token_ids, alone.block_hashes)


@pytest.mark.parametrize("build", BUILDS)
def test_an_empty_batch_is_empty(build: str) -> None:
    hasher = core(build).hashing.Hasher("sha256_cbor", "0")
    assert core(build).request.hash_many([], hasher, 16) == []


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("num_threads", [1, 4])
def test_the_first_illegal_input_raises(build: str, num_threads: int) -> None:
    hasher = core(build).hashing.Hasher("sha256_cbor", "0")
    inputs = [*INPUTS, RequestInput("bad", [1, -1]), RequestInput("worse", [-1])]
    with pytest.raises(InvalidArgumentError) as caught:
        core(build).request.hash_many(inputs, hasher, 16, num_threads=num_threads)
    assert caught.value.field == "prompt_token_ids[1]"


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("num_threads", [0, -1, 1.0, True, "2"], ids=repr)
def test_an_impossible_number_of_threads_is_refused(build: str, num_threads: object) -> None:
    hasher = core(build).hashing.Hasher("sha256_cbor", "0")
    with pytest.raises(InvalidArgumentError, match="num_threads"):
        core(build).request.hash_many(INPUTS, hasher, 16, num_threads=num_threads)


@pytest.fixture
def no_switching() -> Iterator[None]:
    """No thread is made to give way: another one runs only when the GIL is handed over."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("no_switching")
def test_hashing_a_long_prompt_lets_other_threads_run() -> None:
    compiled = core("_compiled")
    hasher = compiled.hashing.Hasher("xxhash_cbor", "0")
    content = RequestInput("r", array("q", bytes(8 * 500_000)))
    ran: list[int] = []
    go = threading.Event()

    def wait_and_run() -> None:
        go.wait()
        ran.append(1)

    other = threading.Thread(target=wait_and_run)
    other.start()
    go.set()
    # One hand-over of some milliseconds may come too early for a busy machine; not all of them.
    for _ in range(200):
        compiled.request.make_request(content, hasher, 16)
        if ran:
            break
    seen = list(ran)
    other.join()
    assert seen == [1]
