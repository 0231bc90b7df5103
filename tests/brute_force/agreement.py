"""The hit of a whole manager: the rules of coordination as a plain loop over their sentences.

Every hit of an attention group in it is found by enumeration (`statement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvspec.blocks import GroupHits, KVCacheBlocks, PrefixHit
from kvspec.config import ManagerConfig
from kvspec.snapshot import Snapshot
from kvspec.specs import LayerSpec
from tests.brute_force.statement import Candidate, Question, longest_hit


@dataclass(frozen=True)
class AttentionGroup:
    """Groups of equal specs (KV-COORD-4): their indices, and whether they are eagle groups."""

    spec: LayerSpec
    members: tuple[int, ...]
    is_eagle: bool

    @property
    def is_full(self) -> bool:
        return self.spec.is_full_attention

    @property
    def is_mamba(self) -> bool:
        return self.spec.is_state


def attention_groups(config: ManagerConfig) -> list[AttentionGroup]:
    specs = [config.registry.resolve(group.spec) for group in config.kv_cache.groups]
    flagged = [i for i, group in enumerate(config.kv_cache.groups) if group.is_eagle_group]
    if config.use_eagle and not flagged:
        flagged = list(range(len(specs)))
    if config.hash_lookahead_tokens > 0:  # KV-HASH-14
        flagged = []
    first_members = [
        i
        for i, spec in enumerate(specs)
        if spec not in specs[:i] and spec.prefix_cacheable  # KV-COORD-14
    ]
    found = [
        AttentionGroup(
            spec=specs[first],
            members=tuple(i for i, spec in enumerate(specs) if spec == specs[first]),
            is_eagle=any(specs[i] == specs[first] for i in flagged),
        )
        for first in first_members
    ]
    return [g for g in found if g.is_full] + [g for g in found if not g.is_full]


@dataclass
class Cache:
    """The cached blocks of one text, from a snapshot and the text's hashes."""

    config: ManagerConfig
    snapshot: Snapshot
    hashes: Sequence[bytes]
    known: dict[tuple[object, ...], Candidate] = field(default_factory=dict)

    def block(self, spec: LayerSpec, group: int, position: int) -> int | None:
        hash_size = self.config.hash_block_size_tokens or 1
        number = (position + 1) * spec.block_size // hash_size - 1
        if number >= len(self.hashes):
            return None
        key = self.hashes[number] + group.to_bytes(4, "big")
        blocks = self.snapshot.lookup_order.get(key)
        return blocks[0] if blocks else None

    def look_up(self, group: AttentionGroup, limit: int, *, drop: bool) -> Candidate:
        """Enumerate the longest hit of an attention group, once per question."""
        if not group.spec.chunk_tokens:  # only a chunk may end in a block
            limit = limit // group.spec.block_size * group.spec.block_size
        asked = (group.members, limit, drop)
        if asked not in self.known:
            cached = frozenset(
                position
                for position in range(limit // group.spec.block_size)
                if all(self.block(group.spec, g, position) is not None for g in group.members)
            )
            self.known[asked] = longest_hit(
                Question(
                    group.spec,
                    cached,
                    limit,
                    drop,
                    self.config.scheduler_block_size_tokens or 1,
                    self.config.policy.chunked_null_prefix_is_hit,
                )
            )
        return self.known[asked]

    def blocks(
        self, groups: Sequence[AttentionGroup], answers: Sequence[Candidate]
    ) -> KVCacheBlocks:
        lists: dict[int, list[int]] = {g: [] for g in range(len(self.config.kv_cache.groups))}
        for group, answer in zip(groups, answers, strict=True):
            for member in group.members:
                lists[member] = [
                    (self.block(group.spec, member, i) or 0) if there else 0
                    for i, there in enumerate(answer)
                ]
        return KVCacheBlocks(tuple(lists[g] for g in sorted(lists)))


def agreed_hit(cache: Cache, limit: int) -> PrefixHit:
    groups = attention_groups(cache.config)
    if len(cache.config.kv_cache.groups) == 1:  # KV-COORD-2
        (only,) = groups
        answer = cache.look_up(only, limit, drop=only.is_eagle and not only.is_mamba)
        length = len(answer) * only.spec.block_size
        return PrefixHit(cache.blocks(groups, [answer]), length)
    length = limit  # KV-COORD-5: the current length starts as L
    longest = 0
    verified: set[int] = set()
    answers: dict[int, Candidate] = {}
    while True:
        before = length
        for i, group in enumerate(groups):
            size = group.spec.block_size
            if group.is_full and i in answers:  # KV-COORD-6: a cut asks nothing, clears nothing
                length = length // size * size
                continue
            if group.is_eagle and i not in verified:
                if group.is_mamba:  # KV-COORD-8: no further, no drop
                    answer = cache.look_up(group, length, drop=False)
                else:  # KV-COORD-7
                    answer = cache.look_up(group, min(length + size, limit), drop=True)
                verified.add(i)
            else:
                answer = cache.look_up(group, length, drop=False)
                if len(answer) * size < length:  # KV-COORD-8
                    verified.clear()
            answers[i] = answer
            length = len(answer) * size
            longest = max(longest, length)  # KV-COORD-12: a look-up, not a cut
        if length == before:  # KV-COORD-10
            break
        if len(groups) == 2 and groups[0].is_full:
            break
    for i, group in enumerate(groups):  # KV-COORD-11
        if group.is_full:
            answers[i] = answers[i][: length // group.spec.block_size]
    ordered = [answers[i] for i in range(len(groups))]
    return PrefixHit(cache.blocks(groups, ordered), length, longest - length)


def own_hits(cache: Cache, limit: int) -> GroupHits:
    """Return every group's own hit (KV-COORD-9)."""
    groups = attention_groups(cache.config)
    answers = [
        cache.look_up(group, limit, drop=group.is_eagle and not group.is_mamba) for group in groups
    ]
    blocks = cache.blocks(groups, answers)
    lengths = [0] * len(blocks.groups)
    for group, answer in zip(groups, answers, strict=True):
        for member in group.members:
            lengths[member] = len(answer) * group.spec.block_size
    return GroupHits(blocks, tuple(lengths))
