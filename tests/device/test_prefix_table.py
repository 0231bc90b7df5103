"""Tables of hashes: whole hashes are compared, and kernels fill every slot as plain torch does."""

from __future__ import annotations

from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kvfast.device import Backend
from kvfast.device.base.backend import form_of
from kvfast.device.hashing.prompts import Prompts, prompts_on
from kvfast.device.index.keys import Changes
from kvfast.device.index.table import EMPTY, IndexTable
from tests.device.prompts import NONE_HASH
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
