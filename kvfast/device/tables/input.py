"""Check the host's input and convert it to host tensors; all checks precede the first change."""

from __future__ import annotations

from collections.abc import Sequence, Sized

import torch

from kvfast.device.base.arguments import check_group, check_type, host_ints
from kvfast.device.tables.geometry import Geometry
from kvspec.arrays import view_of
from kvspec.batched import Array, Ints, StepPlan
from kvspec.domains import is_int
from kvspec.errors import InvalidArgumentError

ROWS = "a C-contiguous int32 array of shape [n, 4] in host memory"


def entries_of(plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a plan's handles: released, new, and all that may get tokens, in order."""
    check_type("plan", plan, StepPlan)
    released = joined(("plan.finished", plan.finished), ("plan.preempted", plan.preempted))
    new = joined(("plan.new", plan.new))
    running = (("plan.decoding", plan.decoding), ("plan.prefilling", plan.prefilling))
    return released, new, joined(*running, ("plan.new", plan.new))


def joined(*given: tuple[str, Ints]) -> torch.Tensor:
    """Concatenate all numbers. Each has the field that errors name."""
    parts = [host_ints(field, values) for field, values in given if _is_some(values)]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)


def _is_some(values: Ints) -> bool:
    """Return whether there is anything in it; values without a length are checked elsewhere."""
    return not isinstance(values, Sized) or len(values) > 0


def host_rows(field: str, deltas: Array | torch.Tensor) -> torch.Tensor:
    """Return rows (handle, group, index, block) as int32 [n, 4], perhaps a view (KV-BATCH-10)."""
    if isinstance(deltas, torch.Tensor):
        if (
            deltas.device.type != "cpu"
            or deltas.layout != torch.strided
            or deltas.dtype != torch.int32
            or deltas.dim() != 2
            or deltas.shape[1] != 4
        ):
            found = f"{deltas.dtype} {list(deltas.shape)} on {deltas.device}"
            raise InvalidArgumentError(field, found, ROWS)
        return deltas
    view = view_of(deltas)
    if (
        view is None
        or view.ndim != 2
        or view.shape is None
        or view.shape[1] != 4
        or not view.c_contiguous
        or view.format != "i"
    ):
        raise InvalidArgumentError(field, deltas, ROWS)
    if view.shape[0] == 0:
        return no_rows()
    memory = bytearray(view) if view.readonly else view  # torch warns of what it must not write
    return torch.frombuffer(memory, dtype=torch.int32).view(-1, 4)


def no_rows() -> torch.Tensor:
    """Return the rows of a step that takes no block."""
    return torch.empty((0, 4), dtype=torch.int32)


def check_rows(field: str, rows: torch.Tensor, geometry: Geometry, num_blocks: int) -> int:
    """Check that every row names a block, and an entry that exists or can be added.

    Returns how many requests there must be for these rows.
    """
    if not rows.shape[0]:
        return 0
    lowest, highest = rows.aminmax(dim=0)
    low: list[int] = lowest.tolist()
    high: list[int] = highest.tolist()
    groups = geometry.groups
    most_handles = geometry.max_handles
    if min(low) >= 0 and high[0] < most_handles and high[1] < len(groups) and high[3] < num_blocks:
        if high[2] < geometry.min_width:
            return high[0] + 1
        widths = torch.tensor([group.width for group in groups], dtype=torch.int32)
        if bool((rows[:, 2] < widths[rows[:, 1]]).all()):
            return high[0] + 1
    for number, (handle, group, index, block) in enumerate(rows.tolist()):
        limits = [("handle", handle, most_handles), ("group", group, len(groups))]
        if 0 <= group < len(groups):
            limits.append(("index", index, groups[group].width))
        limits.append(("block", block, num_blocks))
        for name, value, end in limits:
            if not 0 <= value < end:
                raise InvalidArgumentError(
                    f"{field}[{number}].{name}", value, f"an int in 0 … {end - 1}"
                )
    return high[0] + 1


def check_handles(field: str, handles: torch.Tensor, geometry: Geometry) -> None:
    """Check that every handle has a row, or can have one, and occurs once."""
    if not len(handles):
        return
    most = geometry.max_handles
    low, high = (int(one) for one in handles.aminmax())
    if low < 0 or high >= most:
        listed = handles.tolist()
        place = next(i for i, handle in enumerate(listed) if not 0 <= handle < most)
        raise InvalidArgumentError(f"{field}[{place}]", listed[place], f"an int in 0 … {most - 1}")
    in_order = handles.sort().values
    if bool((in_order[1:] == in_order[:-1]).any()):
        listed = handles.tolist()
        place = next(i for i, handle in enumerate(listed) if handle in listed[:i])
        raise InvalidArgumentError(f"{field}[{place}]", listed[place], "named once")


def counts_of(field: str, values: Ints | int, length: int, most: int) -> torch.Tensor:
    """Return int64 [length], each in 0 … most; an int applies to all."""
    if isinstance(values, int):
        counts = torch.full((length,), _one_of(field, values, most), dtype=torch.int64)
    else:
        counts = host_ints(field, values)
    if len(counts) != length:
        raise InvalidArgumentError(field, len(counts), f"{length} counts, one per handle")
    if length:
        low, high = (int(one) for one in counts.aminmax())
        if low < 0 or high > most:
            listed = counts.tolist()
            place = next(i for i, count in enumerate(listed) if not 0 <= count <= most)
            _one_of(f"{field}[{place}]", listed[place], most)
    return counts


def _one_of(field: str, value: int, most: int) -> int:
    if not is_int(value) or not 0 <= value <= most:
        raise InvalidArgumentError(field, value, f"an int in 0 … {most}")
    return value


def check_blocks(group: int, blocks: Sequence[int], geometry: Geometry, num_blocks: int) -> None:
    """Check a block list that fits into a row of the group."""
    check_group("group", group, len(geometry.groups))
    if not isinstance(blocks, Sequence):
        raise InvalidArgumentError("blocks", blocks, "a sequence of ints")
    width = geometry.groups[group].width
    if len(blocks) > width:
        raise InvalidArgumentError("blocks", len(blocks), f"at most {width} blocks, the width")
    for index, block in enumerate(blocks):
        if not is_int(block) or not 0 <= block < num_blocks:
            allowed = f"an int in 0 … {num_blocks - 1}"
            raise InvalidArgumentError(f"blocks[{index}]", block, allowed)
