"""Read back the content that a new key claims, from the shadow."""

from __future__ import annotations

from collections.abc import Sequence
from operator import ne

from kvcheck.play.shadow.content import Content
from kvcheck.play.shadow.content_check import ContentCheck
from kvspec.snapshot import Snapshot

GROUP_BYTES = 4
"""A key is a block hash followed by its group (KV-HASH-6)."""


class Claims:
    """The keys of one manager, and the text prefix that each identifies.

    `size`: tokens of a hash.
    """

    def __init__(self, check: ContentCheck, size: int) -> None:
        self.check = check
        self.size = size
        self._texts: dict[bytes, tuple[Content, int]] = {}
        self._kept: Sequence[tuple[bytes, ...]] = ()

    def learn(self, content: Content, hashes: Sequence[bytes]) -> None:
        for number, each in enumerate(hashes, 1):
            self._texts.setdefault(bytes(each), (content, number * self.size))

    def read(self, snapshot: Snapshot, after: str) -> None:
        """Read every new key, and every key of a written block. Raises InvariantViolation."""
        keys = snapshot.block_keys
        kept, self._kept = self._kept or [()] * len(keys), keys
        changed = {block for block, pair in enumerate(zip(kept, keys, strict=True)) if ne(*pair)}
        for block in sorted(changed | self.check.shadow.take_written()):
            for key in keys[block]:
                self._read_key(block, key, is_new=key not in kept[block], after=after)

    def _read_key(self, block: int, key: bytes, *, is_new: bool, after: str) -> None:
        content, num_tokens = self._texts.get(key[:-GROUP_BYTES], (None, 0))
        group = int.from_bytes(key[-GROUP_BYTES:], "big")
        if content is None:
            return
        found = self.check.offence_at(block, group, content, num_tokens)
        if found is not None:
            check, rule = "nobody_writes_what_a_key_names", "KV-INSIDE-3"
            if is_new:
                check, rule = "keys_claim_what_is_there", "KV-INSIDE-2"
            raise self.check.shadow.violation(
                check,
                rule,
                block,
                f"after {after}: a key of group {group} says that block {block} holds the first"
                f" {num_tokens} tokens; it holds {found}",
            )
