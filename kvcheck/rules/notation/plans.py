"""Words of an example about a planner: layers and memory, then groups and tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.setting import PLANNED, items_of, settled, spec_of
from kvcheck.rules.notation.values import Name, Reader
from kvspec.config import KVCacheConfig, KVCacheGroup
from kvspec.planning import Layers, PlanningConfig
from kvspec.specs import LayerSpec

MEMBERS = frozenset(member.name for member in fields(PlanningConfig))


@dataclass(frozen=True)
class Made:
    """A plan in short: blocks of each worker's layout, the length, warnings."""

    num_blocks: tuple[int, ...]
    max_model_len_tokens: int
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Tensor:
    """A tensor with the numbers of the layers that share it."""

    layers: list[int]
    size_bytes: int
    offset_bytes: int | None
    stride_bytes: int | None


ROOMY = 2**30
"""Bytes of a worker whose memory does not matter: `make`."""


class Planning:
    """The layers of the last `plan`, and the layouts made of them.

    `workers`: each worker's layers, named by numbers from 0. `grouped`: the groups given in the
    line itself (`group 2 full of 16`), if any.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.workers: list[Layers] = []
        self.grouped: tuple[KVCacheGroup, ...] = ()
        self.config = PlanningConfig(64, 16)
        self.caches: tuple[KVCacheConfig, ...] = ()

    @property
    def layers(self) -> Layers:
        return self.workers[0]

    def visible(self) -> object:
        return copy.deepcopy((self.workers, self.grouped, self.config))

    def begin(self, reader: Reader) -> None:
        """Read `plan 64 16; 10 full of 16; worker; window 8 of 16; use_eagle=true`.

        The numbers are the longest request and the most tokens of a step. `worker 3` counts its
        layers from 3.
        """
        reader.take("plan")
        lengths = reader.values()
        items, options = items_of(self.bench, reader)
        chosen = settled(self.bench, options)
        chosen.setdefault("policy", self.bench.policy)
        lengths += [64, 16][len(lengths) :]
        names = dict(zip(("max_model_len_tokens", "max_num_batched_tokens"), lengths, strict=True))
        self.config = PlanningConfig(**{**names, **chosen})
        self.workers, self.caches, number = [], (), 0
        groups: list[KVCacheGroup] = []
        layers: list[tuple[str, LayerSpec]] = []
        for words in [*items, [Name("worker")]]:
            if words[0] == Name("worker"):
                self.workers.append(tuple(layers))
                layers, number = [], words[1] if len(words) > 1 else number
                continue
            is_group = words[0] == Name("group")
            made = list(_named(words[1:] if is_group else words, number))
            number += len(made)
            layers += made
            if is_group:
                groups.append(KVCacheGroup(tuple(name for name, _ in made), made[0][1]))
        self.grouped = tuple(groups)

    # Of one layer, and of all.

    def do_properties(self, number: int = 0) -> Any:
        return self.bench.planner.spec_properties(self.layers[number][1], self.config)

    def do_merge(self) -> Any:
        return self.bench.planner.merge([spec for _, spec in self.layers])

    def do_is_uniform(self) -> Any:
        return self.bench.planner.is_uniform(self.layers)

    def do_uniform_type(self) -> Any:
        return self.bench.planner.uniform_type(self.layers)

    def do_unify_hybrid(self) -> Any:
        return tuple(spec for _, spec in self.bench.planner.unify_hybrid(self.layers))

    def do_unify_page_size(self) -> Any:
        return tuple(spec for _, spec in self.bench.planner.unify_page_size(self.layers))

    def do_max_memory_usage_bytes(self) -> Any:
        return self.bench.planner.max_memory_usage_bytes(self.layers, self.config)

    def do_estimate_max_model_len(self, memory_bytes: int) -> Any:
        return self.bench.planner.estimate_max_model_len(self.layers, self.config, memory_bytes)

    def do_check_enough_memory(self, memory_bytes: int) -> None:
        self.bench.planner.check_enough_memory(self.layers, self.config, memory_bytes)

    # Groups and layouts.

    def do_groups(self, worker: Any = None) -> list[list[int]]:
        """Return the layers of each group, by number; of a worker in the last layouts."""
        return [list(map(int, group.layer_names)) for group in self._groups(worker)]

    def do_specs(self, worker: Any = None) -> tuple[LayerSpec, ...]:
        return tuple(group.spec for group in self._groups(worker))

    def do_flags(self, worker: Any = None) -> list[bool]:
        return [group.is_eagle_group for group in self._groups(worker)]

    def _groups(self, worker: Any) -> tuple[KVCacheGroup, ...]:
        if worker is None:
            return self.grouped or self.bench.planner.groups(self.layers, self.config)
        if worker == Name("scheduler"):
            return self.bench.planner.scheduler_config(self.caches).groups
        return self.caches[worker].groups

    def do_config_from_groups(self, memory_bytes: int = ROOMY) -> KVCacheConfig:
        planner = self.bench.planner
        cache = planner.config_from_groups(self._groups(None), self.config, memory_bytes)
        self.caches = (cache,)
        return cache

    def do_make(self, *memory_bytes: int) -> Made:
        """Plan a layout for each worker in its memory."""
        given = memory_bytes or (ROOMY,) * len(self.workers)
        plan = self.bench.planner.plan(tuple(self.workers), self.config, given)
        self.caches = plan.configs
        blocks = tuple(cache.num_blocks for cache in plan.configs)
        return Made(blocks, plan.max_model_len_tokens, plan.warnings)

    def do_tensors(self, worker: int = 0) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(
                list(map(int, tensor.shared_by)),
                tensor.size_bytes,
                tensor.offset_bytes,
                tensor.block_stride_bytes,
            )
            for tensor in self.caches[worker].tensors
        )

    # Of a layout.

    def do_scheduler_config(self, *workers: int) -> KVCacheConfig:
        """Return the scheduler's layout of the last ones, or of these workers' only."""
        caches = tuple(self.caches[worker] for worker in workers) if workers else self.caches
        return self.bench.planner.scheduler_config(caches)

    def do_shrink(self, worker: int, num_blocks: int) -> None:
        """Set a number of blocks that planning did not give the layout."""
        caches = list(self.caches)
        caches[worker] = replace(caches[worker], num_blocks=num_blocks)
        self.caches = tuple(caches)

    def _cache(self) -> KVCacheConfig:
        return self.caches[0] if self.caches else KVCacheConfig(9, self._groups(None))

    def do_max_concurrency(self) -> Any:
        return self.bench.planner.max_concurrency(self._cache(), self.config)

    def do_capacity(self) -> Any:
        return self.bench.planner.capacity(self._cache(), self.config)

    def do_block_sizes(self) -> Any:
        return self.bench.planner.block_sizes(self._cache(), self.config)


def _named(words: Sequence[Any], first: int) -> Iterator[tuple[str, LayerSpec]]:
    """Yield the layers of `10 full of 16`, numbered from `first`."""
    many = isinstance(words[0], int)
    spec, is_eagle = spec_of(words[many:], PLANNED)
    if is_eagle:
        raise NotationError("planning flags groups itself")
    for number in range(words[0] if many else 1):
        yield str(first + number), spec
