"""What engines do between whole steps: hold blocks, walk the queue, take back tokens they keep.

`Following` makes whole steps as the engine it comes from; where the configuration says that hashes
are given, its requests are followed ones (KV-REQ-6), and grow by `follow`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kvcheck.rules.batch_sides import Side
from kvcheck.rules.random_batches import Engine
from kvspec.batched import StepPlan
from kvspec.blocks import BlockFacts
from kvspec.errors import KVSpecError

LONG = 33
"""Blocks that are held at once, at the most."""


class Following(Engine):
    """`held`: the blocks that it holds."""

    is_small = True
    """Whether calls that are steps of one kind, plans at most, are made, too."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.held: list[int] = []

    def note(self, **options: object) -> None:
        """Count those that are there."""
        self.drew.update(name for name, value in options.items() if value)

    def plan(self) -> StepPlan:
        """The plan; before it, what is done between steps."""
        self.between_steps()
        return super().plan()

    def between_steps(self) -> None:
        """Now and then each."""
        if self.random.random() < 0.1:
            self.hold()
        if self.held and self.random.random() < 0.3:
            self.give_back()
        if self.kept and self.random.random() < 0.3:
            self.retell(self.some(self.handles, 0.4))
        if self.is_small and self.random.random() < 0.3:
            self.short_step(self.random.choice(("admit", "decode", "free", "preempt")))
        if self.handles and self.random.random() < 0.3:
            self.ask(self.random.choice(self.handles))

    def short_step(self, name: str) -> None:
        """A step of entries of one kind, by the call that is named after it (KV-BATCH-1)."""
        idle, running = self.standing()
        handles = self.some(idle if name == "admit" else running, 0.5)
        arguments: list[Any] = [handles]
        if name == "decode":
            going = {handle: self.next_tokens(handle) for handle in handles}
            handles = [handle for handle in handles if going[handle]]
            arguments = [handles, [going[handle] for handle in handles]]
        elif name == "admit":
            arguments.append(self.random.choice((1, 7, 60)))

        def call(side: Side) -> list[int]:
            result = getattr(side.batched, name)(*arguments)
            return list(result.num_scheduled_tokens) if result is not None else []

        granted = self.both("KV-BATCH-1", f"{name} of {handles}", call)
        if handles:
            self.both("KV-POL-18", "a hit counts", lambda side: note_hit(side, handles[0]))
        self.compare("KV-BATCH-1", f"after {name} of {handles}")
        for handle in handles if name in ("free", "preempt") else ():
            self.forget_rows(handle)
        for handle, number in zip(handles, granted, strict=False):
            if number:
                self.sample(handle)

    def answer(self, rule: str, what: str, call: Callable[[Side], Any]) -> Any:
        """The same answer or error of both; None for an error."""

        def told(side: Side) -> tuple[Any, ...]:
            try:
                return (call(side),)
            except KVSpecError as error:
                return type(error).__name__, getattr(error, "field", None)

        first = self.both(rule, what, told)
        return first[0] if len(first) == 1 else None

    def hold(self) -> None:
        """Any blocks: in use, cached or free, null, set aside, and one that does not exist."""
        num_blocks, random = self.config.kv_cache.num_blocks, self.random
        count = random.choice((1, 3, 3, LONG))
        blocks = [random.randrange(num_blocks) for _ in range(count)]
        if random.random() < 0.1:
            blocks.append(num_blocks)

        def held(side: Side) -> bool:
            side.manager.hold_blocks(blocks)
            return True

        for block in blocks[-2:]:
            self.look_at(block)
        if self.answer("KV-POOL-19", f"{blocks} held", held):
            self.held += blocks
            self.note(**{"blocks that are held": True})

    def look_at(self, block: int) -> None:
        """One block, and those behind it in the queue."""
        self.answer("KV-POOL-20", f"block {block}", lambda side: side.manager.get_block(block))
        self.answer(
            "KV-BATCH-15",
            f"free blocks behind {block}",
            lambda side: side.batched.next_free_blocks(3, after=block),
        )

    def give_back(self) -> None:
        """The last ones, the last first."""
        count = self.random.randint(1, len(self.held))
        given = self.held[-count:][::-1]
        del self.held[-count:]
        self.both("KV-MGR-13", f"{given} returned", lambda side: side.manager.free_blocks(given))

    def retell(self, handles: list[int]) -> None:
        """Tokens that are not computed are taken back, and others come (KV-REQ-8)."""
        random = self.random
        before = [len(self.kept[handle].tokens) for handle in handles]
        for handle, length in zip(handles, before, strict=True):
            request = self.sides[0].batched.request_of(handle)
            least = max(1, min(request.num_computed_tokens, length))
            left = random.choice((length, least, random.randint(least, length)))
            self.kept[handle].cut(left)
        self.tell(handles, [[] for _ in handles], keeps_prompts=False)
        more = []
        for handle in handles:
            room = self.config.max_model_len_tokens - len(self.kept[handle].tokens)
            more.append(self.tokens(random.randint(0, min(5, room))))
        self.tell(handles, more, keeps_prompts=random.random() < 0.5)
        after = [len(self.kept[handle].tokens) for handle in handles]
        fewer = any(old > new for old, new in zip(before, after, strict=True))
        self.note(**{"followed requests": bool(handles), "tokens taken back": fewer})

    def tell(self, handles: list[int], more: list[list[int]], *, keeps_prompts: bool) -> None:
        """All in one call, as arrays or one number, or one of them alone."""
        kept, random = [self.kept[handle] for handle in handles], self.random
        new = [each.extend(tokens) for each, tokens in zip(kept, more, strict=True)]
        lengths = [len(each.tokens) for each in kept]
        prompts: list[int] | int | None = None
        if not keeps_prompts:
            prompts = random.choice((1, lengths, [random.randint(1, n) for n in lengths]))
        numbers = lengths[0] if len(set(lengths)) == 1 and random.random() < 0.5 else lengths
        kind = random.choice((list, tuple))
        hashes = kind(block_hash for each in new for block_hash in each)
        if len(handles) == 1 and random.random() < 0.5:
            prompt = prompts if isinstance(prompts, int) or prompts is None else prompts[0]
            told = (lengths[0], hashes)
            self.alone("KV-REQ-7", "follow", handles[0], *told, num_prompt_tokens=prompt)
        else:
            self.both(
                "KV-BATCH-14",
                "following",
                lambda side: side.batched.follow(
                    handles, numbers, hashes, num_prompt_tokens=prompts
                ),
            )
        self.both("KV-REQ-7", "the requests", lambda side: seen(side, handles))

    def try_broken(self, plan: StepPlan) -> None:
        """Also: what is told wrongly."""
        super().try_broken(plan)
        handles = self.some(self.handles, 0.5)
        if not self.kept or not handles:
            return
        lengths = [len(self.kept[handle].tokens) for handle in handles]
        last = [*lengths[:-1], lengths[-1] + self.random.randint(0, 5)]
        hashes = [b"1" * self.config.given_hash_bytes] * self.random.randint(0, 2)
        wrong: list[tuple[list[int], list[int], list[bytes], list[int] | None]] = [
            (handles, last, [*hashes, b"1234"], None),
            (handles, last, [*hashes, b"1" * self.config.given_hash_bytes] * 9, None),
            (handles, [*lengths, 7], [], None),
            (handles, [*lengths[:-1], 0], [], None),
            (handles, lengths, [], [*lengths[:-1], lengths[-1] + 1]),
            ([*handles, 999], [*lengths, 1], [], None),
        ]
        for each in wrong:
            self.answer("KV-BATCH-14", f"the error of {each}", partial(follow, told=each))
        self.answer("KV-REQ-6", "appending", lambda s: s.batched.append(handles[:1], [1]))
        longer = lengths[0] + self.kept[handles[0]].block_size
        self.alone("KV-REQ-6", "append_tokens", handles[0], [1])
        self.alone("KV-REQ-7", "follow", handles[0], longer if longer > lengths[0] else 0)
        self.both("KV-BATCH-2", "the requests", lambda side: seen(side, handles))

    def alone(self, rule: str, name: str, handle: int, *given: Any, **options: Any) -> None:
        """A call of the implementation about one request."""
        self.answer(
            rule,
            f"{name} of {handle}",
            lambda side: getattr(side.implementation, name)(
                side.manager, side.batched.request_of(handle), *given, **options
            ),
        )

    def ask(self, handle: int) -> None:
        """Single calls of the manager about one request, legal ones and others."""
        random, num_tokens = self.random, self.random.randint(0, 30)
        group = random.randrange(len(self.config.kv_cache.groups) + 1)
        calls: tuple[tuple[str, tuple[Any, ...]], ...] = (
            ("cache_partial_block", (group, num_tokens)),
            ("cache_partial_block", (group, num_tokens // 2 * 2)),
            ("cache_blocks", (num_tokens,)),
            ("withdraw", (num_tokens,)),
            ("find_longest_cache_hit_per_group", (num_tokens,)),
            ("get_unhashed_block_ids", ()),
        )
        name, arguments = random.choice(calls)
        self.answer(
            "KV-ERR-2",
            f"{name}{arguments} of {handle}",
            lambda s: getattr(s.manager, name)(s.batched.request_of(handle), *arguments),
        )

        def facts(side: Side) -> list[BlockFacts]:
            blocks = side.manager.get_blocks(side.batched.request_of(handle)).groups
            return [side.manager.get_block(block) for each in blocks for block in each[-2:]]

        self.both("KV-POOL-20", f"the facts of {handle}'s last blocks", facts)


def follow(side: Side, told: tuple[Any, Any, Any, Any]) -> None:
    """Handles, numbers of tokens, hashes and prompts."""
    handles, numbers, hashes, prompts = told
    side.batched.follow(handles, numbers, hashes, num_prompt_tokens=prompts)


def note_hit(side: Side, handle: int) -> None:
    """Count a look-up of the request."""
    side.manager.record_prefix_cache_stats(side.batched.request_of(handle), 1)


def seen(side: Side, handles: list[int]) -> list[tuple[object, ...]]:
    """What following changes of requests."""
    return [
        (each.num_tokens, each.num_prompt_tokens, list(each.block_hashes))
        for each in map(side.batched.request_of, handles)
    ]
