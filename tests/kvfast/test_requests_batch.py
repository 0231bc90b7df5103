"""Many requests at once: the same as one by one, while other threads run."""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import kvfast
import kvref
from kvfast._implementation import FastImplementation
from kvspec.errors import InvalidArgumentError
from kvspec.request import RequestInput
from tests.contract.builders import make_config
from tests.kvfast.hash_cores import BUILDS, core, everything

INPUTS = [
    RequestInput(
        f"r{i}", array("q", range(i, i + 37 * i % 3000 + 1)), cache_salt="s" * (i % 3) or None
    )
    for i in range(50)
] + [everything(3000)]


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("num_threads", [None, 1, 2, 7, 100])
def test_a_batch_is_one_by_one(build: str, num_threads: int | None) -> None:
    hasher = core(build).hashing.Hasher("xxhash_cbor", "0")
    request = core(build).request
    batch = core(build).many.hash_many(iter(INPUTS), hasher, 16, num_threads=num_threads)
    assert [one.input for one in batch] == INPUTS
    for one, content in zip(batch, INPUTS, strict=True):
        alone = request.make_request(content, hasher, 16)
        assert (one.token_ids, one.block_hashes) == (alone.token_ids, alone.block_hashes)


@pytest.mark.parametrize("build", BUILDS)
def test_an_empty_batch_is_empty(build: str) -> None:
    hasher = core(build).hashing.Hasher("sha256_cbor", "0")
    assert core(build).many.hash_many([], hasher, 16) == []


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("num_threads", [1, 4])
def test_the_first_illegal_input_raises(build: str, num_threads: int) -> None:
    hasher = core(build).hashing.Hasher("sha256_cbor", "0")
    inputs = [*INPUTS, RequestInput("bad", [1, -1]), RequestInput("worse", [-1])]
    with pytest.raises(InvalidArgumentError) as caught:
        core(build).many.hash_many(inputs, hasher, 16, num_threads=num_threads)
    assert caught.value.field == "prompt_token_ids[1]"


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("num_threads", [0, -1, 1.0, True, "2"], ids=repr)
def test_an_impossible_number_of_threads_is_refused(build: str, num_threads: object) -> None:
    hasher = core(build).hashing.Hasher("sha256_cbor", "0")
    with pytest.raises(InvalidArgumentError, match="num_threads"):
        core(build).many.hash_many(INPUTS, hasher, 16, num_threads=num_threads)


@pytest.fixture
def no_switching() -> Iterator[None]:
    """Lets another thread run only when the GIL is released."""
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
    # One hand-over of some milliseconds may be too early for a busy machine; not all of them.
    for _ in range(200):
        compiled.request.make_request(content, hasher, 16)
        if ran:
            break
    seen = list(ran)
    other.join()
    assert seen == [1]


CONFIG = make_config(10, 16, max_model_len_tokens=4096, hash_seed=None)
IMPLEMENTATIONS = [
    pytest.param(kvfast.implementation, id="kvfast"),
    pytest.param(kvfast.uncompiled, id="kvfast-uncompiled"),
]


@pytest.mark.parametrize("made", IMPLEMENTATIONS)
@pytest.mark.parametrize("enable_caching", [True, False])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_make_requests_is_make_request_of_each(
    made: Callable[[], FastImplementation], enable_caching: bool, num_threads: int
) -> None:
    implementation = made()
    manager = implementation.create(replace(CONFIG, enable_caching=enable_caching))
    requests = implementation.make_requests(manager, iter(INPUTS), num_threads=num_threads)
    for one, content in zip(requests, INPUTS, strict=True):
        alone = implementation.make_request(manager, content)
        assert (one.request_id, one.token_ids) == (alone.request_id, alone.token_ids)
        assert one.block_hashes == alone.block_hashes
    assert bool(requests[-1].block_hashes) is enable_caching
    assert manager.get_computed_blocks(requests[-1]).hit_length_tokens == 0


@pytest.mark.parametrize("made", IMPLEMENTATIONS)
def test_make_requests_refuses_what_make_request_refuses(
    made: Callable[[], FastImplementation],
) -> None:
    implementation = made()
    manager = implementation.create(CONFIG)
    for arguments, field in (
        ((manager, [INPUTS[0], RequestInput("bad", [1, -1])], None), "prompt_token_ids[1]"),
        ((manager, [INPUTS[0], "r1"], None), "request"),
        ((manager, range(2**70), None), "request"),
        ((manager, None, None), "inputs"),
        ((manager, INPUTS, 0), "num_threads"),
        (
            (
                kvref.implementation().create(CONFIG),
                INPUTS,
                1,
            ),
            "manager",
        ),
    ):
        owner, inputs, num_threads = arguments
        with pytest.raises(InvalidArgumentError) as caught:
            implementation.make_requests(owner, inputs, num_threads=num_threads)  # type: ignore[arg-type]  # meant
        assert caught.value.field == field
