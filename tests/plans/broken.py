"""Planners with one mistake each, and the property that must find it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import MappingProxyType, ModuleType
from typing import Any
from unittest import mock

from kvref.planning import grouping, layout, memory, merging, plan, planner
from kvref.planning.pages import max_blocks
from kvref.planning.planner import ReferencePlanner
from kvspec.config import KVCacheConfig, KVCacheGroup, KVCacheTensor
from kvspec.planning import PlanningConfig
from kvspec.specs import LayerSpec, SlidingWindowSpec
from tests.plans.cases import KINDS

Patch = tuple[ModuleType, str, Any]


class PatchedPlanner:
    """The reference planner with some of its functions replaced while it is asked."""

    def __init__(self, *patches: Patch) -> None:
        self.patches = patches

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(ReferencePlanner(), name)

        def call(*arguments: Any) -> Any:
            with ExitStack() as stack:
                for module, function, replacement in self.patches:
                    stack.enter_context(mock.patch.object(module, function, replacement))
                return method(*arguments)

        return call


@dataclass(frozen=True)
class Mistake:
    """What is replaced, and the property (its name in CHECKS) that must fail.

    `kinds`, `states`: which models to look at, where others would only cost time.
    """

    patches: tuple[Patch, ...]
    found_by: str
    kinds: tuple[str, ...] = KINDS
    states: bool = False


def _groups_without_null(groups: Sequence[KVCacheGroup], config: PlanningConfig) -> int:
    blocks = sum(memory.held_blocks(group.spec, config) for group in groups)
    blocks += sum(memory.set_aside_blocks(group.spec) for group in groups)
    return blocks * layout.bytes_per_block(groups)


def _window_without_start(spec: LayerSpec, config: PlanningConfig) -> int:
    return max_blocks(spec, config) - isinstance(spec, SlidingWindowSpec)


def _each_its_own(caches: Sequence[KVCacheConfig]) -> tuple[KVCacheConfig, ...]:
    return tuple(caches)


def _only_counted(cache: KVCacheConfig, num_blocks: int) -> KVCacheConfig:
    return replace(cache, num_blocks=num_blocks)


def _all_in_one(groups: Sequence[KVCacheGroup]) -> tuple[tuple[int, tuple[str, ...]], ...]:
    pages = [layout.layer_page(g, name) for g in groups for name in g.layer_names]
    names = tuple(name for group in groups for name in group.layer_names)
    return ((max(pages), names),) if pages else ()


def _without_last(names: Sequence[str], size: int) -> tuple[tuple[str, ...], ...]:
    kept = tuple(names)[: max(1, len(names) - 1)]
    return tuple(kept[start : start + size] for start in range(0, len(kept), size))


_right_longest = memory.longest_that_fits


def _one_longer(*arguments: Any) -> int:
    longest: int = _right_longest(*arguments)
    limit: int = arguments[1].max_model_len_tokens
    return longest + (0 < longest < limit)


def _one_shorter(*arguments: Any) -> int:
    longest: int = _right_longest(*arguments)
    return max(0, longest - 1)


def _rounded_up(
    groups: Sequence[KVCacheGroup], config: PlanningConfig, available_memory_bytes: int
) -> int:
    if config.num_blocks_override is not None:
        return config.num_blocks_override
    return -(-available_memory_bytes // layout.bytes_per_block(groups))


def _override_ignored(
    groups: Sequence[KVCacheGroup], config: PlanningConfig, available_memory_bytes: int
) -> int:
    return available_memory_bytes // layout.bytes_per_block(groups)


class _Forgetful:
    """Answers the second question differently."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, caches: Sequence[KVCacheConfig]) -> tuple[KVCacheConfig, ...]:
        self.asked += 1
        fewest = min(cache.num_blocks for cache in caches)
        return tuple(layout.shrunk_to(cache, fewest - self.asked % 2) for cache in caches)


def _offset_of_last(
    slots: Sequence[tuple[int, tuple[str, ...]]], num_blocks: int
) -> tuple[Any, ...]:
    stride = sum(page for page, _ in slots)
    return tuple(
        KVCacheTensor(stride * num_blocks, names, index * slots[-1][0] // 2, stride)
        for index, (_, names) in enumerate(slots)
    )


MISTAKES: Mapping[str, Mistake] = MappingProxyType(
    {
        "forgets the null block": Mistake(
            (
                (memory, "groups_bytes", _groups_without_null),
                (plan, "groups_bytes", _groups_without_null),
            ),
            "an_accepted_plan_serves_a_request_of_full_length",
        ),
        "forgets the blocks set aside for sinks": Mistake(
            ((memory, "set_aside_blocks", lambda spec: 0),),
            "an_accepted_plan_serves_a_request_of_full_length",
            kinds=("sink",),
        ),
        "forgets that a window may start inside a block": Mistake(
            ((memory, "max_blocks", _window_without_start),),
            "an_accepted_plan_serves_a_request_of_full_length",
            kinds=("sliding",),
        ),
        "counts one block for every running state": Mistake(
            ((memory, "held_blocks", max_blocks),),
            "an_accepted_plan_serves_a_request_of_full_length",
            kinds=("full",),
            states=True,
        ),
        "leaves every worker its own number of blocks": Mistake(
            ((plan, "_in_step", _each_its_own),),
            "all_workers_have_equally_many_blocks",
        ),
        "leaves tensors as they were when blocks are cut": Mistake(
            ((plan, "shrunk_to", _only_counted),),
            "tensors_have_their_pages",
        ),
        "merges a larger latent into a smaller one": Mistake(
            ((merging, "_must_fit", lambda specs: None),),
            "tensors_have_their_pages",
        ),
        "lets layers of one group share a tensor": Mistake(
            ((layout, "tensor_slots", _all_in_one),),
            "each_layer_has_one_place",
        ),
        "loses a layer when groups are dealt": Mistake(
            ((grouping, "in_turn", _without_last),),
            "each_layer_has_one_place",
        ),
        "promises one token too many": Mistake(
            (
                (planner, "longest_that_fits", _one_longer),
                (memory, "longest_that_fits", _one_longer),
            ),
            "the_estimate_is_the_largest_that_fits",
        ),
        "promises one token too few": Mistake(
            ((plan, "longest_that_fits", _one_shorter),),
            "automatic_length_is_the_longest_plan",
        ),
        "rounds the number of blocks up": Mistake(
            ((layout, "num_blocks_for", _rounded_up),),
            "the_memory_is_used_and_not_exceeded",
        ),
        "ignores the number of blocks asked for": Mistake(
            (
                (layout, "num_blocks_for", _override_ignored),
                (plan, "usable_bytes", lambda groups, config, given: given),
            ),
            "the_memory_is_used_and_not_exceeded",
        ),
        "lets packed pages overlap": Mistake(
            ((layout, "_packed", _offset_of_last),),
            "packed_tensors_lie_side_by_side",
        ),
        "answers differently the second time": Mistake(
            ((plan, "_in_step", _Forgetful()),),
            "inputs_stay_and_answers_repeat",
        ),
    }
)
