"""Words of an example about a planner: layers and memory, then groups and tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.setting import items_of, settled, spec_of
from kvcheck.rules.notation.values import Name, Reader
from kvcheck.rules.specs import PLANNED
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
    def planner(self) -> Any:
        return self.bench.planner

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

    def groups(self, worker: Any) -> tuple[KVCacheGroup, ...]:
        if worker is None:
            return self.grouped or self.bench.planner.groups(self.layers, self.config)
        if worker == Name("scheduler"):
            return self.bench.planner.scheduler_config(self.caches).groups
        return self.caches[worker].groups

    def do_config_from_groups(self, memory_bytes: int = ROOMY) -> KVCacheConfig:
        planner = self.bench.planner
        cache = planner.config_from_groups(self.groups(None), self.config, memory_bytes)
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

    def do_scheduler_config(self, *workers: int) -> KVCacheConfig:
        """Return the scheduler's layout of the last ones, or of these workers' only."""
        caches = tuple(self.caches[worker] for worker in workers) if workers else self.caches
        return self.bench.planner.scheduler_config(caches)

    def do_shrink(self, worker: int, num_blocks: int) -> None:
        """Set a number of blocks that planning did not give the layout."""
        caches = list(self.caches)
        caches[worker] = replace(caches[worker], num_blocks=num_blocks)
        self.caches = tuple(caches)

    def cache(self) -> KVCacheConfig:
        return self.caches[0] if self.caches else KVCacheConfig(9, self.groups(None))


def _specs(layers: Layers) -> tuple[LayerSpec, ...]:
    return tuple(spec for _, spec in layers)


OF_PLANS: Mapping[str, Callable[..., Any]] = {
    "properties": lambda p, number=0: p.planner.spec_properties(p.layers[number][1], p.config),
    "merge": lambda p: p.planner.merge(list(_specs(p.layers))),
    "is_uniform": lambda p: p.planner.is_uniform(p.layers),
    "uniform_type": lambda p: p.planner.uniform_type(p.layers),
    "unify_hybrid": lambda p: _specs(p.planner.unify_hybrid(p.layers)),
    "unify_page_size": lambda p: _specs(p.planner.unify_page_size(p.layers)),
    "max_memory_usage_bytes": lambda p: p.planner.max_memory_usage_bytes(p.layers, p.config),
    "estimate_max_model_len": lambda p, memory_bytes: p.planner.estimate_max_model_len(
        p.layers, p.config, memory_bytes
    ),
    "check_enough_memory": lambda p, memory_bytes: p.planner.check_enough_memory(
        p.layers, p.config, memory_bytes
    ),
    # Of a worker in the last layouts: the layers of each group by number, and more of the groups.
    "groups": lambda p, worker=None: [list(map(int, g.layer_names)) for g in p.groups(worker)],
    "specs": lambda p, worker=None: tuple(group.spec for group in p.groups(worker)),
    "flags": lambda p, worker=None: [group.is_eagle_group for group in p.groups(worker)],
    "max_concurrency": lambda p: p.planner.max_concurrency(p.cache(), p.config),
    "capacity": lambda p: p.planner.capacity(p.cache(), p.config),
    "block_sizes": lambda p: p.planner.block_sizes(p.cache(), p.config),
}
"""Words that are one call of the planner about the layers of the last `plan`, or their groups."""


def _named(words: Sequence[Any], first: int) -> Iterator[tuple[str, LayerSpec]]:
    """Yield the layers of `10 full of 16`, numbered from `first`."""
    many = isinstance(words[0], int)
    spec, is_eagle = spec_of(words[many:], PLANNED)
    if is_eagle:
        raise NotationError("planning flags groups itself")
    for number in range(words[0] if many else 1):
        yield str(first + number), spec
