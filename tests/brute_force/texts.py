"""Contents of blocks in plain words: numbered prefixes of texts. No hash is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Text:
    """The tokens of a request, and all else that determines its keys and values (KV-HASH-7).

    `extras`: the arguments of its creation.
    """

    tokens: list[int]
    num_prompt: int
    extras: Mapping[str, Any]

    def part(self, tokens: range) -> tuple[object, ...]:
        """Return all that these tokens are, apart from what precedes them."""
        lora, embedded = self.extras.get("lora"), self.extras.get("prompt_embeddings")
        items = [
            (item["identifier"], item["offset"] - tokens.start)
            for item in sorted(self.extras.get("mm_features", ()), key=lambda each: each["offset"])
            if set(tokens) & set(range(item["offset"], item["offset"] + item["length"]))
        ]
        return (
            tuple(self.tokens[tokens.start : tokens.stop]),
            None if lora is None else lora["name"],
            tuple(items),
            self.extras.get("cache_salt") if tokens.start == 0 else None,
            None if embedded is None else tuple(embedded[tokens.start : tokens.stop]),
        )


@dataclass
class Beginnings:
    """Prefixes of texts: equal ones have equal numbers (KV-HASH-1).

    `ahead`: tokens behind each part that its number covers as well (KV-HASH-14).
    """

    size: int
    ahead: int = 0
    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)

    def number(self, text: Text, num_tokens: int) -> int:
        before = -1
        for start in range(0, num_tokens, self.size):
            part = (before, text.part(range(start, start + self.size + self.ahead)))
            before = self.numbers.setdefault(part, len(self.numbers))
        return before

    def named(self, text: Text) -> range:
        """Return the tokens in prefixes that the known text names (KV-HASH-15)."""
        ends = range(0, len(text.tokens) - self.ahead + 1, self.size)
        return range(max(ends, default=0))
