"""Address of the entry of (handle, group, index): one flat array, group after group, row by row.

Group g begins at `bases[g]`; its rows are `width` entries long, and there are `max_requests` of
them. Example: widths 3 and 1, two rows: entries 0 … 5 are group 0, 6 and 7 group 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from kvfast._core import kinds
from kvfast._core.kinds import HOLDS_TOKENS
from kvfast.configuration import kind_of
from kvfast.device.base.arguments import INT32_MAX
from kvspec.config import ManagerConfig
from kvspec.domains import is_int
from kvspec.errors import InvalidArgumentError
from kvspec.specs import LayerSpec


@dataclass(frozen=True)
class GroupTable:
    """The table of one group.

    - `width`: entries of a row, the most blocks that a request has in the group.
    - `span_tokens`: tokens that a block covers.
    - `has_slots`: whether each token of the sequence has a slot in it (KV-BATCH-9).
    - `moves`: whether blocks move within lists (align-mode Mamba, KV-MAMBA-9).
    """

    width: int
    span_tokens: int
    has_slots: bool
    moves: bool


@dataclass(frozen=True)
class Geometry:
    """All tables of one configuration. Entries are indexed by 31 bits."""

    groups: tuple[GroupTable, ...]
    max_requests: int

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """First entry of each group."""
        sizes = (self.max_requests * group.width for group in self.groups)
        return tuple(accumulate(sizes, initial=0))[:-1]

    @property
    def num_entries(self) -> int:
        """Entries of all groups."""
        return self.max_requests * sum(group.width for group in self.groups)

    @cached_property
    def min_width(self) -> int:
        """Indices below it are in the tables of every group."""
        return min((group.width for group in self.groups), default=0)

    @cached_property
    def max_handles(self) -> int:
        """Most requests that the tables can grow to."""
        return INT32_MAX // max(1, sum(group.width for group in self.groups))

    @cached_property
    def slot_groups(self) -> tuple[int, ...]:
        """Numbers of the groups that have slots."""
        return tuple(g for g, group in enumerate(self.groups) if group.has_slots)


def group_tables(
    config: ManagerConfig, widths: Sequence[int | None] | None = None
) -> tuple[GroupTable, ...]:
    """Return the tables that a manager of this configuration needs (KV-DEV-9).

    `widths`: for groups that need another one than follows from `max_model_len_tokens`, such as
    cross attention over longer encoders. None in it: the default.
    """
    specs = config.managed_specs
    if widths is None:
        widths = (None,) * len(specs)
    if not isinstance(widths, Sequence) or len(widths) != len(specs):
        raise InvalidArgumentError("widths", widths, f"a width or None per group ({len(specs)})")
    return tuple(
        _group_table(config, spec, width, f"widths[{g}]")
        for g, (spec, width) in enumerate(zip(specs, widths, strict=True))
    )


def _group_table(
    config: ManagerConfig, spec: LayerSpec, width: int | None, field: str
) -> GroupTable:
    if width is not None and (not is_int(width) or not 1 <= width <= INT32_MAX):
        raise InvalidArgumentError(field, width, "an int in 1 … 2^31 - 1 or None")
    kind = kind_of(spec)
    span = spec.block_size * config.dcp_world_size * config.pcp_world_size
    most = -(-config.max_model_len_tokens // span)
    if spec.is_state:
        most += spec.num_speculative_blocks
    elif kind == kinds.ENCODER_ONLY:
        most = 0
    elif kind == kinds.CIRCULAR:
        most = 1
    return GroupTable(
        width=most if width is None else width,
        span_tokens=span,
        has_slots=kind in HOLDS_TOKENS and not spec.is_state,
        moves=kind == kinds.ALIGNED,
    )
