"""Shadow memory: the content of every block, as the caller wrote it.

A token's content is the whole prefix that ends with it. Of that prefix a block keeps the digest of
all before the block, and its own tokens, so that the memory grows with the pool and not with the
length of requests. Example, block size 2: tokens 7 8 9 in blocks 4 and 5 are held as
4: (digest of nothing, [7, 8]) and 5: (digest of 7 8, [9, -1]). A block of a Mamba group holds one
state: the digest of all tokens before it, and their number.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from kvspec.blocks import NULL_BLOCK
from kvspec.errors import InvariantViolation

DIGEST_SIZE_BYTES = 16
NOTHING = -1
"""Marks a slot that was never written."""
DRAFT = -2
"""Marks a token that was computed before it was known."""
PASSED = "no state, since no step ended at its boundary"
"""Content of an align-mode group's block that a step passed without ending at its boundary."""


class Content:
    """The tokens of one request. Equal digests mean an equal beginning, `root` included.

    `root`: what besides tokens makes content differ (salt, adapter, …). `tokens` only grow.
    `num_prompt`: how many of them are the prompt, if that is known.
    """

    def __init__(self, root: bytes, tokens: Sequence[int] = ()) -> None:
        self.root = root
        self.tokens = array("q", tokens)
        self.num_prompt: int | None = None
        self._starts: dict[int, list[bytes]] = {}

    @property
    def size_bytes(self) -> int:
        digests = sum(len(starts) for starts in self._starts.values())
        return 300 + 8 * len(self.tokens) + 60 * digests

    def before_block(self, index: int, block_size_tokens: int) -> bytes:
        """Return the digest of all tokens before block `index`, which must be known."""
        starts = self._starts.setdefault(block_size_tokens, [])
        if not starts:
            starts.append(_digest(self.root))
        while len(starts) <= index:
            end = len(starts) * block_size_tokens
            block = self.tokens[end - block_size_tokens : end]
            starts.append(_digest(starts[-1] + block.tobytes()))
        return starts[index]

    def after(self, num_tokens: int, block_size_tokens: int) -> bytes:
        """Return the digest of the first tokens; digests of different block sizes differ."""
        full = num_tokens // block_size_tokens
        before = self.before_block(full, block_size_tokens)
        rest = self.tokens[full * block_size_tokens : num_tokens]
        return _digest(before + rest.tobytes()) if rest else before


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_SIZE_BYTES).digest()


@dataclass(slots=True)
class _Held:
    """The content of a block: its group, the prefix before it, its tokens.

    A state: the prefix before it, its length, the step that computed it; b"" for a draft's.
    """

    group: int
    before: bytes
    tokens: array[int]
    step: int = 0


def _image(held: _Held | None) -> _Held | None:
    return None if held is None else _Held(held.group, held.before, held.tokens[:], held.step)


class ShadowMemory:
    """The content of each block. A block serves one group at a time, so one table serves all."""

    def __init__(self, *, copies: bool = False) -> None:
        self._held: dict[int, _Held] = {}
        self._unknown: set[int] = set()
        self._written: set[int] = set()
        self.step = 0
        self._copies = copies
        self._at_start: dict[int, _Held | None] = {}
        self.copied_early: set[int] = set()

    def new_step_starts(self) -> None:
        """Begin a step, whose copies read what was computed so far."""
        self.step += 1
        self._at_start.clear()

    def copy(self, source: int, destination: int) -> None:
        """Copy a block before the forward pass of the step (KV-INSIDE-6).

        All copies of a step read the content at its beginning, whatever the step writes there;
        where that differs, the destination is among `copied_early`.
        """
        read = _image(self._at_start.get(source, self._held.get(source)))
        self._changes(destination)
        self.copied_early.discard(destination)
        if source in self._unknown:
            self._unknown.add(destination)
        else:
            self._unknown.discard(destination)
        if read is None:
            self._held.pop(destination, None)
        else:
            self._held[destination] = read
        if read != self._held.get(source):
            self.copied_early.add(destination)

    def violation(self, check: str, rule: str, block: int, detail: str) -> InvariantViolation:
        """Return the violation that a block shows; where a copy was early, that is the reason."""
        if block in self.copied_early:
            check, rule = "copies_read_what_was_there", "KV-INSIDE-6"
        return InvariantViolation(check, rule, detail)

    def _changes(self, block: int) -> None:
        """Keep for copies what the block held when the step began, before it changes."""
        self._written.add(block)
        if self._copies and block not in self._at_start:
            self._at_start[block] = _image(self._held.get(block))

    def take_written(self) -> set[int]:
        """Return the blocks whose content may have changed since the last call."""
        written, self._written = self._written, set()
        return written

    def forget(self, blocks: Iterable[int]) -> None:
        """Mark blocks whose writes were not seen: reading them is no offence.

        They are known again when they are written from their first slot on.
        """
        self._unknown.update(blocks)

    def lose(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._changes(block)
            self._held.pop(block, None)

    def lose_from(self, block: int, slot: int) -> None:
        """Empty a block from this slot on; that content never arrived."""
        held = self._held.get(block)
        if held is None or slot == 0 or slot >= len(held.tokens):
            self.lose([block])
            return
        self._changes(block)
        for position in range(slot, len(held.tokens)):
            held.tokens[position] = NOTHING

    @property
    def size_bytes(self) -> int:
        return sum(300 + 8 * len(held.tokens) for held in self._held.values())

    def write(
        self, block: int, group: int, size_tokens: int, index: int, span: range, content: Content
    ) -> None:
        """Write tokens `span` of `content` into `block`, entry `index` of its list.

        Tokens beyond those that `content` has are drafts.
        """
        if block == NULL_BLOCK:
            raise InvariantViolation(
                "no_write_to_null",
                "KV-POOL-1",
                f"token {span.start} must be written to the null block",
            )
        start = index * size_tokens
        if span.start == start:
            self._unknown.discard(block)
            self.copied_early.discard(block)
        self._changes(block)
        known = min(span.stop, len(content.tokens))
        if start > len(content.tokens):
            before = b""  # the prefix is not known yet; see `accept`
        else:
            before = content.before_block(index, size_tokens)
        held = self._held.get(block)
        if held is None or (held.group, held.before, len(held.tokens)) != (
            group,
            before,
            size_tokens,
        ):
            held = _Held(group, before, array("q", [NOTHING]) * size_tokens)
            self._held[block] = held
        if known > span.start:
            held.tokens[span.start - start : known - start] = content.tokens[span.start : known]
        for position in range(max(known, span.start), span.stop):
            held.tokens[position - start] = DRAFT

    def accept(
        self, block: int, group: int, size_tokens: int, index: int, span: range, content: Content
    ) -> None:
        """Replace drafts among tokens `span` by the tokens of `content`."""
        held = self._held.get(block)
        if block == NULL_BLOCK or held is None or held.group != group:
            return
        start = index * size_tokens
        if held.before == b"":
            held.before = content.before_block(index, size_tokens)
        if held.before != content.before_block(index, size_tokens):
            return
        self._changes(block)
        for position in span:
            if held.tokens[position - start] == DRAFT:
                held.tokens[position - start] = content.tokens[position]

    def first_offence(
        self, block: int, group: int, size_tokens: int, index: int, length: int, content: Content
    ) -> tuple[int, str] | None:
        """Return the first slot among `length` without the content, and what it holds, in words.

        None if all hold it.
        """
        if block in self._unknown:
            return None
        held = self._held.get(block)
        if held is None:
            return 0, "nothing"
        if held.group != group:
            return 0, f"content of group {held.group}"
        start = index * size_tokens
        if held.before != content.before_block(index, size_tokens):
            return 0, f"token {held.tokens[0]} of another prefix"
        wanted = content.tokens[start : start + length]
        if held.tokens[:length] == wanted:
            return None
        for slot, (found, token) in enumerate(zip(held.tokens, wanted, strict=False)):
            if found != token:
                return slot, {NOTHING: "nothing", DRAFT: "a draft"}.get(found, f"token {found}")
        return length - 1, "nothing"

    # States: one for a whole block.

    def write_state(self, block: int, group: int, num_tokens: int, after: bytes) -> None:
        """Write the state after this many tokens; b"": some are drafts."""
        self._unknown.discard(block)
        self.copied_early.discard(block)
        held = self._held.get(block)
        if held is not None and (held.group, held.before) == (group, after) and after:
            return  # as it was, and present before this step
        self._changes(block)
        self._held[block] = _Held(group, after, array("q", [num_tokens]), self.step)

    def settle_state(self, block: int, group: int, num_tokens: int, after: bytes) -> None:
        """Note that drafts among the first tokens were accepted."""
        held = self._held.get(block)
        if held is not None and (held.group, held.before, held.tokens[0]) == (
            group,
            b"",
            num_tokens,
        ):
            self._changes(block)
            held.before = after

    def holds_state(self, block: int, group: int, after: bytes) -> bool:
        """Check that the block holds the group's state after these tokens."""
        held = self._held.get(block)
        return held is not None and (held.group, held.before) == (group, after)

    def is_of_this_step(self, block: int) -> bool:
        """Check that the step being planned computes the state in the block."""
        held = self._held.get(block)
        return block not in self._unknown and held is not None and held.step == self.step

    def state_offence(self, block: int, group: int, after: bytes) -> str | None:
        """Return what the block holds instead of this state, in words, or None if it holds it."""
        held = self._held.get(block)
        if block in self._unknown or self.holds_state(block, group, after):
            return None
        if held is None:
            return "nothing"
        if held.group != group:
            return f"content of group {held.group}"
        if held.before == b"":
            is_passed = held.tokens[0] == NOTHING
            return PASSED if is_passed else f"the state after {held.tokens[0]} tokens with drafts"
        return f"the state after {held.tokens[0]} tokens of some prefix"
