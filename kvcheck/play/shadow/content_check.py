"""Check that whatever a step reads is present and is what was written.

Groups of cross attention hold the tokens of a request's own encoder, those of Mamba its states,
circular buffers what it alone writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvcheck.play.shadow.content import Content, ShadowMemory
from kvcheck.play.shadow.states import States
from kvspec.blocks import NULL_BLOCK
from kvspec.config import ManagerConfig
from kvspec.errors import InvariantViolation
from kvspec.specs import LayerSpec

Lists = Sequence[Sequence[int]]
"""Block ids, one list per group."""

SENTENCES: Mapping[str, str] = {
    "the_last_token_is_computed": "A hit leaves at least the last token to be computed.",
    "what_is_read_is_there": "A token that is still read has a block.",
    "content_is_where_it_is_claimed": (
        "A slot that is read holds its token, computed behind the same prefix."
    ),
    "granted_tokens_have_slots": "A token that was granted has a slot.",
    "no_write_to_null": "No token is written to the null block.",
    "a_state_is_read_after_its_step": "A request starts from states of earlier steps alone.",
    "encoders_have_no_hit": "What depends on an encoder's tokens is never a hit.",
    "hits_end_at_hashes": "A hit that ends inside a block ends where a hash does.",
    "keys_claim_what_is_there": "A key covers no more tokens than what is behind it.",
    "nobody_writes_what_a_key_names": "What a key names stays as it is while it has the key.",
    "copies_read_what_was_there": "What is copied was complete before the step began.",
    "ends_of_copies_are_kept": "Both ends of a copy are kept until its step is over.",
}
"""The expectation of each check, by name."""


def first_token_read(spec: LayerSpec, position: int) -> int:
    """Return the first token that the token at `position` attends to."""
    if spec.window_tokens:
        return max(0, position - spec.window_tokens + 1)
    if spec.chunk_tokens:
        return position // spec.chunk_tokens * spec.chunk_tokens
    return 0


def is_in_gap(spec: LayerSpec, content: Content, tokens: range, position: int) -> bool:
    """Check that none of the tokens is read from `position` on, though earlier ones are."""
    if not spec.rswa_window:
        return False
    prompt = content.num_prompt
    in_window = tokens.stop > position - spec.rswa_window
    return not in_window and (prompt is None or tokens.start >= prompt)


class ContentCheck:
    """The shadow of one manager's pool. Every method raises InvariantViolation at an offence.

    `name` identifies a request in messages; `lists` are its block lists, `content` its tokens.
    `inside`: hits may end inside a block (KV-INSIDE-1).
    """

    def __init__(self, config: ManagerConfig, *, inside: bool = False) -> None:
        self.shadow = ShadowMemory(copies=inside)
        self.max_model_len = config.max_model_len_tokens
        self.groups: dict[int, tuple[LayerSpec, int]] = {}
        self.states: dict[int, States] = {}
        self.encoders: dict[int, int] = {}
        self.encoded: dict[str, Content] = {}
        self.rings: dict[int, int] = {}
        self.replayed = [g for g, spec in enumerate(config.managed_specs) if spec.replays_window]
        self.replay_starts: dict[str, int] = {}
        self.in_rings: dict[str, Content] = {}
        factor = config.dcp_world_size * config.pcp_world_size
        for number, spec in enumerate(config.managed_specs):
            size = spec.block_size * factor
            if spec.is_state:
                chosen = config if inside else None
                holds = config.policy.drafts_hold_states
                self.states[number] = States(
                    self.shadow, number, spec, size, chosen, drafts_hold=holds
                )
            elif spec.reads_encoder:
                self.encoders[number] = size
            elif spec.is_ring:
                self.rings[number] = size
            elif spec.needs_blocks:
                self.groups[number] = (spec, size)

    def new_step_starts(self) -> None:
        self.shadow.new_step_starts()

    def release(self, name: str) -> None:
        self.encoded.pop(name, None)
        self.in_rings.pop(name, None)
        self.replay_starts.pop(name, None)
        for states in self.states.values():
            states.forget(name)

    def read_hit(self, name: str, content: Content, lists: Lists, length: int) -> None:
        """Check a look-up that returned `lists` for the first `length` tokens."""
        if length >= len(content.tokens):
            raise InvariantViolation(
                "the_last_token_is_computed", "KV-MGR-1", f"a hit of all {length} tokens"
            )
        if length and self.encoders:
            raise InvariantViolation(
                "encoders_have_no_hit", "KV-CROSS-3", f"a hit of {length} tokens for {name}"
            )
        for group in (*self.groups, *self.states):
            if group not in self.replayed:  # nothing is read of it before the replay
                self.read_group(f"hit of {name}", content, group, lists[group], length, "KV-HASH-1")

    def read_held(
        self, name: str, what: str, content: Content, lists: Lists, length: int, rule: str
    ) -> None:
        """Check the reads of the next step, behind `length` tokens, in the request's blocks."""
        for group in self.groups:
            since = self.replay_starts.get(name, 0) if group in self.replayed else 0
            self.read_group(what, content, group, lists[group], length, rule, since=since)
        for group, states in self.states.items():
            states.read(name, what, content, lists[group], length)
        if name in self.in_rings:
            for group, size in self.rings.items():
                place = (next(iter(lists[group]), NULL_BLOCK), 0)
                self._read_block(what, self.in_rings[name], group, place, size, "KV-CIRC-2")
        encoded = self.encoded.get(name)
        for group, size in self.encoders.items():
            if encoded is not None:
                spans = _by_block(0, len(encoded.tokens), size)
                for (index, span), block in zip(spans, lists[group], strict=False):
                    self._read_block(what, encoded, group, (block, index), len(span), rule)

    def has_window(self, lists: Lists, length: int) -> bool:
        """Return whether each group has the first block that is read behind `length` tokens."""
        firsts = ((g, first_token_read(spec, length) // s) for g, (spec, s) in self.groups.items())
        return all(NULL_BLOCK not in lists[group][first : first + 1] for group, first in firsts)

    def read_group(
        self,
        what: str,
        content: Content,
        group: int,
        blocks: Sequence[int],
        length: int,
        rule: str,
        *,
        since: int = 0,
    ) -> None:
        """Check a hit of one group: the reads of the next token, behind `length` ones.

        No token before `since` is read: a replay began there (KV-SW-10).
        """
        if group in self.states and length:
            self.states[group].read_hit(what, content, blocks, length, rule)
        if group not in self.groups:
            return
        spec, size = self.groups[group]
        is_hit = what.startswith("hit")
        length = min(length, len(content.tokens))
        first = max(first_token_read(spec, length), since)
        for index in range(first // size, -(-length // size)):
            if index >= len(blocks) or blocks[index] == NULL_BLOCK:
                held = range(index * size, (index + 1) * size)
                if not is_hit and is_in_gap(spec, content, held, length):
                    continue
                raise InvariantViolation(
                    "what_is_read_is_there",
                    "KV-GRP-2",
                    f"{what} in group {group}: token {max(first, index * size)} is still read"
                    " but has no block",
                )
        for index in range(min(len(blocks), -(-length // size))):
            if blocks[index] != NULL_BLOCK:
                filled = min(size, length - index * size)
                self._read_block(what, content, group, (blocks[index], index), filled, rule)

    def _read_block(
        self, what: str, content: Content, group: int, place: tuple[int, int], n: int, rule: str
    ) -> None:
        """Check that the first `n` slots of a block, given with its index, hold its tokens."""
        block, index = place
        elsewhere = self.encoders | self.rings
        size = elsewhere[group] if group in elsewhere else self.groups[group][1]
        offence = self.shadow.first_offence(block, group, size, index, n, content)
        if offence is not None:
            slot, found = offence
            raise self.shadow.violation(
                "content_is_where_it_is_claimed",
                rule,
                block,
                f"{what} in group {group}: token {index * size + slot} should be in slot {slot} of"
                f" block {block}, which holds {found}",
            )

    def offence_at(self, block: int, group: int, content: Content, num_tokens: int) -> str | None:
        """Describe what a block holds instead of the end of the first tokens, or return None.

        The end: the state after them, or those of them that lie in one block with the last.
        """
        if group in self.states:
            after = content.after(num_tokens, self.states[group].size)
            return self.shadow.state_offence(block, group, after)
        if group not in self.groups:
            return None
        size = self.groups[group][1]
        index = (num_tokens - 1) // size
        place = (block, group, size, index, num_tokens - index * size)
        offence = self.shadow.first_offence(*place, content)
        return None if offence is None else f"{offence[1]} in slot {offence[0]}"

    def copy(self, pairs: Lists, retained: Sequence[int], num_blocks: int) -> None:
        ends = [block for pair in pairs for block in pair]
        if sorted(ends) != sorted(retained) or not all(0 < block < num_blocks for block in ends):
            raise InvariantViolation(
                "ends_of_copies_are_kept",
                "KV-INSIDE-4",
                f"copies {pairs}, and references to {list(retained)} to be returned",
            )
        for source, destination in pairs:
            self.shadow.copy(source, destination)

    def write_granted(
        self,
        name: str,
        content: Content,
        lists: Lists,
        *,
        start: int,
        num_external: int,
        num_new: int,
        num_encoder: int = 0,
        hits: Lists | None = None,
    ) -> None:
        """Write external and new tokens from `start` on, and the encoder's.

        `hits`: the hit that the request begins with, if any; where a list is short, the load also
        brings what it lacks (KV-MGR-22). Tokens beyond those that are known are drafts; slots end
        at the longest sequence.
        """
        self._write_encoder(name, lists, num_encoder)
        if self.rings:
            longest = range(max(self.rings.values()))
            own = self.in_rings.setdefault(name, Content(f"ring of {name}".encode(), longest))
        for group, size in self.rings.items():
            block = next(iter(lists[group]), NULL_BLOCK)
            self.shadow.write(block, group, size, 0, range(size), own)
        for group, states in self.states.items():
            total = min(start + num_external, self.max_model_len)
            states.step(
                name,
                content,
                lists[group],
                start=start,
                num_external=total - start,
                end=min(total + num_new, self.max_model_len),
                num_hit_blocks=None if hits is None else len(hits[group]),
            )
        skip_at = start + num_external
        end = min(skip_at + num_new, self.max_model_len)
        if num_external:
            skip_at = min(skip_at, len(content.tokens) - 1)
        for group, (spec, size) in self.groups.items():
            blocks = lists[group]
            if len(blocks) * size < end:
                raise InvariantViolation(
                    "granted_tokens_have_slots",
                    "KV-GRP-7",
                    f"{name} has no slot for token {max(start, len(blocks) * size)}"
                    f" in group {group}",
                )
            kept = first_token_read(spec, skip_at)
            if group in self.replayed and hits is not None:
                self.replay_starts[name] = kept
            first = start if hits is None else min(start, len(hits[group]) * size)
            for index, span in _by_block(first, end, size):
                if blocks[index] == NULL_BLOCK:
                    held = range(index * size, (index + 1) * size)
                    first_kept = span.stop if is_in_gap(spec, content, held, skip_at) else kept
                    span = range(max(span.start, first_kept), span.stop)
                if span:
                    self.shadow.write(blocks[index], group, size, index, span, content)

    def withdraw(self, lists: Lists, num_computed: int) -> None:
        """Empty what the withdrawn step was to write behind the computed tokens (KV-MGR-23)."""
        sizes = {group: size for group, (_, size) in self.groups.items()}
        sizes |= {group: states.size for group, states in self.states.items()}
        for group, size in sizes.items():
            index, slot = divmod(num_computed, size)
            for block in lists[group][index : index + 1]:
                self.shadow.lose_from(block, slot)
            self.shadow.lose(lists[group][index + 1 :])

    def _write_encoder(self, name: str, lists: Lists, num_tokens: int) -> None:
        """Write all encoder tokens of the request at once."""
        if not self.encoders or not num_tokens:
            return
        encoded = self.encoded.setdefault(name, Content(f"encoder of {name}".encode()))
        encoded.tokens.extend(range(len(encoded.tokens), num_tokens))
        for group, size in self.encoders.items():
            blocks = lists[group]
            if len(blocks) * size < num_tokens:
                raise InvariantViolation(
                    "granted_tokens_have_slots",
                    "KV-CROSS-1",
                    f"{name} has no slot for encoder token {len(blocks) * size} in group {group}",
                )
            for index, span in _by_block(0, num_tokens, size):
                self.shadow.write(blocks[index], group, size, index, span, encoded)

    def accept_drafts(self, content: Content, lists: Lists, start: int, end: int) -> None:
        """Replace drafts `start` … `end - 1` by the tokens of `content`."""
        for group, (_, size) in self.groups.items():
            for index, span in _by_block(start, min(end, len(content.tokens)), size):
                if index < len(lists[group]):
                    self.shadow.accept(lists[group][index], group, size, index, span, content)


def _by_block(start: int, end: int, size: int) -> list[tuple[int, range]]:
    """Return the blocks of tokens `start` … `end - 1`: index, and which of the tokens."""
    if start >= end:
        return []
    return [
        (index, range(max(start, index * size), min(end, (index + 1) * size)))
        for index in range(start // size, (end - 1) // size + 1)
    ]
