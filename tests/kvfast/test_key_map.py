"""The cache map against a plain dictionary: crowded tables, long ways from home, strays."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvfast._core import probing
from kvfast._core.columns import ring_of
from kvfast._core.hashing import Hasher
from kvfast._core.key_map import KeyMap
from kvfast._core.request import FastRequest, make_request
from kvspec.request import RequestInput

NUM_BLOCKS = 24
NUM_HASHES = 20

Key = tuple[bytes, int]


def requests() -> list[FastRequest]:
    """Return three prompts of 20 blocks; the first two share a prefix, within a line of eight."""
    hasher = Hasher("sha256_cbor", "0")
    prompts = [range(20), [*range(11), *range(50, 59)], range(100, 120)]
    return [make_request(RequestInput(str(i), p), hasher, 1) for i, p in enumerate(prompts)]


REQUESTS = requests()


class Model:
    """Keys in a dictionary, the entries of each in the order of addition."""

    def __init__(self) -> None:
        self.entries: dict[Key, list[int]] = {}
        self.key_of: dict[int, Key] = {}

    def add(self, entry: int, key: Key) -> None:
        self.key_of[entry] = key
        self.entries.setdefault(key, []).append(entry)

    def remove(self, entry: int) -> bool:
        key = self.key_of.pop(entry)
        self.entries[key].remove(entry)
        if not self.entries[key]:
            del self.entries[key]
        return key not in self.entries

    def first(self, key: Key) -> int:
        return self.entries.get(key, [0])[0]


action = st.tuples(
    st.sampled_from(["add", "add", "add", "stray", "remove", "clear", "grow"]),
    st.integers(1, NUM_BLOCKS - 1),
    st.integers(0, len(REQUESTS) - 1),
    st.integers(0, NUM_HASHES - 1),
    st.integers(0, 1),
)


def key_at(request: FastRequest, number: int, group: int) -> Key:
    return request.block_hashes[number], group


def play(keys: KeyMap, actions: list[tuple[str, int, int, int, int]]) -> None:
    model = Model()
    rare = 0
    for name, entry, which, number, group in actions:
        request = REQUESTS[which]
        key = key_at(request, number, group)
        if name == "remove" and entry in model.key_of:
            assert keys.remove(entry) == model.remove(entry)
        elif name == "add" and entry not in model.key_of:
            keys.add(entry, request, number, group)
            model.add(entry, key)
        elif name == "stray" and entry not in model.key_of:
            keys.add_words(entry, memoryview(key[0]).cast("Q"), 0, group, model.first(key))
            model.add(entry, key)
        elif name == "clear" and (rare := rare + 1) == 3:
            keys.clear()
            model = Model()
        elif name == "grow" and (rare := rare + 1) == 2:
            keys.grow(2 * NUM_BLOCKS)
        for one in REQUESTS:
            for k in range(NUM_HASHES):
                for g in (0, 1):
                    assert keys.find(one, k, g) == model.first(key_at(one, k, g))
    heads = [ring[0] for ring in model.entries.values()]
    assert [e for e in model.key_of if keys.slots[keys.slot_of(e)]] == [
        e for e in model.key_of if e in heads
    ]
    assert [ring_of(keys, head) for head in heads] == list(model.entries.values())


actions = st.lists(action, max_size=60)


@given(actions)
def test_a_map_is_a_dictionary_of_lists(actions: list[tuple[str, int, int, int, int]]) -> None:
    play(KeyMap(NUM_BLOCKS, 4), actions)


class Crowded(KeyMap):
    def mix(self, word: int, group: int) -> int:
        return group


@given(actions)
def test_so_is_one_whose_homes_are_the_same(actions: list[tuple[str, int, int, int, int]]) -> None:
    play(Crowded(NUM_BLOCKS, 4), actions)


@pytest.fixture(scope="module")
def few_steps_fit() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probing, "STEPS_MASK", 1)
        yield


@pytest.mark.usefixtures("few_steps_fit")
@given(actions)
def test_so_is_one_with_more_steps_than_a_slot_holds(
    actions: list[tuple[str, int, int, int, int]],
) -> None:
    play(Crowded(NUM_BLOCKS, 4), actions)


@pytest.mark.usefixtures("few_steps_fit")
def test_whoever_leaves_a_crowded_line_nobody_behind_is_lost() -> None:
    for seed in range(5):
        random = Random(seed)
        arrivals = [
            ("add", e, random.randrange(3), (e - 1) % NUM_HASHES, random.randrange(2))
            for e in range(1, NUM_BLOCKS)
        ]
        leaving = [("remove", e, 0, 0, 0) for e in random.sample(range(1, NUM_BLOCKS), 8)]
        play(Crowded(NUM_BLOCKS, 4), [*arrivals, *leaving])


class NeverMovesBack(Crowded):
    def empty_slot(self, hole: int) -> None:
        self.slots[hole] = 0


def test_a_map_that_loses_the_way_to_a_key_is_found() -> None:
    with pytest.raises(AssertionError):
        play(
            NeverMovesBack(NUM_BLOCKS, 4),
            [("add", 1, 0, 0, 0), ("add", 2, 2, 0, 0), ("remove", 1, 0, 0, 0)],
        )


def test_eight_blocks_in_a_row_share_a_cache_line() -> None:
    keys = KeyMap(1 << 12, 4)
    for request in REQUESTS:
        homes = [keys.home_of(request, number, 0) & keys.slot_mask for number in range(16)]
        assert len({home // 8 for home in homes[:8]}) == 1
        assert len(set(homes[:8])) == 8
        assert homes[8] // 8 != homes[0] // 8
