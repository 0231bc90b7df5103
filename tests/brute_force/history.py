"""A statement over time of what a manager holds, caches, returns and refuses.

It receives every call, keeps their history (`lives`, `blocks_over_time`), and derives the
state by enumeration, with nothing of an implementation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from kvspec.config import ManagerConfig
from kvspec.specs import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    MLAAttentionSpec,
    RSWASpec,
    TQFullAttentionSpec,
)
from tests.brute_force.agreement import attention_groups
from tests.brute_force.blocks_over_time import Blocks, Name
from tests.brute_force.by_token import blocks_of, is_handed_over, is_worth_caching, tokens_of
from tests.brute_force.lives import Entry, Life, Span
from tests.brute_force.texts import Beginnings, Text

ZEROED = (
    *(FullAttentionSpec, TQFullAttentionSpec, MLAAttentionSpec, HiddenStateCacheSpec, RSWASpec),
)


@dataclass
class History:
    """All that happened to one manager. `config`: with its block sizes filled in."""

    config: ManagerConfig
    spans: tuple[Span, ...]
    blocks: Blocks
    beginnings: Beginnings
    texts: dict[str, Text] = field(default_factory=dict)
    lives: dict[str, Life] = field(default_factory=dict)
    popped: list[int] = field(default_factory=list)
    set_aside: tuple[int, ...] = ()
    to_zero: list[list[int]] = field(default_factory=list)
    of_this_step: list[set[Name]] = field(default_factory=list)
    now: int = 0

    @classmethod
    def of(cls, config: ManagerConfig) -> History:
        factor = config.dcp_world_size * config.pcp_world_size
        eagle = {
            member
            for group in attention_groups(config)
            if group.is_eagle
            for member in group.members
        }
        spans = tuple(
            Span(spec, spec.block_size * factor, index, index in eagle)
            for index, spec in enumerate(config.managed_specs)
        )
        sinks = sum(spec.num_sink_blocks for spec in config.managed_specs)
        return cls(
            config,
            spans,
            Blocks(config.kv_cache.num_blocks, config.policy.unhashed_freed_to == "front"),
            Beginnings(config.hash_block_size_tokens or 1, config.hash_lookahead_tokens),
            set_aside=tuple(range(1, sinks + 1)),  # KV-FULL-8
            to_zero=[[] for _ in spans],
            of_this_step=[set() for _ in spans],
        )

    # What there is now.

    def references(self) -> Counter[int]:
        lists = [life.held(span) for life in self.lives.values() for span in self.spans]
        held = [block for blocks in lists for block in blocks if block]
        return Counter((*held, *self.popped, *self.set_aside))

    def free(self) -> list[int]:
        return self.blocks.free(self.references())

    def counted(self, name: str, span: Span) -> int | None:
        life = self.lives[name]
        begun = life.begun[span.index]
        handed = [
            index
            for index in range(len(life.lists[span.index]))
            if index < (begun or 0) or self.was_handed_over(life, span, index)
        ]
        return len(handed) if handed or begun is not None else None

    def was_handed_over(self, life: Life, span: Span, index: int) -> bool:
        """Check whether some caching call included the entry."""
        return span.spec.prefix_cacheable and any(
            is_handed_over(self.config, span.size, index, call, is_eagle=span.is_eagle)
            and all(token in named for token in tokens_of(index, span.size))
            and (index + 1) * span.size <= computed
            for call, named, computed in life.calls
        )

    def is_running(self, name: str) -> bool:
        """Check whether some group has an entry (KV-GRP-9)."""
        return name in self.lives and any(
            self.counted(name, span) is not None for span in self.spans
        )

    def name_of(self, span: Span, text: Text, num_tokens: int) -> Name:
        return Name(span.index, self.beginnings.number(text, num_tokens), num_tokens)

    # What happens.

    def take(self, life: Life, span: Span, number: int) -> None:
        """Take the blocks at the front and drop their names (KV-POOL-3, KV-POOL-4)."""
        for block in self.free()[:number]:
            self.blocks.forget(block)
            life.lists[span.index].append(Entry(block, self.now))
            if type(span.spec) in ZEROED:
                self.to_zero[span.index].append(block)

    def cache(self, name: str, num_tokens: int, junction: int = 0) -> None:
        """Cache what the call includes and no earlier one did (KV-GRP-11)."""
        if not self.config.enable_caching or name not in self.lives:
            return
        life = self.lives[name]
        before = [self.counted(name, span) or 0 for span in self.spans]
        life.calls.append((num_tokens, self.beginnings.named(life.text), inf))
        for span in self.spans:
            for index in range(before[span.index], self.counted(name, span) or 0):
                block = life.block(span, index)
                worth = is_worth_caching(
                    self.config,
                    span.spec,
                    index,
                    life.text.num_prompt,
                    is_eagle=span.is_eagle,
                    junction=junction,
                )
                if block and worth:
                    self.register(life, span, block, (index + 1) * span.size)

    def withdraw(self, name: str, computed: int) -> list[str]:
        """Drop the names that would have ended later, for all holders (KV-MGR-23)."""
        if not self.config.enable_caching:
            return []
        life, planned = self.lives[name], set[int]()
        for span in self.spans:
            if self.counted(name, span) is not None:
                life.begun[span.index] = min(life.begun[span.index] or 0, computed // span.size)
            for index, block in enumerate(life.held(span)):
                if block and (index + 1) * span.size > computed:
                    planned.add(block)
                    self.blocks.forget(block)
        life.calls = [(call, named, min(most, computed)) for call, named, most in life.calls]
        return sorted(
            other
            for other, each in self.lives.items()
            if other != name and any(planned & set(each.held(span)) for span in self.spans)
        )

    def register(self, life: Life, span: Span, block: int, num_tokens: int) -> None:
        """Name a full block; drop the names of shorter prefixes."""
        name = self.name_of(span, life.text, num_tokens)
        self.blocks.forget(block)
        self.blocks.register(block, name)
        if span.spec.is_state:
            self.of_this_step[span.index].add(name)

    def cache_partial(self, name: str, group: int, num_tokens: int) -> bool:
        """Add a name that ends inside a block (KV-PART-1 … KV-PART-3)."""
        span = self.spans[group]
        block = self.lives[name].block(span, blocks_of(num_tokens, span.size) - 1)
        if not block:
            return False
        names = self.blocks.names().get(block, [])
        new = self.name_of(span, self.texts[name], num_tokens)
        if new not in names:
            if names and names[0].num_tokens < num_tokens:
                self.blocks.forget(block)
            self.blocks.register(block, new)
        return True

    def remove(self, name: str, computed: int) -> None:
        """Release what no token will read, one call per group, last block first (KV-GRP-2)."""
        if name not in self.lives:
            return
        life = self.lives[name]
        before = [life.held(span) for span in self.spans]
        life.removals.append((self.now, computed))
        self.give_back(life, before)

    def give_back(self, life: Life, before: Sequence[Sequence[int]]) -> None:
        """Release the entries that became null, one call per group."""
        after = [life.held(span) for span in self.spans]
        held = set(self.references())
        for was, there in zip(before, after, strict=True):
            gone = [old for old, new in zip(was, there, strict=True) if old and not new]
            self.blocks.release(gone[::-1], held)

    def end(self, name: str) -> list[list[int]]:
        life = self.lives.pop(name, None)
        return [] if life is None else [life.held(span) for span in self.spans]

    def free_request(self, name: str) -> None:
        """Release each list backwards, one call per group (KV-POOL-8)."""
        lists = self.end(name)
        held = set(self.references())
        for number, blocks in enumerate(lists):
            later = {block for other in lists[number + 1 :] for block in other}
            self.blocks.release(blocks[::-1], held | later)

    def pop(self, name: str) -> list[int]:
        """Forget the request, but keep its blocks in use (KV-MGR-13)."""
        blocks = [block for blocks in self.end(name) for block in blocks]
        self.popped += [block for block in blocks if block]
        return blocks

    def return_popped(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            if block:
                self.popped.remove(block)
        self.blocks.release(blocks, self.references())

    def reset(self) -> bool:
        """Drop all names if no block is held (KV-POOL-11)."""
        if set(self.references()) != set(self.set_aside):
            return False
        for block in self.blocks.names():
            self.blocks.forget(block)
        return True

    def common_prefix(self, name: str, span: Span) -> int:
        """Count the leading blocks that every request with a list holds once (KV-FULL-7)."""
        if name not in self.lives or not span.spec.is_full_attention:
            return 0
        sharers = sum(bool(life.lists[span.index]) for life in self.lives.values())
        references = self.references()
        alike = [references[block] == sharers for block in self.lives[name].held(span)]
        return max(n for n in range(len(alike) + 1) if all(alike[:n]))
