"""Random calls on managers, and indexes of their prefixes that follow."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import torch

import kvfast
import kvref
from kvfast.device import Backend, Crossover, PrefixIndex
from kvspec.config import ManagerConfig
from kvspec.interface import Implementation
from kvspec.request import RequestInput
from kvspec.sequential import batched_of
from tests.device.models import config_of, flat
from tests.device.tables import kernel_device


class Side:
    def __init__(self, implementation: Implementation, config: ManagerConfig) -> None:
        self.implementation = implementation
        self.manager = implementation.create(config)
        self.batched = batched_of(implementation, self.manager)
        self.held: dict[str, int] = {}

    def register(self, name: str, prompt: Sequence[int]) -> int:
        request = self.implementation.make_request(self.manager, RequestInput(name, prompt))
        return self.batched.register(request)

    def admit(self, name: str, prompt: Sequence[int]) -> None:
        handle = self.register(name, prompt)
        if self.batched.admit([handle]).num_scheduled_tokens[0]:
            self.held[name] = handle
        else:
            self.batched.unregister([handle])

    def free(self, name: str) -> None:
        if name in self.held:
            handle = self.held.pop(name)
            self.batched.free([handle])
            self.batched.unregister([handle])

    def lookup(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        handles = [self.register(f"waiting {n}", one) for n, one in enumerate(prompts)]
        hits = list(self.batched.lookup(handles))
        self.batched.unregister(handles)
        return hits


class Play:
    """Random calls on a manager of kvfast and one of kvref, and indexes that follow the first."""

    def __init__(self, random: Random, config: ManagerConfig, backends: Sequence[Backend]) -> None:
        self.random = random
        self.size = config.kv_cache.groups[0].spec.block_size
        self.implementation = kvfast.implementation()
        self.sides = [Side(one, config) for one in (self.implementation, kvref.implementation())]
        manager = self.sides[0].manager
        self.indexes = [PrefixIndex(self.implementation, manager)]
        self.indexes += [
            PrefixIndex(
                self.implementation,
                manager,
                device=kernel_device(one),
                backend=one,
                crossover=Crossover(1),
            )
            for one in backends
        ]
        self.num_hits = 0

    def prompts(self, num: int) -> list[list[int]]:
        """Draw prompts of tokens 0 and 1, so that many share prefixes."""
        longest = 6 * self.size
        lengths = [self.random.randint(1, longest) for _ in range(num)]
        return [[self.random.randrange(2) for _ in range(length)] for length in lengths]

    def step(self, number: int) -> None:
        for place, prompt in enumerate(self.prompts(self.random.randint(0, 4))):
            for side in self.sides:
                side.admit(f"{number}.{place}", prompt)
        for name in self.random.sample(sorted(self.sides[0].held), len(self.sides[0].held) // 2):
            for side in self.sides:
                side.free(name)
        evicted = [self.random.randrange(1, 12) for _ in range(self.random.choice((0, 0, 3)))]
        for side in self.sides:
            side.manager.evict_blocks(evicted)
            if number % 5 == 4:
                for name in list(side.held):
                    side.free(name)
                side.manager.reset_prefix_cache()
        self.compare()

    def compare(self) -> None:
        events = self.sides[0].manager.take_events()
        prompts = self.prompts(self.random.randint(0, 9))
        tokens, starts = flat(prompts)
        expected = self.sides[0].lookup(prompts)
        assert expected == self.sides[1].lookup(prompts)
        self.num_hits += sum(expected)
        snapshot = self.sides[0].manager.snapshot()
        for index in self.indexes:
            index.update(events)
            assert index.num_keys == len({key for keys in snapshot.block_keys for key in keys})
            found = index.lookup(tokens, starts)
            assert found.dtype == torch.int32
            assert found.tolist() == expected


def play(seed: int, backends: Sequence[Backend], num_steps: int, **options: Any) -> int:
    random = Random(seed)
    config = config_of(random.choice((1, 2, 4)), enable_events=True, **options)
    one = Play(random, config, backends)
    for number in range(num_steps):
        one.step(number)
    return one.num_hits
