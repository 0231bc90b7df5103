"""Mamba states: a step reads the last one, which must still be present, and writes its own.

The engine imagined here does what spec/rules/mamba.md says of one and nothing more:

- A step reads one state, where the step before left it or where a hit or a load ends.
- It leaves the state after its last token in the running state's entry, and those after drafts
  in the entries behind, as far as there are blocks for them (KV-MAMBA-4, KV-MAMBA-9).
- At a block boundary it leaves one if it ends there. In modes none and all it leaves one at every
  boundary that it passes. In mode align an engine ends its steps on boundaries; where a caller does
  not, the entry that the step started from is taken as filled on the way.
- When drafts turn out right, the states at boundaries among them are copied to their entries.

Where hits may end inside a block, callers keep KV-INSIDE-5, and nothing is taken as filled on the
way: states are left at a chunk's end, and at the one place inside it that the rule names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvcheck.play.shadow.content import NOTHING, PASSED, Content, ShadowMemory
from kvspec.blocks import NULL_BLOCK
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.inside import Chunk
from kvspec.specs import LayerSpec


@dataclass(slots=True)
class _Left:
    """The states that a step left in `blocks`, after `main`, `main` + 1, … tokens.

    `entry`: place of the first in the list. `settled`: tokens that are known to be
    those of the request. `is_load`: nothing was computed behind the load.
    """

    main: int
    entry: int
    blocks: tuple[int, ...]
    settled: int
    is_load: bool = False


class States:
    """The states of one group. Every method raises InvariantViolation at an offence.

    `size`: tokens of a block. `blocks` is the group's list for the request. `inside`: the
    configuration, where hits may end inside a block. `drafts_hold`: states of drafts stay, since a
    count of tokens may include drafts that are rejected later (KV-POL-21).
    """

    def __init__(
        self,
        shadow: ShadowMemory,
        group: int,
        spec: LayerSpec,
        size: int,
        inside: ManagerConfig | None = None,
        *,
        drafts_hold: bool = True,
    ) -> None:
        self.shadow = shadow
        self.spec = spec
        self.inside = inside
        self.group = group
        self.size = size
        self.is_aligned = spec.is_aligned
        self.num_drafts = spec.num_speculative_blocks
        self.num_fallbacks = self.num_drafts if drafts_hold else 0
        self._left: dict[str, _Left] = {}

    def forget(self, name: str) -> None:
        self._left.pop(name, None)

    def read_hit(
        self, what: str, content: Content, blocks: Sequence[int], length: int, rule: str
    ) -> int:
        """Check that a hit ends with the state after `length` tokens; return its block's index."""
        index = (length - 1) // self.size
        if not 0 <= index < len(blocks) or blocks[index] == NULL_BLOCK:
            raise self._missing(what, length, "KV-MAMBA-3")
        self._read(what, content, blocks[index], length, rule)
        return blocks[index]

    def read(
        self, name: str, what: str, content: Content, blocks: Sequence[int], computed: int
    ) -> None:
        """Check the state that the next step, behind `computed` tokens, reads or falls back to."""
        left = self._left.get(name)
        if left is None or computed == 0:
            return
        self._settle(left, content, blocks, computed)
        accepted = computed - left.main
        if accepted < 0:  # before a step, or after a load of all tokens but for the last one's sake
            self._read_before_end(left, what, blocks, computed)
        elif accepted < len(left.blocks):
            fallbacks = range(max(0, accepted - self.num_fallbacks), accepted)
            for number in (accepted, *fallbacks):
                self._expect_there(left, what, content, blocks, (number, accepted))
            if left.blocks[accepted] in blocks and computed <= len(content.tokens):
                self._read(what, content, left.blocks[accepted], computed, "KV-POOL-17")

    def step(
        self,
        name: str,
        content: Content,
        blocks: Sequence[int],
        *,
        start: int,
        num_external: int,
        end: int,
        num_hit_blocks: int | None,
    ) -> None:
        """Read the state after `start` tokens, load external ones, compute up to `end`.

        `num_hit_blocks`: how long the group's list of hits was, if the request begins with any.
        """
        what, old = f"step of {name}", self._left.get(name)
        from_entry = -1 if old is None else old.entry
        total = start + num_external
        if num_external:
            first = start if num_hit_blocks is None else num_hit_blocks * self.size
            self._load(name, content, blocks, first, total)
        elif num_hit_blocks is not None:
            block = self.read_hit(what, content, blocks, start, "KV-HASH-1")
            if self.shadow.is_of_this_step(block):
                raise InvariantViolation(
                    "a_state_is_read_after_its_step",
                    "KV-MAMBA-2",
                    f"{what} in group {self.group} starts from the state after {start} tokens"
                    f" in block {block}, which is computed in this very step",
                )
        else:
            self.read(name, what, content, blocks, start)
        if end > total:
            self._compute(name, content, blocks, total, end, from_entry)

    def _load(
        self, name: str, content: Content, blocks: Sequence[int], first: int, total: int
    ) -> None:
        """Write loaded states, at boundaries and the last one, where there are blocks."""
        self._write_boundaries(content, blocks, first, total)
        entry = (total - 1) // self.size
        block = blocks[entry] if entry < len(blocks) else NULL_BLOCK
        if name not in self._left:
            if entry >= len(blocks):
                raise self._no_slot(name, total, "KV-GRP-6")
            if block == NULL_BLOCK:
                raise self._missing(f"load of {name}", total, "KV-MAMBA-1")
            again = len(content.tokens) - 1  # of a load of all tokens
            if 0 < again < total and blocks[(again - 1) // self.size] == NULL_BLOCK:
                raise self._missing(f"load of {name}", again, "KV-MGR-4")
        if block != NULL_BLOCK:
            self.shadow.write_state(block, self.group, total, content.after(total, self.size))
        there = (block,) if block != NULL_BLOCK else ()
        self._left[name] = _Left(total, entry, there, total, is_load=True)

    def _compute(
        self,
        name: str,
        content: Content,
        blocks: Sequence[int],
        start: int,
        end: int,
        from_entry: int,
    ) -> None:
        """Compute tokens `start` … `end - 1`: at least one is no draft, but maybe unknown yet."""
        known = len(content.tokens)
        main = max(min(end, known), start + 1)
        num_drafted = min(end - main, self.num_drafts)
        entry, rule = (main - 1) // self.size, "KV-GRP-7"
        if self.is_aligned:  # the list ends with the running state and those of drafts
            entry, rule = len(blocks) - 1 - self.num_drafts, "KV-MAMBA-6"
            if self.inside is not None:
                entry = min(entry, (end - 1) // self.size)
            if entry < (end - 1) // self.size:
                raise self._no_slot(name, main, rule)
        for number in range(num_drafted + 1):
            if entry + number >= len(blocks):
                raise self._no_slot(name, main + number, "KV-MAMBA-4" if number else rule)
            if blocks[entry + number] == NULL_BLOCK:
                raise InvariantViolation(
                    "no_write_to_null",
                    "KV-MAMBA-9" if self.is_aligned else "KV-POOL-1",
                    f"{name}: the state after {main + number} tokens must be written to the null"
                    f" block, entry {entry + number} of group {self.group}",
                )
        if self.inside is not None:
            self._write_inside(content, blocks, Chunk(start, end, self.size), main, num_drafted)
        elif self.is_aligned:
            filled = {(start - 1) // self.size, from_entry, main // self.size - 1}
            self._write_boundaries(content, blocks, start, min(main, known), filled)
            for index in set(range(start // self.size, main // self.size)) - filled:
                if blocks[index] != NULL_BLOCK:
                    self.shadow.write_state(blocks[index], self.group, NOTHING, b"")
        else:
            self._write_boundaries(content, blocks, start, min(main, known))
        there = tuple(blocks[entry : entry + num_drafted + 1])
        for number, block in enumerate(there, main):
            after = content.after(number, self.size) if number <= known else b""
            self.shadow.write_state(block, self.group, number, after)
        self._left[name] = _Left(main, entry, there, min(main, known))

    def _write_inside(
        self, content: Content, blocks: Sequence[int], chunk: Chunk, main: int, num_drafted: int
    ) -> None:
        """Write the state inside the chunk, and the one at a boundary before drafts."""
        entry, config = chunk.checkpoint_entry, self.inside
        position = chunk.checkpoint(self.spec, config) if config is not None else 0
        if position and entry < len(blocks) and blocks[entry] != NULL_BLOCK:
            after = content.after(position, self.size)
            self.shadow.write_state(blocks[entry], self.group, position, after)
        if num_drafted and main <= len(content.tokens):
            boundary = main // self.size - 1
            self._write_boundaries(content, blocks, chunk.start, main, {boundary})

    def _write_boundaries(
        self,
        content: Content,
        blocks: Sequence[int],
        start: int,
        end: int,
        among: set[int] | None = None,
    ) -> None:
        """Write the states at boundaries in `start` + 1 … `end` whose entry has a block."""
        for index in range(start // self.size, end // self.size):
            if among is not None and index not in among:
                continue
            if index < len(blocks) and blocks[index] != NULL_BLOCK:
                position = (index + 1) * self.size
                after = content.after(position, self.size)
                self.shadow.write_state(blocks[index], self.group, position, after)

    def _settle(self, left: _Left, content: Content, blocks: Sequence[int], computed: int) -> None:
        """Note that tokens up to `computed` are `content`'s: drafts among them were right."""
        end = min(computed, len(content.tokens))
        for position in range(left.settled + 1, end + 1):
            number = position - left.main
            if 0 <= number < len(left.blocks):
                after = content.after(position, self.size)
                self.shadow.settle_state(left.blocks[number], self.group, position, after)
        self._write_boundaries(content, blocks, left.settled, end)
        left.settled = max(left.settled, end)

    def _read_before_end(
        self, left: _Left, what: str, blocks: Sequence[int], computed: int
    ) -> None:
        """Check for the last token, computed once more after a load of all (KV-MGR-4)."""
        entry = (computed - 1) // self.size
        if left.is_load and (entry >= len(blocks) or blocks[entry] == NULL_BLOCK):
            raise self._missing(what, computed, "KV-MAMBA-1")

    def _expect_there(
        self,
        left: _Left,
        what: str,
        content: Content,
        blocks: Sequence[int],
        place: tuple[int, int],
    ) -> None:
        """Check that a step's state `number` is where it was, moved on, or also at its boundary."""
        number, accepted = place
        block, at = left.blocks[number], left.entry + number
        if block in blocks and blocks[at] in (block, NULL_BLOCK):
            return
        position = left.main + number
        entry = (position - 1) // self.size
        if entry < len(blocks) and position <= len(content.tokens):
            after = content.after(position, self.size)
            if self.shadow.holds_state(blocks[entry], self.group, after):
                return
        rule = "KV-MAMBA-5" if accepted else "KV-MAMBA-1"
        if self.is_aligned and number:
            rule = "KV-MAMBA-9"
        raise self._missing(what, position, rule)

    def _read(self, what: str, content: Content, block: int, position: int, rule: str) -> None:
        after = content.after(position, self.size)
        found = self.shadow.state_offence(block, self.group, after)
        if found is not None:
            raise self.shadow.violation(
                "content_is_where_it_is_claimed",
                "KV-MAMBA-9" if found == PASSED else rule,
                block,
                f"{what} in group {self.group}: the state after {position} tokens should be in"
                f" block {block}, which holds {found}",
            )

    def _missing(self, what: str, position: int, rule: str) -> InvariantViolation:
        return InvariantViolation(
            "what_is_read_is_there",
            rule,
            f"{what} in group {self.group}: the state after {position} tokens is still read but"
            " has no block",
        )

    def _no_slot(self, name: str, position: int, rule: str) -> InvariantViolation:
        return InvariantViolation(
            "granted_tokens_have_slots",
            rule,
            f"{name} has no block for the state after {position} tokens in group {self.group}",
        )
