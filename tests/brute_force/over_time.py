"""The statement over time as a check of programs: after each call the result and the whole state.

Keys of the subject are never worked out: the same beginning of a text has to have the same key
every time, and two have two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from kvcheck.play.agreement import require_same
from kvcheck.play.player import NAMES
from kvcheck.play.runner import Check, Performed, Runner
from kvspec.config import KVCacheConfig, ManagerConfig
from kvspec.snapshot import Snapshot
from kvspec.specs import FullAttentionSpec, LayerSpec
from tests.brute_force.agreement import Cache, agreed_hit, own_hits
from tests.brute_force.allocating import allocate, need_now
from tests.brute_force.blocks_over_time import Name
from tests.brute_force.history import History
from tests.brute_force.texts import Text


@dataclass
class Remembered(Cache):
    carriers: Mapping[Name, list[int]] = field(default_factory=dict)
    texts: Mapping[tuple[int, int], Name] = field(default_factory=dict)

    def block(self, spec: LayerSpec, group: int, position: int) -> int | None:
        """Return the block registered first under the name of this place."""
        name = self.texts.get((group, position))
        return None if name is None else self.carriers.get(name, [None])[0]


def spanning(config: ManagerConfig, sizes: tuple[int, ...]) -> ManagerConfig:
    """Enlarge blocks to their span under context parallelism (KV-FULL-5)."""
    groups = tuple(
        group
        if group.spec.block_size == size
        else replace(group, spec=FullAttentionSpec(size, 1, 8, "float16"))
        for group, size in zip(config.kv_cache.groups, sizes, strict=True)
    )
    return replace(config, kv_cache=KVCacheConfig(config.kv_cache.num_blocks, groups))


class OverTime(Check):
    """A check that follows a runner's operations and compares them with the history."""

    def __init__(self, config: ManagerConfig) -> None:
        self.history = History.of(config)
        self.config = spanning(config, tuple(span.size for span in self.history.spans))
        self.keys: dict[Name, bytes] = {}

    def after_operation(self, runner: Runner, done: Performed) -> None:
        name = "" if done.request is None else done.request.name
        self.history.now += 1
        told = TOLD.get(done.name)
        if told is not None:
            expected = told(self, name, done.arguments)
            if expected is not UNSAID:
                rule = "KV-MGR-7" if done.name == "allocate_slots" else "KV-MGR-1"
                require_same(rule, f"{done.name} of {name}", expected, done.outcome.result)
        self.compare(done.after.snapshot)

    # The state.

    def compare(self, state: Snapshot) -> None:
        history = self.history
        references = history.references()
        counts = [references[block] for block in range(state.num_blocks)]
        require_same("KV-POOL-16", "references", counts, list(state.ref_counts))
        require_same("KV-POOL-6", "free queue", history.free(), list(state.free_queue))
        require_same("KV-POOL-9", "popped", sorted(history.popped), list(state.popped_blocks))
        zero = [list(ids) for ids in state.new_block_ids]
        require_same("KV-GRP-10", "to be zeroed", history.to_zero, zero)
        self.compare_names(state)
        self.compare_requests(state)

    def compare_names(self, state: Snapshot) -> None:
        """Compare the names of blocks, and the order in which look-ups find copies."""
        names = self.history.blocks.names()
        named = {block: keys for block, keys in enumerate(state.block_keys) if keys}
        numbers = {block: len(own) for block, own in names.items()}
        got = {block: len(keys) for block, keys in named.items()}
        require_same("KV-GRP-11", "numbers of keys", numbers, got)
        covered = {block: own[0].num_tokens for block, own in names.items()}
        got = {block: state.covered_tokens[block] for block in named}
        require_same("KV-PART-3", "covered tokens", covered, got)
        for block, own in names.items():
            keys = tuple(
                self.keys.setdefault(*pair) for pair in zip(own, named[block], strict=True)
            )
            require_same("KV-HASH-1", f"keys of block {block}", keys, named[block])
        known = set(self.keys.values())
        require_same("KV-HASH-1", "different keys", len(self.keys), len(known))
        order = {self.keys[name]: tuple(b) for name, b in self.history.blocks.carriers().items()}
        require_same("KV-POOL-13", "order of copies", order, dict(state.lookup_order))
        new = [{self.keys[name] for name in names} for names in self.history.of_this_step]
        require_same("KV-MAMBA-2", "states of this step", new, [set(k) for k in state.step_keys])

    def compare_requests(self, state: Snapshot) -> None:
        history, expected = self.history, {}
        for name, life in history.lives.items():
            counts = [history.counted(name, span) for span in history.spans]
            if life.holds_something or counts != [None] * len(counts):
                lists = [life.held(span) for span in history.spans]
                expected[name] = (lists, counts, sorted(life.has_taken))
        got = {
            name: (
                [list(blocks) for blocks in each.block_ids],
                list(each.num_cached_blocks),
                [g for g, mark in enumerate(each.mamba) if mark is not None and mark.has_allocated],
            )
            for name, each in state.requests.items()
        }
        require_same("KV-GRP-1", "requests", expected, got)

    # The results.

    def new_request(self, name: str, asked: Mapping[str, Any]) -> Any:
        tokens = list(asked["prompt_token_ids"])
        self.history.texts[name] = Text(tokens, len(tokens), asked)
        return UNSAID

    def append_tokens(self, name: str, asked: Mapping[str, Any]) -> Any:
        self.history.texts[name].tokens.extend(asked["token_ids"])
        return UNSAID

    def remembered(self, text: Text) -> Remembered:
        hashed = len(self.history.beginnings.named(text))
        places = {
            (span.index, position): self.history.name_of(span, text, (position + 1) * span.size)
            for span in self.history.spans
            if span.has_text
            for position in range(hashed // span.size)
        }
        nothing: Any = None
        return Remembered(
            self.config, nothing, (), carriers=self.history.blocks.carriers(), texts=places
        )

    def get_computed_blocks(self, name: str, asked: Mapping[str, Any]) -> Any:
        """Enumerate the longest hit (KV-MGR-1)."""
        text = self.history.texts[name]
        nothing: list[list[int]] = [[] for _ in self.history.spans]
        length, blocks, prefix = 0, nothing, None
        if self.config.enable_caching and not text.extras.get("skip_reading_prefix_cache"):
            ahead = max(1, self.config.hash_lookahead_tokens)  # KV-HASH-15
            hit = agreed_hit(self.remembered(text), max(0, len(text.tokens) - ahead))
            length, blocks = hit.hit_length_tokens, hit.blocks.to_lists()
            prefix = hit.uncached_common_prefix_tokens
        return {
            "blocks": blocks,
            "num_computed_tokens": length,
            "num_uncached_common_prefix_tokens": prefix,
        }

    def find_longest_cache_hit_per_group(self, name: str, asked: Mapping[str, Any]) -> Any:
        """Enumerate each group's own hit (KV-COORD-9)."""
        text = self.history.texts[name]
        longest = max(0, len(text.tokens) - self.config.hash_lookahead_tokens)  # KV-HASH-15
        hits = own_hits(self.remembered(text), min(asked["max_cache_hit_length"], longest))
        lengths = list(hits.hit_lengths_tokens)
        return {"blocks": hits.blocks.to_lists(), "hit_lengths": lengths}

    def allocate_slots(self, name: str, asked: Mapping[str, Any]) -> Any:
        return allocate(self.history, name, asked)

    def cache_blocks(self, name: str, asked: Mapping[str, Any]) -> Any:
        self.history.cache(name, asked["num_computed_tokens"], asked.get("junction_tokens", 0))
        return UNSAID

    def cache_partial_block(self, name: str, asked: Mapping[str, Any]) -> Any:
        return self.history.cache_partial(name, asked["group"], asked["num_tokens"])

    def remove_skipped_blocks(self, name: str, asked: Mapping[str, Any]) -> Any:
        self.history.remove(name, asked["total_computed_tokens"])
        return UNSAID

    def free(self, name: str, asked: Mapping[str, Any]) -> Any:
        self.history.free_request(name)
        return UNSAID

    def pop_blocks_for_free(self, name: str, asked: Mapping[str, Any]) -> Any:
        return self.history.pop(name)

    def free_blocks(self, name: str, asked: Mapping[str, Any]) -> Any:
        self.history.return_popped(asked["block_ids"])
        return UNSAID

    def evict_blocks(self, name: str, asked: Mapping[str, Any]) -> Any:
        """Drop the names of blocks, wherever these are (KV-POOL-10)."""
        for block in asked["block_ids"]:
            self.history.blocks.forget(block)
        return UNSAID

    def withdraw(self, name: str, asked: Mapping[str, Any]) -> Any:
        """Drop the names of what did not run (KV-MGR-23)."""
        return self.history.withdraw(name, asked["num_computed_tokens"])

    def reset_prefix_cache(self, name: str, asked: Mapping[str, Any]) -> Any:
        return self.history.reset()

    def new_step_starts(self, name: str, asked: Mapping[str, Any]) -> Any:
        """Make states readable (KV-MAMBA-2)."""
        self.history.of_this_step = [set() for _ in self.history.spans]
        return UNSAID

    def take_new_block_ids(self, name: str, asked: Mapping[str, Any]) -> Any:
        taken = [block for blocks in self.history.to_zero for block in blocks]
        self.history.to_zero = [[] for _ in self.history.spans]
        return taken

    def get_num_common_prefix_blocks(self, name: str, asked: Mapping[str, Any]) -> Any:
        if not self.config.enable_caching:
            return [0] * len(self.history.spans)
        return [self.history.common_prefix(name, span) for span in self.history.spans]

    def get_num_blocks_to_allocate(self, name: str, asked: Mapping[str, Any]) -> Any:
        return need_now(self.history, name, asked)

    def get_block_ids(self, name: str, asked: Mapping[str, Any]) -> Any:
        """Return the lists, and their blocks that are not cached."""
        life = self.history.lives.get(name)
        lists = [[] if life is None else life.held(span) for span in self.history.spans]
        names = self.history.blocks.names()
        unhashed = [
            [block for block in blocks if block and not names.get(block)] for blocks in lists
        ]
        return {"blocks": lists, "unhashed": unhashed}


UNSAID = object()
"""The history has nothing to say about the answer."""
TOLD: Mapping[str, Callable[[OverTime, str, Mapping[str, Any]], Any]] = MappingProxyType(
    {name: each for name, each in vars(OverTime).items() if name in NAMES}
)
"""Operations by name."""
