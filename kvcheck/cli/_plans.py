"""Models by name, and their memory in place of a number of blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from kvcheck.cli._support import MOST_BLOCKS, fail
from kvcheck.discovery import find_implementation
from kvcheck.installed import installed_implementations
from kvcheck.tools.plans.document import AUTO, GIB, read_plan_file, shipped_names, shipped_path
from kvcheck.tools.plans.report import make_report
from kvcheck.tools.replay.whatif_text import Memory
from kvspec.errors import CacheMemoryError, ConfigError, UnknownImplementationError
from kvspec.interface import Implementation
from kvspec.planning import Planner

_Command = TypeVar("_Command", bound=Callable[..., Any])

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


def with_model_options(command: _Command) -> _Command:
    model = click.option(
        "--model",
        metavar="MODEL",
        help="Show memory for this model: a name that kvspec plan --list shows, or a plan file.",
    )
    memory = click.option(
        "--memory-gib",
        "memories_gib",
        type=click.FloatRange(min=0, min_open=True),
        multiple=True,
        metavar="GIB",
        help="With --model: GiB for the cache on each worker, in place of --num-blocks.",
    )
    tensor = click.option(
        "--tensor",
        type=click.IntRange(min=1),
        metavar="N",
        help="With --model: tensor-parallel ranks.",
    )
    return model(memory(tensor(command)))


def cached_model(
    name: str | None, memories_gib: tuple[float, ...], tensor: int | None
) -> CachedModel | None:
    """Return the model that options name; fails for one whose layers forget tokens."""
    if name is None:
        for option, given in (("--memory-gib", memories_gib), ("--tensor", tensor)):
            if given:
                fail(f"{option} needs --model")
        return None
    changes: dict[str, Any] = {"engine.max_model_len": AUTO}
    if tensor is not None:
        changes["parallel.tensor"] = tensor
    file = read_plan_file(plan_path(name), changes)
    try:
        report = make_report(file, *planner_of(None))
    except (CacheMemoryError, ConfigError) as error:
        fail(str(file.explain(error)))
    group = report.groups[0] if len(report.groups) == 1 else None
    if group is None or not group.spec.reads_whole_prefix:
        kinds = ", ".join(sorted({each.kind for each in report.groups}))
        fail(f"--model {name}: has {kinds}; only full attention is simulated here")
    bytes_per_block = max(report.bytes_per_block(n) for n in range(len(report.workers)))
    size = group.block_size_tokens
    return CachedModel(report.name, bytes_per_block // size, size)


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
