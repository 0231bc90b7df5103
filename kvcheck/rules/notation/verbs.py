"""The words of an example: a scheduler's moves, queries, calls by their own names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvcheck.play.features import FEATURE_OF_ARGUMENT
from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import NotationError, wrong
from kvcheck.rules.managed import Managed
from kvcheck.rules.notation.beside import OF_COPIES, Beside, Followed
from kvcheck.rules.notation.chunks import Chunks
from kvcheck.rules.notation.plans import OF_PLANS, Planning
from kvcheck.rules.notation.setting import setting_of
from kvcheck.rules.notation.steps import Steps
from kvcheck.rules.notation.trees import Trees
from kvcheck.rules.notation.values import CONSTANTS, Block, Hash, Name, Reader, parted, tokens_of
from kvcheck.rules.notation.words import check_words, verbs_of
from kvspec.blocks import KVCacheBlocks
from kvspec.inside import CopyingManager
from kvspec.interface import Feature, KVCacheManager
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestStatus

ANSWERS_WITH_BLOCKS = frozenset(
    {"blocks", "pop_blocks_for_free", "take_new_block_ids", "get_unhashed_block_ids", "run"}
)
"""Calls that return block ids: compared at level identity, null or not below it."""

ROOMY_TOKENS = "ABCDEFGHIJKLMNOPQRST"
"""Of a request whose tokens do not matter: `new r`."""
ASKED = """
queue references cached cached_ids keys lookup covered written popped reserved counts has_taken
ranks step_keys entries need own_hits take_events num_free_blocks take_new_block_ids
get_unhashed_block_ids make_prefix_cache_stats get_num_common_prefix_blocks take_residency_samples
"""
QUESTIONS = frozenset(ASKED.split())
"""Lines left out on their own if the subject lacks them: the others are still played."""


class Verbs:
    """The managers and requests of an example. `asked`: members named by the current result."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.manager: Managed | None = None
        self.managers: dict[str, Managed] = {}
        self.requests: dict[str, Any] = {}
        self.lists: dict[str, list[list[int]]] = {}
        self.time_ns = 0
        self.steps: dict[int, Steps] = {}
        self.asked: list[str] = []
        self.planning = Planning(bench)
        self.beside = Beside(self)
        self.chunks, self.trees = Chunks(bench), Trees(bench)
        self.verbs = verbs_of(self, WORDS) | verbs_of(self.chunks) | verbs_of(self.trees)
        self.verbs |= verbs_of(self.planning, OF_PLANS) | verbs_of(self.beside, OF_COPIES)
        self.verbs |= verbs_of(Followed(self))

    @property
    def on(self) -> Managed:
        if self.manager is None:
            raise NotationError("an example begins with `pool`")
        return self.manager

    def drawn(self) -> str:
        """Return the state in a few lines; "" before there is any."""
        return self.trees.drawn() if self.manager is None else drawn(self.on, self.requests)

    def begin(self, reader: Reader) -> None:
        """Make a manager; with a name, `pool other 6`, in addition to the existing ones."""
        reader.take("pool")
        kind, word = reader.peek()
        name = reader.take() if kind == "name" and word not in CONSTANTS else ""
        made = setting_of(self.bench, reader)
        clock = (lambda: self.time_ns) if made.has_clock else None
        self.manager = self.bench.create(
            made.config,
            clock,
            check_invariants=made.check_invariants,
            hashes_matter=made.hashes_matter,
        )
        if not name:
            self.managers, self.requests, self.lists, self.steps = {}, {}, {}, {}
            self.beside.tier = None
        self.managers[name or "pool"] = self.manager

    def call(self, verb: str, words: Sequence[Any]) -> Any:
        """Make one call: a word of the notation, or a call of the manager by its own name."""
        name, _, member = verb.partition(".")
        if name == "config" and member:
            return getattr(self.on.config, member)
        if member and name in self.requests:
            return getattr(self.requests[name], member)
        bare, members = parted(words)
        if verb in self.verbs:
            check_words(verb, self.verbs[verb], *bare, **members)
            return self.verbs[verb](*bare, **members)
        self._remember(verb, bare)
        given = [self.argument(value) for value in bare]
        named = {name: self.argument(value, name) for name, value in members.items()}
        called = getattr(KVCacheManager, verb, getattr(CopyingManager, verb, None))
        if called is None:
            raise NotationError(f"no call: {verb}")
        self._need_unequal(named.get("new_computed_blocks"))
        if isinstance(called, property):
            return getattr(self.on, verb)
        check_words(verb, getattr(Managed, verb, called), self.on, *given, **named)
        return getattr(self.on, verb)(*given, **named)

    def _remember(self, verb: str, words: Sequence[Any]) -> None:
        """Keep a request's lists before they are dropped, so that `a[1]` still names its block."""
        if verb in ("free", "pop_blocks_for_free") and isinstance(words[0], Name):
            name = words[0].word
            if name in self.requests and any(self.on.lists(self.requests[name])):
                self.lists[name] = self.on.lists(self.requests[name])

    def _need_unequal(self, hits: Any) -> None:
        """Leave the example out where hit lists cover unequal tokens, which no subject supports."""
        groups = self.on.config.kv_cache.groups
        if isinstance(hits, KVCacheBlocks) and len(hits.groups) == len(groups) > 1:
            pairs = zip(hits.groups, groups, strict=True)
            if len({len(blocks) * group.spec.block_size for blocks, group in pairs}) > 1:
                self.bench.need(Feature.UNEQUAL_HITS)

    # Words.

    def argument(self, value: Any, name: str = "") -> Any:
        """Return the argument that a word means in a call; a list of lists of hits as blocks."""
        found = self.resolve(value)
        if isinstance(found, Name):
            return self.requests.get(found.word, found.word)
        if isinstance(found, list):
            found = [self.argument(each) for each in found]
        is_of_hits = name == "new_computed_blocks" and isinstance(found, list) and found
        return KVCacheBlocks(found) if is_of_hits else found

    def resolve(self, value: Any) -> Any:
        """Return the block id of `a[1]`, the hash `a#0`, the key `a#0/1`; others unchanged."""
        if isinstance(value, Block):
            return self.entries(value.request, value.group)[value.index]
        if isinstance(value, Hash):
            if value.index < 0:
                raise NotationError(f"no hash {value.index}")
            found = bytes(self.requests[value.request].block_hashes[value.index])
            return found if value.group is None else found + value.group.to_bytes(4, "big")
        if isinstance(value, Name) and "." in value.word:
            request, _, member = value.word.partition(".")
            return getattr(self.requests[request], member)
        return value

    def entries(self, request: str, group: int = 0) -> list[int]:
        """Return the request's list, or the last that it had."""
        lists = self.on.lists(self.requests[request])
        return (lists if any(lists) else self.lists.get(request, lists))[group]

    def request(self, name: Name) -> Any:
        if not isinstance(name, Name) or name.word not in self.requests:
            raise NotationError(f"no request: {getattr(name, 'word', name)}")
        return self.requests[name.word]

    # Words of the notation: a scheduler's calls.

    def tokens(self, words: Sequence[Any]) -> list[Any]:
        """Return the tokens of `"ab."`, by the blocks of group 0."""
        groups = self.on.config.kv_cache.groups
        return tokens_of(_flat(words), groups[0].spec.block_size if groups else 1)

    def do_new(self, name: Name, *tokens: Any, **content: Any) -> None:
        """Make a request of these prompt tokens; without any, of twenty blocks.

        `lora`: name, or name, id and path. `items`: identifier, offset, length each. `embeddings`:
        the bytes as hex, and how many of them a token has.
        """
        if "lora" in content:
            given = content["lora"]
            word, *number = given if isinstance(given, list) else [given]
            content["lora"] = LoRA(word, *(number or [1]))
        if "items" in content:
            content["multimodal"] = tuple(MultimodalItem(*item) for item in content.pop("items"))
        if "embeddings" in content:
            data, bytes_per_token = content.pop("embeddings")
            embeddings = PromptEmbeddings(bytes.fromhex(data), bytes_per_token)
            content["prompt_embeddings"] = embeddings
        made = self.on.request(name.word, self.tokens(tokens or (ROOMY_TOKENS,)), **content)
        self.requests[name.word] = made

    def do_start(self, name: Name, *tokens: Any, **content: Any) -> None:
        self.do_new(name, *tokens, **content)
        if self.on.admit(self.request(name)) is None:
            raise wrong("the answer", "blocks", None)

    def do_at(self, time_ns: int) -> None:
        self.time_ns = time_ns

    def do_preempt(self, name: Name) -> None:
        self._remember("free", [name])
        self.on.preempt(self.request(name))

    def do_next_step(self) -> Any:
        """Take the copies of the step, return what they held, and start the next step."""
        copies = self.on.take_block_copies()
        self.on.free_blocks(copies.retained)
        self.on.new_step_starts()
        return copies

    def do_set(self, name: Name, **members: Any) -> None:
        for member, value in members.items():
            if member in FEATURE_OF_ARGUMENT:
                self.bench.need(FEATURE_OF_ARGUMENT[member])
            word = value.word if isinstance(value, Name) else value
            given = RequestStatus(word) if member == "status" else self.argument(value)
            setattr(self.request(name), member, given)

    def do_keep(self, name: Name, *positions: Any, group: int = 0) -> None:
        """Evict all blocks of the request's list but those at these positions."""
        blocks = self.entries(name.word, group)
        kept = set(_flat(positions))
        if not kept <= set(range(len(blocks))):
            raise NotationError(f"no such places: {name.word} has {len(blocks)} blocks")
        self.on.evict_blocks([block for i, block in enumerate(blocks) if block and i not in kept])

    def do_clone(self, name: Name) -> None:
        """Make a copy; `on` switches to it and, by the name `pool`, back."""
        self.managers[name.word] = self.on.clone()

    def do_restore(self, name: Name, **members: Any) -> None:
        changed = {key: tupled(self.argument(value)) for key, value in members.items()}
        snapshot = self.on.snapshot()
        made = replace(snapshot, **changed) if changed else snapshot
        self.managers[name.word] = self.bench.restore(self.on.config, made)

    def do_save(self, name: Name) -> None:
        """Save this manager to a file and load another from it."""
        self.managers[name.word] = self.bench.through_file(self.on)

    def do_beside(self, name: Name) -> None:
        """Give the current manager a second name, whose whole steps another batch makes."""
        self.managers[name.word] = other = self.on.copy_of(self.on.real)
        self.on.is_shared = other.is_shared = True

    def do_on(self, name: Name) -> None:
        self.manager = self.managers[name.word]

    # Whole steps.

    @property
    def in_steps(self) -> Steps:
        if id(self.on) not in self.steps:
            self.steps[id(self.on)] = Steps(self.bench, self.on, self.requests)
        return self.steps[id(self.on)]

    def do_own_hits(self, name: Name, limit: int | None = None) -> Any:
        """Return each group's own hit, in tokens, up to the given length."""
        request = self.request(name)
        longest = request.num_tokens - 1 if limit is None else limit
        found = self.on.find_longest_cache_hit_per_group(request, longest)
        return list(found.hit_lengths_tokens)


WORDS: Mapping[str, Callable[..., Any]] = {
    # A scheduler's calls, and whole steps.
    "append": lambda v, name, *tokens: v.on.append(v.request(name), v.tokens(tokens)),
    "admit": lambda v, name, num_new_tokens=None, **members: v.on.admit(
        v.request(name), num_new_tokens, **members
    ),
    "run": lambda v, name, num_new_tokens=1, **members: v.on.run(
        v.request(name), num_new_tokens, **members
    ),
    "register": lambda v, *names: [v.in_steps.handle(name) for name in names],
    "step": lambda v, **members: v.in_steps.step(members, v.asked),
    "take_deltas": lambda v, num_rows: v.in_steps.take_deltas(num_rows),
    "batch": lambda v, call, *values, **members: v.in_steps.call(call.word, values, members),
    # Queries; of the state those that are not a call.
    "hit": lambda v, name: v.on.get_computed_blocks(v.request(name)),
    "look_up": lambda v, name: v.on.look_up(v.request(name)),
    "blocks": lambda v, name: v.on.lists(v.request(name)),
    "need": lambda v, name, num_tokens, **members: v.on.need(
        v.request(name), num_tokens, **members
    ),
    "queue": lambda v: v.on.queue(),
    "references": lambda v: [[block, count] for block, count in v.on.references().items()],
    "ranks": lambda v: [[b, rank] for b, rank in enumerate(v.on.snapshot().ranks) if rank],
    "cached": lambda v, name, group=0: v.on.cached_positions(v.request(name), group),
    "cached_ids": lambda v: sorted(v.on.cached()),
    "keys": lambda v, block: v.on.snapshot().block_keys[v.resolve(block)],
    "lookup": lambda v, key: v.on.snapshot().lookup_order.get(v.resolve(key), ()),
    "covered": lambda v, block: v.on.snapshot().covered_tokens[v.resolve(block)],
    "written": lambda v, block: v.on.snapshot().written_from.get(v.resolve(block)),
    "popped": lambda v: v.on.snapshot().popped_blocks,
    "reserved": lambda v: v.on.snapshot().reserved_blocks,
    "counts": lambda v, name: list(v.on.counts(v.request(name))),
    "has_taken": lambda v, name, group=0: v.on.has_taken_blocks(v.request(name), group),
    "step_keys": lambda v: sorted(key for keys in v.on.snapshot().step_keys for key in keys),
    "entries": lambda v: list(v.on.snapshot().requests),
}
"""Words that are one call of a manager, as `Managed` has it, of its steps, or a query."""


def _flat(values: Sequence[Any]) -> list[Any]:
    """Return single values and lists as one list."""
    found: list[Any] = []
    for value in values:
        found += value if isinstance(value, list) else [value]
    return found


def tupled(value: Any) -> Any:
    """Return lists as tuples, as in a snapshot."""
    return tuple(map(tupled, value)) if isinstance(value, list) else value


SHOWN = 24
"""Most blocks shown of a list or of the queue."""


def drawn(manager: Managed, requests: Mapping[str, Any]) -> str:
    """Return queue and block lists, a line each; cached blocks are marked with `*`."""
    has_snapshot = Feature.SNAPSHOT in manager.subject.capabilities.features
    cached = manager.cached() if has_snapshot else set()
    lines = []
    for name, request in requests.items():
        for group, blocks in enumerate(manager.lists(request)):
            where = f"{name}, group {group}" if len(manager.config.kv_cache.groups) > 1 else name
            computed = f"{request.num_computed_tokens} of {request.num_tokens} tokens computed"
            lines.append(f"{where:<12} {_row(blocks, cached)}   {computed}")
    if has_snapshot:
        lines.append(f"{'free queue':<12} {_row(manager.queue(), cached)}")
    else:
        lines.append(f"{'free':<12} {manager.num_free_blocks} blocks")
    return "\n".join(lines)


def _row(blocks: list[int], cached: set[int]) -> str:
    words = [f"{b or '-'}{'*' if b in cached else ''}" for b in blocks[:SHOWN]]
    more = [f"… {len(blocks) - SHOWN} more"] if len(blocks) > SHOWN else []
    return f"[{' '.join(words + more)}]"
