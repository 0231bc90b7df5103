"""KV-REQ, KV-HASH, KV-EVT, KV-BATCH: requests whose tokens and hashes the engine keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal
from kvcheck.rules.managed import Managed
from kvcheck.rules.specs import rswa
from kvcheck.rules.steps import Steps
from kvspec.errors import InvalidArgumentError
from kvspec.events import BlockRemoved, BlockStored, StoredRange
from kvspec.following import FollowedInput
from kvspec.interface import Feature
from kvspec.request import Request

SIZE_BYTES = 8
NAMES = "abcdefgh"


def hashes_of(names: Any) -> Any:
    """A hash for each letter; what is no text as it is."""
    if not isinstance(names, str):
        return names
    return [name.encode() + bytes(range(1, SIZE_BYTES)) for name in names]


class Engine:
    """A manager whose hashes are given, and what an engine tells it."""

    def __init__(self, bench: Bench, num_blocks: int = 8, *layers: Any, **options: Any) -> None:
        bench.need(Feature.GIVEN_HASHES)
        given = {"hash_function": f"given_{SIZE_BYTES}", **options}
        self.subject: Any = bench.subject
        self.manager: Managed = bench.manager(num_blocks, *layers, **given)

    def request(self, name: str, num_tokens: int, hashes: Any = "", **members: Any) -> Any:
        """A followed request; its prompt is all of it unless told otherwise."""
        given = {"num_prompt_tokens": num_tokens, "hashes": hashes_of(hashes), **members}
        return self.subject.make_followed(
            self.manager.real, FollowedInput(name, num_tokens, **given)
        )

    def follow(
        self, request: Request, num_tokens: Any, hashes: Any = "", prompt: Any = None
    ) -> None:
        """What changed; a text stands for the hashes of its letters."""
        told = hashes_of(hashes)
        self.subject.follow(self.manager.real, request, num_tokens, told, num_prompt_tokens=prompt)


@cases(8, 16, 32)
@example("KV-HASH-13", "KV-REQ-6", level=Level.IDENTITY)
def blocks_are_cached_under_the_hashes_that_are_given(bench: Bench, size_bytes: int) -> None:
    """Keys are those hashes with the group behind; whoever gives the same ones hits."""
    engine = Engine(bench, hash_function=f"given_{size_bytes}", hash_seed=None)
    manager = engine.manager
    given = [name.encode() + bytes(range(1, size_bytes)) for name in NAMES]
    a = engine.request("a", 9, hashes=given[:2])
    manager.admit(a)
    keys = [key + bytes(4) for key in given[:2]]
    equal(manager.snapshot().block_keys, ((), (keys[0],), (keys[1],), (), (), (), (), ()))
    equal(manager.none_hash, bytes(size_bytes))
    equal(manager.hit(engine.request("b", 9, hashes=given[:2])), [1, 2])
    equal(manager.hit(engine.request("c", 9, hashes=[given[0], given[2]])), [1])
    equal(manager.hit(engine.request("d", 9, hashes=given[2:4])), [])


@example("KV-REQ-6", "KV-HASH-4")
def a_followed_request_has_counts_and_no_tokens(bench: Bench) -> None:
    """9 tokens, 5 of them of the prompt, and the two hashes."""
    engine = Engine(bench)
    request = engine.request("a", 9, "ab", num_prompt_tokens=5)
    equal((request.request_id, request.num_tokens, request.num_prompt_tokens), ("a", 9, 5))
    equal(list(request.token_ids), [])
    equal(list(request.block_hashes), hashes_of("ab"))
    without = Engine(bench, enable_caching=False)
    equal(list(without.request("a", 9).block_hashes), [])


@cases(
    ({"num_tokens": 0}, "num_tokens"),
    ({"num_tokens": True}, "num_tokens"),
    ({"num_prompt_tokens": 0}, "num_prompt_tokens"),
    ({"num_prompt_tokens": 10}, "num_prompt_tokens"),
    ({"hashes": hashes_of("a")}, "hashes"),
    ({"hashes": hashes_of("abc")}, "hashes"),
    ({"hashes": {"a", "b"}}, "hashes"),
    ({"hashes": [b"a" * 8, b"b" * 7]}, "hashes[1]"),
    ({"hashes": ["a" * 8, b"b" * 8]}, "hashes[0]"),
    ({"request_id": ""}, "request_id"),
    ({"skip_reading_cache": 1}, "skip_reading_cache"),
    ({"reports_hits": 1}, "reports_hits"),
)
@example("KV-REQ-6", level=Level.SAFETY)
def a_followed_request_is_made_of_what_fits_together(
    bench: Bench, wrong: dict[str, Any], field: str
) -> None:
    engine = Engine(bench)
    usual = {"request_id": "a", "num_tokens": 9, "num_prompt_tokens": 9, "hashes": hashes_of("ab")}
    with engine.manager.refuses(InvalidArgumentError, field=field):
        engine.subject.make_followed(engine.manager.real, FollowedInput(**{**usual, **wrong}))


@cases(True, False)
@example("KV-REQ-6", level=Level.SAFETY)
def a_manager_has_requests_of_one_kind(bench: Bench, caches: bool) -> None:
    """Either it is given hashes or it computes them."""
    engine = Engine(bench, enable_caching=caches)
    other = bench.manager(enable_caching=caches)
    request = engine.request("a", 3)
    with engine.manager.refuses(InvalidArgumentError, field="manager"):
        engine.manager.request("b", [1, 2, 3])
    with other.refuses(InvalidArgumentError, field="manager"):
        engine.subject.make_followed(other.real, FollowedInput("b", 3, 3))
    with other.refuses(InvalidArgumentError, field="request"):
        other.allocate_slots(request, 3)
    with engine.manager.refuses(InvalidArgumentError, field="request"):
        engine.manager.allocate_slots(other.request("c", [1, 2, 3]), 3)
    with engine.manager.refuses(InvalidArgumentError, field="request"):
        engine.manager.append(request, [4])
    with other.refuses(InvalidArgumentError, field="request"):
        engine.subject.follow(other.real, other.request("d", [1, 2, 3]), 4)
    equal(request.num_tokens, 3)


@example("KV-REQ-7", level=Level.IDENTITY)
def following_appends_hashes_and_changes_no_manager(bench: Bench) -> None:
    """9 tokens, then 11 without a hash, then 12 with one; it is cached when it is computed."""
    engine = Engine(bench, enable_events=True)
    manager, request = engine.manager, engine.request("a", 9, "ab")
    manager.admit(request)
    before = manager.everything()
    engine.follow(request, 11)
    engine.follow(request, 12, "c", 10)
    equal((request.num_tokens, request.num_prompt_tokens), (12, 10))
    equal(list(request.block_hashes), hashes_of("abc"))
    equal(manager.snapshot(), before.snapshot)
    equal(manager.take_events(), ())
    manager.run(request, 3)
    equal(manager.cached(), {1, 2, 3})
    without = Engine(bench, enable_caching=False)
    uncached = without.request("a", 3)
    without.follow(uncached, 12)
    equal((uncached.num_tokens, list(uncached.block_hashes)), (12, []))


@cases(
    (11, "c", None, "hashes"),
    (12, "", None, "hashes"),
    (12, "cd", None, "hashes"),
    (12, [b"c" * 9], None, "hashes[0]"),
    (12, ["c" * 8], None, "hashes[0]"),
    (12, None, None, "hashes"),
    (16, [b"c" * 8, None], None, "hashes[1]"),
    (0, "", None, "num_tokens"),
    (11.0, "", None, "num_tokens"),
    (2**53, "", None, "num_tokens"),
    (11, "", 12, "num_prompt_tokens"),
    (11, "", 0, "num_prompt_tokens"),
    (4, "", None, "num_prompt_tokens"),
)
@example("KV-REQ-7", level=Level.SAFETY)
def what_contradicts_itself_is_refused(
    bench: Bench, num_tokens: Any, hashes: Any, prompt: Any, field: str
) -> None:
    """Of a request of 9 tokens, 5 of them of the prompt; it is as it was."""
    engine = Engine(bench)
    request = engine.request("a", 9, "ab", num_prompt_tokens=5)
    engine.manager.admit(request)
    with engine.manager.refuses(InvalidArgumentError, field=field):
        engine.follow(request, num_tokens, hashes, prompt)
    equal((request.num_tokens, request.num_prompt_tokens), (9, 5))
    equal(list(request.block_hashes), hashes_of("ab"))


@example("KV-REQ-8", level=Level.IDENTITY)
def a_shorter_request_drops_hashes_and_keeps_what_is_cached(bench: Bench) -> None:
    """12 tokens of which 8 are cached, then 9, then 12 with another third hash."""
    engine = Engine(bench)
    manager, request = engine.manager, engine.request("a", 12, "abc", num_prompt_tokens=8)
    manager.admit(request, 8)
    before = manager.snapshot()
    engine.follow(request, 9)
    equal(list(request.block_hashes), hashes_of("ab"))
    equal(manager.snapshot(), before)
    engine.follow(request, 12, "d", 12)
    equal(list(request.block_hashes), hashes_of("abd"))
    manager.run(request, 4)
    equal(manager.snapshot().block_keys[3], (hashes_of("d")[0] + bytes(4),))
    equal(manager.hit(engine.request("b", 13, "abd")), [1, 2, 3])
    equal(manager.hit(engine.request("c", 13, "abc")), [1, 2])


@example("KV-REQ-8", "KV-GRP-11", level=Level.IDENTITY)
def what_was_cached_is_not_cached_again_after_a_shorter_time(bench: Bench) -> None:
    """Two cached blocks stay under their first hashes, whatever is said of them later."""
    engine = Engine(bench)
    manager, request = engine.manager, engine.request("a", 8, "ab")
    manager.admit(request)
    before = manager.snapshot()
    engine.follow(request, 3, "", 3)
    equal(list(request.block_hashes), [])
    engine.follow(request, 9, "cd")
    request.num_computed_tokens = 3
    manager.run(request, 6)
    equal(manager.snapshot().block_keys, before.block_keys)
    equal(manager.counts(request), (2,))


@example("KV-RSWA-1", "KV-REQ-6")
def a_shorter_prompt_leaves_a_longer_gap(bench: Bench) -> None:
    """R-SWA keeps the prompt that is told last: of 15 tokens four blocks, of 5 two."""
    engine = Engine(bench, 10, rswa(4, 2))
    manager, request = engine.manager, engine.request("r", 15, "abc")
    manager.admit(request)
    engine.follow(request, 20, "de")
    manager.run(request, 5)
    engine.follow(request, 21, "", 5)
    manager.run(request)
    manager.same(manager.lists(request), [[1, 2, 0, 0, 5, 6]])


@example("KV-EVT-9", "KV-EVT-3")
def events_say_whose_tokens_they_are_about(bench: Bench) -> None:
    """The hashes are those of the time of the call, though the request is shorter when asked."""
    engine = Engine(bench, enable_events=True)
    manager, request = engine.manager, engine.request("r", 9, "ab", num_prompt_tokens=3)
    manager.admit(request)
    engine.follow(request, 12, "c")
    manager.run(request, 3)
    engine.follow(request, 3)
    first = manager.take_events()
    equal(first, (stored("ab", None, "r", 0, 2), stored("c", "b", "r", 2, 3)))


@example("KV-EVT-9", "KV-EVT-4", level=Level.IDENTITY)
def keys_that_were_given_are_removed_like_others(bench: Bench) -> None:
    """Evicting the first block names its hash."""
    engine = Engine(bench, enable_events=True)
    manager, request = engine.manager, engine.request("r", 9, "ab")
    manager.admit(request)
    manager.take_events()
    manager.evict_blocks([1])
    equal(manager.take_events(), (BlockRemoved(tuple(hashes_of("a")), "GPU", 0),))


def stored(hashes: str, parent: str | None, name: str, first: int, end: int) -> BlockStored:
    """The event of blocks that were all stored."""
    return BlockStored(
        block_hashes=tuple(hashes_of(hashes)),
        parent_block_hash=None if parent is None else hashes_of(parent)[0],
        token_ids=(),
        block_size_tokens=4,
        lora_id=None,
        lora_name=None,
        medium="GPU",
        extra_keys=None,
        group=0,
        spec_kind="full_attention",
        sliding_window_tokens=None,
        source=StoredRange(name, first, end, tuple(range(first, end))),
    )


class Batch(Engine):
    """Three registered requests of 7, 8 and 4 tokens."""

    def __init__(self, bench: Bench) -> None:
        self.steps = Steps(bench, hash_function=f"given_{SIZE_BYTES}")
        self.subject = bench.subject
        self.manager = self.steps.manager
        lengths, hashes = (7, 8, 4), ("a", "bc", "d")
        named = zip("pqr", lengths, hashes, strict=True)
        self.handles = [self.steps.batched.register(self.request(*each)) for each in named]

    def told(self) -> list[tuple[int, int, list[bytes]]]:
        """What is known of each request."""
        found: list[Any] = [self.steps.of(handle) for handle in self.handles]
        return [(r.num_tokens, r.num_prompt_tokens, list(r.block_hashes)) for r in found]


@cases(list, tuple)
@example("KV-BATCH-14", "KV-REQ-7")
def a_batch_follows_in_the_order_of_its_handles(bench: Bench, kind: Any) -> None:
    """The first gets e, the second none, the third f; then all are shorter."""
    bench.need(Feature.GIVEN_HASHES)
    batch = Batch(bench)
    batch.steps.batched.follow(batch.handles, [8, 9, 8], kind(hashes_of("ef")))
    after = [(8, 7, hashes_of("ae")), (9, 8, hashes_of("bc")), (8, 4, hashes_of("df"))]
    equal(batch.told(), after)
    batch.steps.batched.follow(batch.handles[::-1], 9, num_prompt_tokens=[1, 2, 3])
    equal([told[:2] for told in batch.told()], [(9, 3), (9, 2), (9, 1)])
    batch.steps.batched.follow(batch.handles[:1], 5, num_prompt_tokens=5)
    equal(batch.told()[0], (5, 5, hashes_of("a")))
    batch.steps.batched.follow(batch.handles, [1, 5, 6], num_prompt_tokens=1)
    equal(batch.told(), [(1, 1, []), (5, 1, hashes_of("b")), (6, 1, hashes_of("d"))])


@cases(
    ([8, 9, 8], "e", None, "hashes"),
    ([8, 9, 8], "efg", None, "hashes"),
    ([8, 9, 8], [b"e" * 8, b"f"], None, "hashes[1]"),
    ([8, 0, 8], "ef", None, "num_tokens[1]"),
    ([8, 9], "e", None, "num_tokens"),
    ([8, 7, 8], "ef", None, "num_prompt_tokens[1]"),
    ([8, 9, 8], "ef", [1, 2, 9], "num_prompt_tokens[2]"),
    ([8, 9, 8], "ef", [1, 2], "num_prompt_tokens"),
)
@example("KV-BATCH-14", level=Level.SAFETY)
def a_batch_that_contradicts_itself_changes_nothing(
    bench: Bench, num_tokens: Sequence[int], hashes: Any, prompts: Any, field: str
) -> None:
    bench.need(Feature.GIVEN_HASHES)
    batch = Batch(bench)
    before = batch.told()
    told = hashes_of(hashes)
    with batch.manager.refuses(InvalidArgumentError, field=field):
        batch.steps.batched.follow(batch.handles, num_tokens, told, num_prompt_tokens=prompts)
    equal(batch.told(), before)


@example("KV-BATCH-14", "KV-REQ-6", level=Level.SAFETY)
def a_batch_has_requests_of_one_kind(bench: Bench) -> None:
    """No tokens are appended where they are not kept; nobody follows where hashes are computed."""
    bench.need(Feature.GIVEN_HASHES)
    batch = Batch(bench)
    with batch.manager.refuses(InvalidArgumentError, field="handles[0]"):
        batch.steps.batched.append(batch.handles, [1, 2, 3])
    equal([told[0] for told in batch.told()], [7, 8, 4])
    steps = Steps(bench)
    handles = steps.register([1, 2, 3])
    with steps.manager.refuses(InvalidArgumentError, field="manager"):
        steps.batched.follow(handles, 4)
