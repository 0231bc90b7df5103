"""An index finds what look-ups of the manager find, on the host and on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvfast
from kvfast.device import Crossover, PrefixIndex
from kvfast.device.index.table import IndexTable
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.policy import Policy
from kvspec.specs import FullAttentionSpec, LayerSpec, SlidingWindowSpec
from tests.device.prefixes import Side, play
from tests.device.prompts import config_of, flat, quick_interpreter


@pytest.mark.rule("KV-DEV-19", "KV-DEV-20")
@settings(max_examples=5)
@given(
    seed=st.integers(0, 9999),
    use_eagle=st.booleans(),
    policy=st.sampled_from([Policy(), Policy(removed_event_per="last_copy")]),
)
def test_hits_are_those_of_the_manager(seed: int, use_eagle: bool, policy: Policy) -> None:
    play(seed, ["torch"], 7, use_eagle=use_eagle, policy=policy)


@pytest.mark.rule("KV-DEV-19")
def test_kernels_find_the_hits_of_the_manager_as_well() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    with quick_interpreter():
        assert play(3, ["triton"], 3)


def test_the_random_calls_hit_something() -> None:
    assert sum(play(seed, [], 7) for seed in range(3)) > 20


@pytest.mark.rule("KV-DEV-19")
def test_under_context_parallelism_a_hash_covers_the_span() -> None:
    assert sum(play(seed, ["torch"], 7, dcp_world_size=2) for seed in range(2))


def one_index(**options: Any) -> tuple[Side, PrefixIndex]:
    side = Side(kvfast.implementation(), config_of(4, enable_events=True, **options))
    return side, PrefixIndex(kvfast.implementation(), side.manager, crossover=Crossover(1))


def hits_of(index: PrefixIndex, *prompts: Sequence[int]) -> list[int]:
    answer: list[int] = index.lookup(*flat(prompts)).tolist()
    return answer


@pytest.mark.rule("KV-DEV-19")
def test_the_last_token_is_never_a_hit() -> None:
    side, index = one_index()
    side.admit("a", range(9))
    index.update(side.manager.take_events())
    assert hits_of(index, range(8), range(9), range(7), [0], range(13)) == [4, 8, 4, 0, 8]


@pytest.mark.rule("KV-DEV-19")
def test_it_begins_with_what_is_cached_and_can_begin_anew() -> None:
    side = Side(kvfast.implementation(), config_of(4))  # without events
    side.admit("a", range(9))
    index = PrefixIndex(kvfast.implementation(), side.manager, crossover=Crossover(1))
    assert hits_of(index, range(9)) == [8]
    side.free("a")
    side.manager.reset_prefix_cache()
    side.admit("b", range(5))
    assert hits_of(index, range(9)) == [8]  # it was not updated
    index.read()
    assert hits_of(index, range(9)) == [4]
    assert index.num_keys == 1


@pytest.mark.rule("KV-DEV-19")
def test_a_key_stays_until_its_last_copy_is_gone() -> None:
    side, index = one_index()
    for name in "ab":  # the second one before the first is computed: two copies
        handle = side.register(name, range(5))
        request = side.batched.request_of(handle)
        side.manager.allocate_slots(request, 5)
    assert hits_of(index, range(5)) == [0]
    index.update(side.manager.take_events())
    assert hits_of(index, range(5)) == [4]
    blocks = [key for key in side.manager.snapshot().block_keys if key]
    assert len(blocks) == 2
    for block in (1, 3):
        side.manager.evict_blocks([block])
        index.update(side.manager.take_events())
        assert hits_of(index, range(5)) == [4 if block == 1 else 0]
    assert index.num_keys == 0


@pytest.mark.rule("KV-DEV-19")
def test_entries_that_are_used_up_begin_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    empty = IndexTable.empty

    def counted(max_entries: int, device: torch.device) -> IndexTable:
        made.append(max_entries)
        return empty(max_entries, device)

    monkeypatch.setattr(IndexTable, "empty", staticmethod(counted))
    side, index = one_index()
    for number in range(1, 10):
        prompt = [number] * 41
        side.admit(str(number), prompt)
        side.free(str(number))
        index.update(side.manager.take_events())
        before = [number - 1] * 41
        expected = side.lookup([prompt, before])
        assert expected[0] == 40
        assert hits_of(index, prompt, before) == expected
    assert len(made) > 3
    assert set(made) == {24}


def test_it_needs_the_events_of_its_manager() -> None:
    side, index = one_index()
    other, _ = one_index()
    side.admit("a", range(9))
    stored = side.manager.take_events()
    side.manager.evict_blocks([1])
    removed = side.manager.take_events()
    wrong: list[Any] = [removed, [*stored, *removed, *removed], [*stored, None], stored[0], 3]
    for events in wrong:
        with pytest.raises(InvalidArgumentError, match="events"):
            index.update(events)
        assert index.num_keys == 0
    index.update((*stored, *removed))
    assert hits_of(index, range(9)) == [0]
    assert index.num_keys == 1
    for number in range(11):
        other.admit(str(number), [number] * 4)
        if number < 10:
            index.update(other.manager.take_events())
    with pytest.raises(InvalidArgumentError, match="at most 11 keys"):
        index.update(other.manager.take_events())
    assert index.num_keys == 11


def test_events_with_hashes_of_64_bits_are_refused() -> None:
    side, index = one_index(int_event_hashes=True)
    side.admit("a", range(5))
    with pytest.raises(InvalidArgumentError, match="32 bytes"):
        index.update(side.manager.take_events())
    index.read()
    assert hits_of(index, range(5)) == [4]


WINDOW = SlidingWindowSpec(4, 1, 8, "float16", sliding_window=4)


def groups(*specs: LayerSpec) -> KVCacheConfig:
    layers = tuple(KVCacheGroup((f"layer.{n}",), one) for n, one in enumerate(specs))
    return KVCacheConfig(12, layers)


@pytest.mark.rule("KV-DEV-19")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enable_caching": False}, "without prefix caching"),
        ({"hash_function": "sha256_cbor_64bit", "trusted_tenants": True}, "sha256_cbor_64bit"),
        ({"kv_cache": groups(FullAttentionSpec(4, 1, 8, "float16"), WINDOW)}, "several groups"),
        ({"kv_cache": groups(WINDOW)}, "anything but full attention"),
        ({"kv_cache": groups(), "enable_caching": False}, "without prefix caching"),
    ],
)
def test_other_managers_are_refused(options: dict[str, Any], said: str) -> None:
    implementation = kvfast.implementation()
    manager = implementation.create(config_of(4, **options))
    with pytest.raises(UnsupportedError, match=said):
        PrefixIndex(implementation, manager)


@pytest.mark.rule("KV-DEV-20")
def test_the_host_does_everything_unless_the_device_was_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used: list[str] = []
    on_host, on_device = PrefixIndex._on_host, PrefixIndex._on_device

    def host(self: PrefixIndex, *given: Any) -> torch.Tensor:
        used.append("host")
        return on_host(self, *given)

    def device(self: PrefixIndex, *given: Any) -> torch.Tensor:
        used.append("device")
        return on_device(self, *given)

    monkeypatch.setattr(PrefixIndex, "_on_host", host)
    monkeypatch.setattr(PrefixIndex, "_on_device", device)
    side = Side(kvfast.implementation(), config_of(4))
    prompts = [list(range(9)), list(range(17)), list(range(17))]  # 2, 4 and 4 blocks
    for num, where in ((None, "host"), (1, "device"), (2, "device"), (3, "host")):
        index = PrefixIndex(side.implementation, side.manager, crossover=Crossover(num))
        assert hits_of(index, *prompts) == [0, 0, 0]
        assert hits_of(index, [1], [2], [3], [4]) == [0] * 4  # nothing to hash
        assert used == [where, "host"]
        used.clear()


@pytest.mark.rule("KV-DEV-20")
@pytest.mark.parametrize(
    ("num_prompts", "blocks", "chosen"),
    [
        (None, [9] * 9, False),
        (3, [], False),
        (3, [0, 0, 0], False),
        (3, [5, 5], False),
        (3, [5, 5, 5], True),
        (3, [5, 5, 4], False),
        (3, [5, 5, 4, 1], True),
        (3, [100, 1, 1, 1, 1, 1], False),
    ],
)
def test_one_long_chain_is_left_to_the_host(
    num_prompts: int | None, blocks: list[int], chosen: bool
) -> None:
    counts = torch.tensor(blocks, dtype=torch.int64)
    assert Crossover(num_prompts).chooses_device(counts) is chosen
