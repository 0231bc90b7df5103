"""Random caches: configurations of one to four groups, and states with any blocks cached."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from kvcheck.rules.specs import chunked, full, mamba, sliding, sliding_mla
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.interface import Implementation, KVCacheManager
from kvspec.policy import Policy
from kvspec.request import Request, RequestInput
from kvspec.snapshot import Snapshot
from kvspec.specs import LayerSpec, MLAAttentionSpec

MAX_BLOCKS = 10
"""Blocks of the smallest size in a text: enumeration doubles with each."""

BLOCK_SIZES = ((1,), (2,), (2,), (3,), (1, 2), (2, 4), (2, 4), (2, 3), (1, 3), (1, 2, 4))


@st.composite
def specs(draw: st.DrawFn, sizes: Sequence[int]) -> LayerSpec:
    size = draw(st.sampled_from(sizes))
    kind = draw(st.sampled_from(("full", "window", "window", "mamba", "mla", "chunk")))
    if kind == "full":
        return full(size, head_size=draw(st.sampled_from((8, 16))))
    if kind == "mla":
        return MLAAttentionSpec(size, 1, 8, "float16")
    if kind == "window":
        window = draw(st.integers(1, 4 * size + 2))
        return sliding_mla(size, window) if draw(st.booleans()) else sliding(size, window)
    if kind == "chunk" and len(sizes) == 1:
        return chunked(size, size * draw(st.integers(1, 4)))
    mode = draw(st.sampled_from(("none", "all", "align")))
    return mamba(size, mode, drafts=draw(st.sampled_from((0, 0, 1, 2))))


@st.composite
def configs(draw: st.DrawFn, *, retaining: bool = False) -> ManagerConfig:
    """Draw a valid configuration: 1 to 4 groups, some with equal specs, some eagle groups."""
    sizes = draw(st.sampled_from(BLOCK_SIZES))
    num_groups = st.sampled_from((1, 2, 3, 3, 4, 4, 4))
    listed = [draw(specs(sizes)) for _ in range(draw(num_groups))]
    if len(listed) > 2 and draw(st.booleans()):
        listed[-1] = listed[0]
    if len(set(listed)) == 1:
        listed = listed[:1]
    if len({spec.block_size for spec in listed}) > 1:
        listed = [
            s if s.kind != "chunked_local_attention" else sliding(s.block_size, 4) for s in listed
        ]
        if len(set(listed)) == 1:
            listed = listed[:1]
    has_chunks = any(spec.kind == "chunked_local_attention" for spec in listed)
    flags_of_4 = draw(st.sampled_from((0, 1, 3)))
    groups = tuple(
        KVCacheGroup(
            (f"layer{i}",),
            spec,
            is_eagle_group=(
                spec.kind != "chunked_local_attention" and draw(st.integers(0, 3)) < flags_of_4
            ),
        )
        for i, spec in enumerate(listed)
    )
    alignment = math.lcm(*(spec.block_size for spec in listed))
    common = math.gcd(*(spec.block_size for spec in listed))
    retention = None
    if retaining and any(spec.retains_sparsely for spec in listed):
        retention = draw(st.sampled_from((None, None, 0, alignment, 2 * alignment)))
    return ManagerConfig(
        KVCacheConfig(200, groups),
        max_model_len_tokens=1000,
        hash_seed="0",
        use_eagle=not has_chunks and draw(st.integers(0, 4)) == 0,
        hash_block_size_tokens=draw(
            st.sampled_from([None, *(h for h in range(1, common) if common % h == 0)])
        ),
        retention_interval_tokens=retention,
        policy=Policy(chunked_null_prefix_is_hit=draw(st.integers(0, 3)) > 0),
    )


def text_length(config: ManagerConfig) -> int:
    return MAX_BLOCKS * min(g.spec.block_size for g in config.kv_cache.groups) + 1


def ask(implementation: Implementation, manager: KVCacheManager, num_tokens: int) -> Request:
    """Make a request for the first tokens of the text."""
    return implementation.make_request(manager, RequestInput("asks", range(num_tokens)))


@dataclass(frozen=True)
class Placed:
    """A state put there: group g holds `copies[g][i]` cached copies of position i, all free."""

    config: ManagerConfig
    copies: tuple[tuple[int, ...], ...]

    def build(self, implementation: Implementation) -> KVCacheManager:
        empty = implementation.create(self.config, check_invariants=False)
        config = empty.config
        hash_size = config.hash_block_size_tokens or 1
        hashes = ask(implementation, empty, text_length(config)).block_hashes
        keys: list[tuple[bytes, ...]] = [()]
        covered = [0]
        order: dict[bytes, tuple[int, ...]] = {}
        for group, positions in enumerate(self.copies):
            size = config.kv_cache.groups[group].spec.block_size
            for position, number in enumerate(positions):
                key = hashes[(position + 1) * size // hash_size - 1] + group.to_bytes(4, "big")
                blocks = range(len(keys), len(keys) + number)
                if number:
                    order[key] = tuple(reversed(blocks))
                keys += [(key,)] * number
                covered += [(position + 1) * size] * number
        num_blocks = config.kv_cache.num_blocks
        num_missing = num_blocks - len(keys)
        return implementation.restore(
            self.config,
            Snapshot(
                num_blocks=num_blocks,
                free_queue=tuple(range(1, num_blocks)),
                ref_counts=(0,) * num_blocks,
                block_keys=(*keys, *[()] * num_missing),
                lookup_order=order,
                covered_tokens=(*covered, *[0] * num_missing),
                none_hash=empty.none_hash,
                requests={},
                new_block_ids=((),) * len(self.copies),
                step_keys=(frozenset[bytes](),) * len(self.copies),
            ),
        )


@st.composite
def placed_worlds(draw: st.DrawFn) -> Placed:
    """Draw any positions as cached, most of them, some twice."""
    config = draw(configs())
    copies: list[tuple[int, ...]] = []
    for group in config.kv_cache.groups:
        how_many = draw(st.sampled_from(((0, 1), (0, 1, 1, 1), (0, *[1] * 8, 2), (1,))))
        num_blocks = (text_length(config) - 1) // group.spec.block_size
        copies.append(tuple(draw(st.sampled_from(how_many)) for _ in range(num_blocks)))
    return Placed(config, tuple(copies))


def contested_world(seed: int) -> Placed:
    """Draw full attention, windows and Mamba, most of them flagged, with a few positions missing.

    Here the marks of a search are set and cleared. Drawn evenly, as the conditions are rare.
    """
    random = Random(seed)
    others: list[LayerSpec] = [
        sliding(1, w) for w in random.sample((2, 3, 4), random.choice((1, 2, 2)))
    ]
    if random.random() < 0.7:
        others.insert(random.randrange(len(others) + 1), mamba(1))
    groups = tuple(
        KVCacheGroup((f"layer{i}",), spec, is_eagle_group=random.random() < 0.7)
        for i, spec in enumerate([full(1), *others])
    )
    config = ManagerConfig(KVCacheConfig(200, groups), max_model_len_tokens=1000, hash_seed="0")
    missing = [0.0, *(random.choice((0.1, 0.3, 0.5)) for _ in others)]
    return Placed(
        config, tuple(tuple(int(random.random() >= m) for _ in range(MAX_BLOCKS)) for m in missing)
    )


def contested_worlds() -> st.SearchStrategy[Placed]:
    return st.integers(0, 2**32 - 1).map(contested_world)


def hybrid_of_two(
    full_size: int, size: int, window: int, *, flagged: bool, retention: int | None = None
) -> ManagerConfig:
    """Configure full attention, and a window with smaller blocks."""
    groups = (
        KVCacheGroup(("layer0",), full(full_size)),
        KVCacheGroup(("layer1",), sliding(size, window), is_eagle_group=flagged),
    )
    return ManagerConfig(
        KVCacheConfig(200, groups),
        max_model_len_tokens=1000,
        hash_seed="0",
        retention_interval_tokens=retention,
    )


def short_beginnings() -> list[Placed]:
    """Return windows longer than the text, with its first 0, 1, 2, … blocks cached."""
    return [
        Placed(
            hybrid_of_two(full_size, 1, 20, flagged=flagged),
            (
                (1,) * (MAX_BLOCKS // full_size),
                tuple(int(position < number) for position in range(MAX_BLOCKS)),
            ),
        )
        for full_size in (2, 3)
        for flagged in (False, True)
        for number in range(MAX_BLOCKS + 1)
    ]


def retained_tails() -> list[tuple[ManagerConfig, int]]:
    """Return windows with smaller blocks than full attention, and prompts around block ends."""
    return [
        (hybrid_of_two(4, size, window, flagged=flagged, retention=retention), num_tokens)
        for size, windows in ((1, (1, 2, 3, 4)), (2, (2, 3, 4)))
        for window in windows
        for flagged in (False, True)
        for retention in (None, 0, 4, 8)
        for num_tokens in (3, 16, 23)
    ]
