"""Shadow memory: what every block holds, as the caller wrote it.

A token's content is the whole prefix that ends with it. Of that prefix a block keeps the digest of
all before the block, and its own tokens, so that the memory grows with the pool and not with the
length of requests. Example, block size 2: tokens 7 8 9 in blocks 4 and 5 are held as
4: (digest of nothing, [7, 8]) and 5: (digest of 7 8, [9, -1]). A block of a Mamba group holds one
state: the digest of all tokens that it comes after, and their number.
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
"""Stands for a slot that nobody wrote."""
DRAFT = -2
"""Stands for a token that was computed before anybody knew which it is."""
PASSED = "no state, since no step ended at its boundary"
"""What a block of an align-mode group holds that a step went past."""


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
        """An estimate of the memory in use."""
        digests = sum(len(starts) for starts in self._starts.values())
        return 300 + 8 * len(self.tokens) + 60 * digests

    def before_block(self, index: int, block_size_tokens: int) -> bytes:
        """The digest of all tokens before block `index`, which are all there."""
        starts = self._starts.setdefault(block_size_tokens, [])
        if not starts:
            starts.append(_digest(self.root))
        while len(starts) <= index:
            end = len(starts) * block_size_tokens
            block = self.tokens[end - block_size_tokens : end]
            starts.append(_digest(starts[-1] + block.tobytes()))
        return starts[index]

    def after(self, num_tokens: int, block_size_tokens: int) -> bytes:
        """The digest of the first tokens, which are all there; of one block size alone alike."""
        full = num_tokens // block_size_tokens
        before = self.before_block(full, block_size_tokens)
        rest = self.tokens[full * block_size_tokens : num_tokens]
        return _digest(before + rest.tobytes()) if rest else before


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_SIZE_BYTES).digest()


@dataclass(slots=True)
class _Held:
    """What a block holds: for which group, after which prefix, which tokens.

    A state: after which prefix, of how many tokens, computed in which step; b"" for a draft's.
    """

    group: int
    before: bytes
    tokens: array[int]
    step: int = 0


def _image(held: _Held | None) -> _Held | None:
    return None if held is None else _Held(held.group, held.before, held.tokens[:], held.step)


class ShadowMemory:
    """What each block holds. A block serves one group at a time, so one table serves all."""

    def __init__(self, *, copies: bool = False) -> None:
        self._held: dict[int, _Held] = {}
        self._unknown: set[int] = set()
        self._written: set[int] = set()
        self.step = 0
        self._copies = copies
        self._at_start: dict[int, _Held | None] = {}
        self.copied_early: set[int] = set()

    def new_step_starts(self) -> None:
        """What was computed until now is what copies of the next step read."""
        self.step += 1
        self._at_start.clear()

    def copy(self, source: int, destination: int) -> None:
        """A block is copied before the forward pass of the step (KV-INSIDE-6).

        All copies of a step read what was there when it began, whatever it puts there; where that
        differs, the destination is among `copied_early`.
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

    def _changes(self, block: int) -> None:
        """The block is about to be changed; what it held when the step began is kept for copies."""
        self._written.add(block)
        if self._copies and block not in self._at_start:
            self._at_start[block] = _image(self._held.get(block))

    def take_written(self) -> set[int]:
        """The blocks whose content may have changed since the last call."""
        written, self._written = self._written, set()
        return written

    def forget(self, blocks: Iterable[int]) -> None:
        """Nobody saw what was written to these blocks: reading them is no offence.

        They are known again when they are written from their first slot on.
        """
        self._unknown.update(blocks)

    def lose(self, blocks: Iterable[int]) -> None:
        """What was to be in these blocks never came: they hold nothing."""
        for block in blocks:
            self._changes(block)
            self._held.pop(block, None)

    def lose_from(self, block: int, slot: int) -> None:
        """What was to be in this slot of a block and behind never came."""
        held = self._held.get(block)
        if held is None or slot == 0 or slot >= len(held.tokens):
            self.lose([block])
            return
        self._changes(block)
        for position in range(slot, len(held.tokens)):
            held.tokens[position] = NOTHING

    @property
    def size_bytes(self) -> int:
        """An estimate of the memory in use."""
        return sum(300 + 8 * len(held.tokens) for held in self._held.values())

    def write(
        self, block: int, group: int, size_tokens: int, index: int, span: range, content: Content
    ) -> None:
        """Tokens `span` of `content` were computed into `block`, entry `index` of its list.

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
            before = b""  # nobody knows yet what comes before; see `accept`
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
        """Drafts among tokens `span` turned out to be those of `content`."""
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
        """The first slot among `length` that does not hold what `content` has there.

        With what it holds instead, in words. None: all do.
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
        """The state after so many tokens was computed; b"": some are drafts."""
        self._unknown.discard(block)
        self.copied_early.discard(block)
        held = self._held.get(block)
        if held is not None and (held.group, held.before) == (group, after) and after:
            return  # as it was, and there before this step
        self._changes(block)
        self._held[block] = _Held(group, after, array("q", [num_tokens]), self.step)

    def settle_state(self, block: int, group: int, num_tokens: int, after: bytes) -> None:
        """Drafts among the first tokens turned out right."""
        held = self._held.get(block)
        if held is not None and (held.group, held.before, held.tokens[0]) == (
            group,
            b"",
            num_tokens,
        ):
            self._changes(block)
            held.before = after

    def holds_state(self, block: int, group: int, after: bytes) -> bool:
        """Whether this state is in the block."""
        held = self._held.get(block)
        return held is not None and (held.group, held.before) == (group, after)

    def is_of_this_step(self, block: int) -> bool:
        """Whether the state in the block is computed in the step that is being planned."""
        held = self._held.get(block)
        return block not in self._unknown and held is not None and held.step == self.step

    def state_offence(self, block: int, group: int, after: bytes) -> str | None:
        """What the block holds instead of this state, in words. None: it holds it."""
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
