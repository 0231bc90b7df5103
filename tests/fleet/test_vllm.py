"""vLLM's own publisher feeds a view, and vLLM's own types read what ours sends."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import pytest

from kvspec.events import MEDIUM_GPU, AllBlocksCleared
from kvspec.fleet import Batch
from tests.fleet.traffic import cached, managed, removed, stored, traffic

msgspec = pytest.importorskip("msgspec", reason="needs the extra fleet (msgspec, pyzmq)")
zmq = pytest.importorskip("zmq", reason="needs the extra fleet (msgspec, pyzmq)")
from kvfast.fleet.view import FleetView, Source  # noqa: E402 (after the check above)
from kvfast.fleet.wire import encode_batch  # noqa: E402 (the same)

NUM_STEPS = 300


@pytest.fixture(scope="module")
def vllm() -> Any:
    """The adapter; skips where vLLM is not installed."""
    from kvcheck.adapters.vllm import VLLMUnavailableError, implementation

    try:
        return implementation()
    except VLLMUnavailableError as error:
        pytest.skip(str(error))


def free_address() -> str:
    """Return an address with a free port: vLLM's publisher does not report which one it took.

    It connects to an address without `*`, and binds `ipc` ones.
    """
    with zmq.Context() as context, context.socket(zmq.PUB) as socket:
        return f"tcp://*:{socket.bind_to_random_port('tcp://127.0.0.1')}"


@pytest.mark.rule("KV-FLEET-10", "KV-FLEET-11")
@pytest.mark.parametrize("kept", [10_000, 5], ids=["replay", "given up"])
def test_vllm_s_publisher_feeds_a_view(vllm: Any, kept: int) -> None:
    """Use vLLM's manager, events, thread and sockets, and lose some of its messages."""
    from vllm.distributed.kv_events import KVEventBatch, ZmqEventPublisher

    published, replayed = free_address(), free_address()
    theirs = ZmqEventPublisher(0, published, replayed, buffer_steps=kept, topic="kv")
    here = [address.replace("*", "127.0.0.1") for address in (published, replayed)]
    manager: Any = managed(vllm, 120, vllm.library.policy)
    steps = traffic(vllm, manager, Random(7))
    number = -1
    try:
        with FleetView({"e": Source(here[0], here[1], topic="kv")}, pause_s=0.0) as view:
            view.poll(0.3)
            for step in range(NUM_STEPS):
                next(steps)
                # Their own objects; the adapter would translate them.
                events = manager.inner.take_events()
                if events:
                    theirs.publish(KVEventBatch(ts=time.time(), events=events))
                    number += 1
                if step == NUM_STEPS // 2:
                    view.poll(0.1)
                    if "e" in view.index.engines:
                        view.index.forget("e")  # as if none of it had arrived
            end = time.monotonic() + 30
            while "e" not in view.index.engines or view.index.last("e")[0] < number:
                view.poll(0.1)
                assert time.monotonic() < end, view.counts
            state, truth = view.index.state("e"), cached(manager.snapshot())
    finally:
        theirs.shutdown()
    if kept > 5:
        assert state.is_whole
        assert state.keys == truth
        assert view.counts.replays > 0
    else:
        assert view.counts.given_up > 0
        assert all(copies <= truth.get(key, 0) for key, copies in state.keys.items())
    assert state.keys


@pytest.mark.rule("KV-FLEET-10")
def test_vllm_s_types_read_what_is_published(vllm: Any) -> None:
    from vllm.distributed import kv_events

    events = (stored(b"a", 7, group=1), removed(7), stored(b"b", is_report=True))
    payload = encode_batch(Batch(3, 1.5, (*events, AllBlocksCleared())), rank=2)
    read = msgspec.msgpack.decode(payload, type=kv_events.KVEventBatch)
    assert (read.ts, read.data_parallel_rank) == (1.5, 2)
    first, second, third, last = read.events
    assert (first.block_hashes, first.group_idx, first.medium) == ([b"a", 7], 1, MEDIUM_GPU)
    assert (first.block_size, first.kv_cache_spec_kind) == (4, "full_attention")
    assert (second.block_hashes, second.group_idx) == ([7], 0)
    assert third.block_hashes == [b"b"]
    assert isinstance(last, kv_events.AllBlocksCleared)
    manager = managed(vllm, 40, vllm.library.policy)
    for number, _ in zip(range(40), traffic(vllm, manager, Random(3)), strict=False):
        batch = Batch(number, 0.0, manager.take_events())
        again = msgspec.msgpack.decode(encode_batch(batch), type=kv_events.KVEventBatch)
        assert [type(one).__name__ for one in again.events] == [
            type(one).__name__ for one in batch.events
        ]
