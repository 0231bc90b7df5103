"""Many requests at once: the same as one by one, while other threads run."""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import kvfast
import kvref
from kvfast._implementation import FastImplementation
from kvspec.errors import InvalidArgumentError
from kvspec.request import RequestInput
from tests.contract.builders import make_config
from tests.kvfast.hash_cores import core, everything

INPUTS = [
    RequestInput(
        f"r{i}", array("q", range(i, i + 37 * i % 3000 + 1)), cache_salt="s" * (i % 3) or None
    )
    for i in range(50)
] + [everything(3000)]


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


@pytest.fixture(params=[kvfast.implementation, kvfast.uncompiled], ids=["compiled", "uncompiled"])
def implementation(request: pytest.FixtureRequest) -> FastImplementation:
    made: FastImplementation = request.param()
    return made


@pytest.mark.parametrize("enable_caching", [True, False])
@pytest.mark.parametrize("num_threads", [None, 1, 3, 100])
@pytest.mark.parametrize("function", ["sha256_cbor", "xxhash_cbor"])
def test_make_requests_is_make_request_of_each(
    implementation: FastImplementation,
    enable_caching: bool,
    num_threads: int | None,
    function: str,
) -> None:
    config = replace(
        CONFIG, enable_caching=enable_caching, hash_function=function, trusted_tenants=True
    )
    manager = implementation.create(config)
    requests = implementation.make_requests(manager, iter(INPUTS), num_threads=num_threads)
    for one, content in zip(requests, INPUTS, strict=True):
        alone = implementation.make_request(manager, content)
        assert (one.request_id, one.token_ids) == (alone.request_id, alone.token_ids)
        assert one.block_hashes == alone.block_hashes
    assert bool(requests[-1].block_hashes) is enable_caching
    assert manager.get_computed_blocks(requests[-1]).hit_length_tokens == 0
    assert implementation.make_requests(manager, [], num_threads=num_threads) == []


OTHERS = kvref.implementation().create(CONFIG)
BAD = [*INPUTS, RequestInput("bad", [1, -1]), RequestInput("worse", [-1])]


@pytest.mark.parametrize(
    ("owner", "inputs", "num_threads", "field"),
    [
        (None, BAD, None, "prompt_token_ids[1]"),
        (None, BAD, 4, "prompt_token_ids[1]"),
        (None, [INPUTS[0], "r1"], None, "request"),
        (None, range(2**70), None, "request"),
        (None, None, None, "inputs"),
        (OTHERS, INPUTS, 1, "manager"),
        *((None, INPUTS, wrong, "num_threads") for wrong in (0, -1, 1.0, True, "2")),
    ],
)
def test_make_requests_refuses_what_make_request_refuses(
    implementation: FastImplementation, owner: Any, inputs: Any, num_threads: Any, field: str
) -> None:
    manager = owner or implementation.create(CONFIG)
    with pytest.raises(InvalidArgumentError) as caught:
        implementation.make_requests(manager, inputs, num_threads=num_threads)
    assert caught.value.field == field
