"""The hardest rules once more, token by token: which blocks are read, worth caching, counted.

No formula of the rules is in here, neither a tail nor a shift nor a rounding: each result is found
by looking at every token or every boundary. `size` is the number of tokens that a block covers.
"""

from __future__ import annotations

from functools import lru_cache

from kvspec.config import ManagerConfig
from kvspec.specs import CircularBufferSpec, CrossAttentionSpec, EncoderOnlyAttentionSpec, LayerSpec
from tests.brute_force.agreement import attention_groups


def tokens_read(spec: LayerSpec, token: int) -> range:
    """Return the earlier tokens whose KV or state is read to compute `token`."""
    if spec.window_tokens:
        return range(max(0, token - spec.window_tokens + 1), token)
    if spec.chunk_tokens:
        return range(token // spec.chunk_tokens * spec.chunk_tokens, token)
    if spec.is_state:
        return range(max(0, token - 1), token)
    return range(token)


def tokens_kept(spec: LayerSpec, token: int) -> range:
    """Return the tokens read, and those retained before them (KV-SW-9)."""
    read = tokens_read(spec, token)
    extra = spec.extra_retained_tokens
    return range(max(0, read.start - extra), read.stop)


def tokens_of(block: int, size: int) -> range:
    return range(block * size, (block + 1) * size)


def blocks_of(num_tokens: int, size: int) -> int:
    return len({token // size for token in range(num_tokens)})


def holds_text(spec: LayerSpec) -> bool:
    """Check that the blocks contain tokens of the request."""
    others = (CircularBufferSpec, CrossAttentionSpec, EncoderOnlyAttentionSpec)
    return not isinstance(spec, others)


@lru_cache(maxsize=100_000)
def is_read(spec: LayerSpec, tokens: range, computed: int) -> bool:
    """Check whether a token is computed or read by token `computed` or a later one."""
    later = range(computed, computed + len(tokens) + 2)  # those behind read no earlier tokens
    return any(
        token >= computed or any(token in tokens_kept(spec, by) for by in later) for token in tokens
    )


def num_unread(spec: LayerSpec, size: int, computed: int) -> int:
    """Return the leading blocks that are unread once `computed` tokens are (KV-GRP-2)."""
    blocks = range(blocks_of(computed, size) + 1)
    return min(block for block in blocks if is_read(spec, tokens_of(block, size), computed))


def most_held(config: ManagerConfig, spec: LayerSpec, size: int) -> int | None:
    """Return the most blocks that admission counts (KV-SW-7, KV-CHUNK-5); None: no bound."""
    step = config.max_num_batched_tokens or config.max_model_len_tokens
    seen: set[int] = set()
    more = 0
    if spec.window_tokens:  # what the first token of a step reads, and the step
        seen = set(range(spec.window_tokens - 1 + spec.extra_retained_tokens + step))
        more = 1  # a window may begin inside a block
    elif spec.chunk_tokens:
        seen = set(range(spec.chunk_tokens + step))
    else:
        return None
    return blocks_of(len(seen & set(range(config.max_model_len_tokens))), size) + more


def boundaries(config: ManagerConfig, num_prompt_tokens: int, end: int) -> tuple[set[int], int]:
    """Return where hits may end, up to `end` and a bit beyond, and where one of the prompt would.

    The second is -1 without retention. It is the prompt's last aligned place where a hit may end
    (KV-RET-4), whatever the request generates.
    """
    alignment, retention = config.scheduler_block_size_tokens or 1, config.retention_interval_tokens
    aligned = [n for n in range(end + 1) if n % alignment == 0]
    if retention is None:
        return {n for n in aligned if n}, -1
    computed = max(1, config.hash_lookahead_tokens)  # KV-HASH-15
    hits = range(max(0, num_prompt_tokens - computed) + 1)
    replay = max(n for n in hits if n % alignment == 0)
    return {n for n in aligned if n and retention and n % retention == 0}, replay


def junctions(config: ManagerConfig, size: int, junction: int, *, is_eagle: bool) -> set[int]:
    """Return where hits end that end at the junction or a block before it (KV-RET-7)."""
    if config.retention_interval_tokens is None or junction == 0:
        return set()
    alignment = config.scheduler_block_size_tokens or 1
    places = [junction, junction - size] if is_eagle else [junction]
    return {max(n for n in range(p + 1) if n % alignment == 0) for p in places if p >= 0}


def is_worth_caching(
    config: ManagerConfig,
    spec: LayerSpec,
    block: int,
    num_prompt_tokens: int,
    *,
    is_eagle: bool,
    junction: int = 0,
) -> bool:
    """Check whether a hit that ends at a boundary can use the block (KV-RET-*)."""
    size = spec.block_size
    further = junctions(config, size, junction, is_eagle=is_eagle)
    if spec.is_state:
        if config.retention_interval_tokens is None:
            return True
        end = tokens_of(block, size).stop
        regular, replay = boundaries(config, num_prompt_tokens, end)
        return end in regular or end == replay or end in further
    if not spec.window_tokens:
        return True
    step = config.retention_interval_tokens
    step = (config.scheduler_block_size_tokens or 1) if step is None else step
    regular, replay = boundaries(config, num_prompt_tokens, (block + 1) * size + 2 * step)
    if is_used(spec, block, {*regular, replay, *further}, is_eagle=is_eagle):
        return True
    # Where the hits of two neighbouring boundaries leave out no block, all are kept (KV-RET-1).
    between = {token // size for token in range(step + size, 2 * step + size)}
    far = {step, 2 * step, 3 * step}
    return bool(step) and all(is_used(spec, b, far, is_eagle=is_eagle) for b in between)


def is_used(spec: LayerSpec, block: int, ends: set[int], *, is_eagle: bool) -> bool:
    """Check whether tokens after such an end read the block, or an eagle group drops it."""
    tokens = tokens_of(block, spec.block_size)
    return any(
        end >= 0
        and (
            (is_eagle and tokens.start == end)
            or any(token in tokens_read(spec, end) for token in tokens)
        )
        for end in ends
    )


def is_handed_over(
    config: ManagerConfig, size: int, block: int, num_tokens: int, *, is_eagle: bool
) -> bool:
    """Check whether a caching call of this length includes the block (KV-GRP-11, KV-COORD-13)."""
    tokens = tokens_of(block, size)
    if tokens.stop > num_tokens:
        return False
    if len(config.kv_cache.groups) == 1:
        return True
    alignment = config.scheduler_block_size_tokens or 1
    ends = range(alignment, num_tokens + 1, alignment)
    return any(tokens.stop <= end or (is_eagle and tokens.start == end) for end in ends)


def cached_positions(config: ManagerConfig, group: int, num_tokens: int) -> set[int]:
    """Return the group's cached positions after a prompt of this length is computed at once.

    `config` is a manager's, with its block sizes.
    """
    (own,) = [found for found in attention_groups(config) if group in found.members]
    size, is_eagle = own.spec.block_size, own.is_eagle
    return {
        block
        for block in range(num_tokens // size)
        if is_handed_over(config, size, block, num_tokens, is_eagle=is_eagle)
        and is_worth_caching(config, own.spec, block, num_tokens, is_eagle=is_eagle)
    }
