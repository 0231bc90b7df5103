"""Models by name, and their memory in place of a number of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from kvcheck.cli._options import together
from kvcheck.cli._support import MOST_BLOCKS, fail
from kvcheck.discovery import find_implementation
from kvcheck.installed import installed_implementations
from kvcheck.tools.plans.document import AUTO, GIB, read_plan_file, shipped_names, shipped_path
from kvcheck.tools.plans.report import PlanReport, make_report
from kvcheck.tools.replay.options import Layout
from kvcheck.tools.replay.whatif_text import Memory
from kvspec.errors import CacheMemoryError, ConfigError, UnknownImplementationError
from kvspec.interface import Implementation
from kvspec.planning import Planner

MOST_GIB = 1 << 20


@dataclass(frozen=True)
class CachedModel(Memory):
    """A model whose layers keep every token."""

    block_size: int

    def num_blocks(self, memory_gib: float, block_size: int) -> int:
        """Return the blocks that fit, the null block included; fails if there are none, or more
        than a pool may have."""
        if not memory_gib <= MOST_GIB:  # nor is NaN
            fail(f"--memory-gib {memory_gib:g}: must be at most {MOST_GIB:,}")
        blocks = int(memory_gib * GIB) // (block_size * self.bytes_per_token)
        if not 2 <= blocks <= MOST_BLOCKS:
            fail(
                f"--memory-gib {memory_gib:g}: holds {blocks:,} blocks of {block_size} tokens"
                f" of {self.name}; must be 2 to {MOST_BLOCKS:,}"
            )
        return blocks


with_model_options = together(
    click.option(
        "--model",
        metavar="MODEL",
        help="Show memory for this model: a name that kvspec plan --list shows, or a plan file.",
    ),
    click.option(
        "--memory-gib",
        "memories_gib",
        type=click.FloatRange(min=0, min_open=True),
        multiple=True,
        metavar="GIB",
        help="With --model: GiB for the cache on each worker, in place of --num-blocks.",
    ),
    click.option(
        "--tensor",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --model: tensor-parallel ranks.",
    ),
)


@dataclass(frozen=True)
class HybridModel:
    """A model some of whose layers forget tokens: its pool is that of a plan."""

    name: str
    tensor: int | None

    def layout(self, memory_gib: float, max_tokens_per_step: int) -> Layout:
        """Return the groups and blocks that fit in this memory; fails if there is no such plan."""
        if not memory_gib <= MOST_GIB:
            fail(f"--memory-gib {memory_gib:g}: must be at most {MOST_GIB:,}")
        _, planner = planner_of(None)
        changes = {
            "memory_gib": memory_gib,
            "engine.max_num_batched_tokens": max_tokens_per_step,
        }
        report, most_tokens = _planned(self.name, self.tensor, changes)
        kinds = ", ".join(sorted({each.kind for each in report.groups}))
        if not report.config.enable_caching:
            fail(f"--model {self.name}: its plan, of {kinds}, has no caching to simulate")
        cache = planner.scheduler_config(report.plan.configs)
        return Layout(
            model=report.name,
            memory_gib=memory_gib,
            kv_cache=cache,
            block_size=report.block_sizes.scheduler_block_size_tokens,
            hash_block_size=report.block_sizes.hash_block_size_tokens,
            most_tokens=most_tokens,
            max_model_len_tokens=report.config.max_model_len_tokens,
        )


def cached_model(
    name: str | None, memories_gib: tuple[float, ...], tensor: int | None
) -> CachedModel | HybridModel | None:
    """Return the model that options name."""
    if name is None:
        for option, given in (("--memory-gib", memories_gib), ("--tensor", tensor)):
            if given:
                fail(f"{option} needs --model")
        return None
    report, _ = _planned(name, tensor, {})
    group = report.groups[0] if len(report.groups) == 1 else None
    if group is None or not group.spec.reads_whole_prefix:
        return HybridModel(name, tensor)
    bytes_per_block = max(report.bytes_per_block(n) for n in range(len(report.workers)))
    size = group.block_size_tokens
    return CachedModel(report.name, bytes_per_block // size, size)


def _planned(name: str, tensor: int | None, changes: Mapping[str, Any]) -> tuple[PlanReport, int]:
    """Plan for a model, with the longest requests that fit; fails if there is no plan. Also
    returns the length that the model reads."""
    changes = {"engine.max_model_len": AUTO, **changes}
    if tensor is not None:
        changes["parallel.tensor"] = tensor
    file = read_plan_file(plan_path(name), changes)
    try:
        return make_report(file, *planner_of(None)), file.config.max_model_len_tokens
    except (CacheMemoryError, ConfigError) as error:
        fail(str(file.explain(error)))


def plan_path(name: str) -> Path:
    """Return the plan of a model, however its name is written, or a file."""
    path, known = Path(name), shipped_names()
    if path.exists() or path.suffix == ".json":
        return path
    model = path.name.lower()
    if model in known:
        return shipped_path(model)
    like = next((f"; did you mean {each}?" for each in known if model.startswith(each)), "")
    others = f", and none of the models {', '.join(known)}"
    fail(f"{name}: no file{like or others}")


def planner_of(name: str | None) -> tuple[Implementation, Planner]:
    """Return the named implementation, or the first installed one that can plan; its planner."""
    if name is not None:
        implementation = find_implementation(name)
        planner = implementation.planner
        if planner is None:
            fail(f"{implementation.capabilities.name} has no planner")
        return implementation, planner
    for installed in installed_implementations():
        try:
            implementation = find_implementation(installed)
        except UnknownImplementationError:
            continue  # this one is broken; try the next
        planner = implementation.planner
        if planner is not None:
            return implementation, planner
    fail("no installed implementation can plan; name one with --impl")
