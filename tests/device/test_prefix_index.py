"""An index finds what look-ups of the manager find; its table compares whole hashes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvfast
from kvfast.device import Backend, Crossover, PrefixIndex
from kvfast.device.base.backend import form_of
from kvfast.device.hashing.prompts import Prompts, prompts_on
from kvfast.device.index.keys import Changes
from kvfast.device.index.table import EMPTY, IndexTable
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.policy import Policy
from kvspec.specs import FullAttentionSpec, LayerSpec, SlidingWindowSpec
from tests.device.models import NONE_HASH, config_of, flat, quick_interpreter
from tests.device.prefixes import Side, play
from tests.device.tables import kernel_device

Hashes = list[bytes]


def random_hashes(random: Random, num: int, homes: int) -> Hashes:
    """Draw different hashes with few homes; half of them differ in their last byte alone."""
    made: dict[bytes, None] = {}
    while len(made) < num:
        home = random.randrange(homes).to_bytes(4, "little")
        rest = bytes(27) if random.random() < 0.5 else random.randbytes(27)
        made[home + rest + random.randbytes(1)] = None
    return list(made)


def device_of(backend: Backend) -> torch.device:
    return torch.device(kernel_device(backend))


def table_of(backend: Backend, room: int, *lots: Hashes) -> IndexTable:
    table = IndexTable.empty(room, device_of(backend))
    first = 0
    for lot in lots:
        table.apply(Changes(False, first, lot, {}), backend)
        first += len(lot)
    return table


def hits(table: IndexTable, prompts: list[Hashes], backend: Backend) -> torch.Tensor:
    """Look up prompts with these hashes, one token for each hash."""
    counts = torch.tensor([len(one) for one in prompts], dtype=torch.int64)
    starts = torch.zeros(len(prompts) + 1, dtype=torch.int64)
    given: Prompts = prompts_on(
        table.slots.device, torch.zeros(0).long(), starts, counts, NONE_HASH
    )
    joined = bytearray(b"".join(one for prompt in prompts for one in prompt))
    words = torch.empty((0, 8), dtype=torch.int32)
    if joined:
        words = torch.frombuffer(joined, dtype=torch.int32).view(-1, 8)
    words = words.to(table.slots.device)
    found: torch.Tensor = form_of("kvfast.device.index", backend).lookup(table, given, words, 0, 1)
    return found.cpu()


def run(prompt: Hashes, there: Hashes) -> int:
    return next((n for n, one in enumerate(prompt) if one not in there), len(prompt))


def one_after_another(hashes: Hashes, num_slots: int) -> list[int]:
    """Insert entries in order, each into the first empty slot from its home on."""
    slots = [EMPTY] * num_slots
    for entry, one in enumerate(hashes):
        slot = int.from_bytes(one[:4], "little") % num_slots
        while slots[slot] != EMPTY:
            slot = (slot + 1) % num_slots
        slots[slot] = entry
    return slots


def check_table(backend: Backend, random: Random, num: int, homes: int) -> None:
    hashes = random_hashes(random, num + 4, homes)
    there, absent = hashes[:num], hashes[num:]
    cut = random.randint(0, num)
    room = max(1, num)
    table = table_of(backend, room, there[:cut], there[cut:])
    assert table.slots.tolist() == one_after_another(there, len(table.slots))
    assert len(table.slots) >= 2 * room
    prompts = [
        random.choices([*there, *absent[: random.randint(0, 4)]] or absent, k=n)
        for n in (0, 1, 5, 9)
    ]
    assert hits(table, prompts, backend).tolist() == [run(one, there) for one in prompts]
    dead = random.sample(range(num), num // 2)
    table.apply(Changes(False, num, [], dict.fromkeys(dead, 0)), backend)
    left = [one for entry, one in enumerate(there) if entry not in dead]
    assert hits(table, prompts, backend).tolist() == [run(one, left) for one in prompts]
    table.apply(Changes(False, num, [], dict.fromkeys(dead, 1)), backend)
    assert hits(table, prompts, backend).tolist() == [run(one, there) for one in prompts]


@pytest.mark.rule("KV-DEV-19")
@settings(max_examples=40)
@given(seed=st.integers(0, 9999), num=st.integers(0, 40), homes=st.sampled_from([1, 3, 70, 2**32]))
def test_a_table_finds_what_is_there_and_nothing_else(seed: int, num: int, homes: int) -> None:
    check_table("torch", Random(seed), num, homes)


@pytest.mark.rule("KV-DEV-19")
@settings(max_examples=6)
@given(seed=st.integers(0, 9999), num=st.integers(0, 20), homes=st.sampled_from([1, 3, 2**32]))
def test_a_table_of_the_kernels_does_as_well(seed: int, num: int, homes: int) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    check_table("triton", Random(seed), num, homes)


@pytest.mark.rule("KV-DEV-19", "KV-DEV-20")
@settings(max_examples=5)
@given(
    seed=st.integers(0, 9999),
    use_eagle=st.booleans(),
    policy=st.sampled_from([Policy(), Policy(removed_event_per="last_copy")]),
    dcp=st.sampled_from([1, 2]),
)
def test_hits_are_those_of_the_manager(
    seed: int, use_eagle: bool, policy: Policy, dcp: int
) -> None:
    play(seed, ["torch"], 7, use_eagle=use_eagle, policy=policy, dcp_world_size=dcp)


@pytest.mark.rule("KV-DEV-19")
def test_kernels_find_the_hits_of_the_manager_as_well() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    with quick_interpreter():
        assert play(3, ["triton"], 3)


def test_the_random_calls_hit_something() -> None:
    assert sum(play(seed, [], 7) for seed in range(3)) > 20


def one_index(**options: Any) -> tuple[Side, PrefixIndex]:
    side = Side(kvfast.implementation(), config_of(4, enable_events=True, **options))
    return side, PrefixIndex(kvfast.implementation(), side.manager, crossover=Crossover(1))


def hits_of(index: PrefixIndex, *prompts: Sequence[int]) -> list[int]:
    answer: list[int] = index.lookup(*flat(prompts)).tolist()
    return answer


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
