"""The host tier of kvfast is the reference's, call by call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest

import kvfast
import kvref
from kvcheck.mistakes import Mistake
from kvcheck.rules.directed import EXAMPLES
from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvalidArgumentError
from kvspec.interface import Implementation
from kvspec.request import Request, RequestInput
from kvspec.specs import FullAttentionSpec, LayerSpec, MambaSpec, SlidingWindowSpec
from kvspec.tier import Tier, TieredImplementation
from tests.device.mistakes import planted
from tests.kills.directed import finds
from tests.source import ROOT

FULL = FullAttentionSpec(4, 1, 1, "float16")
LONG = FullAttentionSpec(8, 1, 1, "float16")
WINDOW = SlidingWindowSpec(4, 1, 1, "float16", sliding_window=6)
STATE = MambaSpec(8, ((3,),), ("float16",), mamba_cache_mode="align")
GROUPS: tuple[tuple[LayerSpec, ...], ...] = (
    *((FULL,), (WINDOW,), (FULL, WINDOW), (LONG, WINDOW)),
    *((STATE,), (FULL, STATE), (LONG, WINDOW, replace(STATE, mamba_cache_mode="all"))),
)
NUM_BLOCKS = 12


class DisagreementError(AssertionError):
    """Two tiers that differ, or one that changed in an illegal call."""


def config_of(specs: Sequence[LayerSpec]) -> ManagerConfig:
    groups = tuple(KVCacheGroup((f"layer.{i}",), spec) for i, spec in enumerate(specs))
    cache = KVCacheConfig(NUM_BLOCKS, groups)
    return ManagerConfig(cache, 64, max_num_batched_tokens=16, hash_seed="tier")


def requests_of(config: ManagerConfig, *texts: Sequence[int]) -> list[Request]:
    """Make a request for each text."""
    reference = kvref.implementation()
    manager = reference.create(config)
    return [
        reference.make_request(manager, RequestInput(f"r{i}", text)) for i, text in enumerate(texts)
    ]


def tier_of(implementation: Implementation, config: ManagerConfig, num_blocks: int) -> Tier:
    """Make an empty tier."""
    if not isinstance(implementation, TieredImplementation):
        raise TypeError(f"{implementation.capabilities.name} has no tier")
    return implementation.make_tier(implementation.create(config), num_blocks)


class Player:
    """Random calls; `counts` says how often each kind of call had which kind of outcome."""

    def __init__(self, config: ManagerConfig, made: Sequence[Tier], random: Random) -> None:
        self.config, self.tiers, self.random = config, made, random
        beginning = [random.randrange(9) for _ in range(40)]
        lengths = [random.randint(1, 40) for _ in range(4)]
        texts = [beginning[:length] for length in lengths]
        texts += [[*beginning[: length // 2], 9] * 2 for length in lengths[:2]]
        self.requests = requests_of(config, *texts)
        resolved = kvref.implementation().create(config).config
        self.alignment = resolved.scheduler_block_size_tokens or 1
        self.counts: Counter[str] = Counter()

    def same(self, name: str, *given: object) -> object:
        """Return the common result of a call (None for an error, which changes nothing)."""
        outcomes: list[tuple[str, object]] = []
        for tier in self.tiers:
            before = tier.snapshot()
            try:
                outcomes.append(("answered", getattr(tier, name)(*given)))
            except InvalidArgumentError as error:
                outcomes.append(("refused", error.field))
                if tier.snapshot() != before:
                    raise DisagreementError(f"{name} was refused and changed something") from error
        states = [tier.snapshot() for tier in self.tiers]
        if any(one != outcomes[0] for one in outcomes) or any(one != states[0] for one in states):
            raise DisagreementError(f"{name}: {outcomes}, {states}")
        kind, answer = outcomes[0]
        self.counts[f"{name} {kind}" + (" something" if answer else "")] += 1
        return answer if kind == "answered" else None

    def play(self, num_calls: int) -> None:
        """Make random calls."""
        for _ in range(num_calls):
            self.call()

    def call(self) -> None:
        """Make a random call."""
        random = self.random
        request = random.choice(self.requests)
        local = random.randint(0, request.num_tokens // self.alignment) * self.alignment
        local += random.random() < 0.03
        blocks = random.sample(range(1, NUM_BLOCKS), random.randint(0, 4))
        if random.random() < 0.03:
            blocks.append(random.choice([0, -1, NUM_BLOCKS]))
        match random.randrange(10):
            case 0 | 1 | 2:
                self.compute(request)
            case 3 | 4:
                self.same("taken", blocks)
            case 5 | 6:
                external = self.same("lookup", request, local)
                if random.random() < 0.1:
                    external = random.choice([0, self.alignment, 3, 2 * self.alignment])
                if external:
                    self.same("hold", request, local, external)
            case 7:
                self.load(request)
            case 8:
                self.same("drop", request)
            case _:
                if random.random() < 0.3:
                    self.same("forget", blocks)
                elif random.random() < 0.2:
                    self.same("reset")

    def compute(self, request: Request) -> None:
        """Compute the end of a request in each group, now and then more than it has."""
        length = self.random.randint(0, request.num_tokens)
        blocks = self.random.sample(range(1, NUM_BLOCKS), NUM_BLOCKS - 1)
        for group, each in enumerate(self.config.kv_cache.groups):
            first, end = length // each.spec.block_size, request.num_tokens // each.spec.block_size
            given = [blocks.pop() for _ in range(min(end - first, len(blocks)))]
            if given and self.random.random() < 0.3:
                given[0] = 0
            given += blocks[:1] * (self.random.random() < 0.05)
            self.same("computed", request, group, first, given)

    def load(self, request: Request) -> None:
        """Load into lists of random blocks; now and then one is missing."""
        lists = []
        for group in self.config.kv_cache.groups:
            ids = [self.random.randint(1, NUM_BLOCKS - 1) for _ in range(10)]
            if self.random.random() < 0.1:
                ids[self.random.randrange(10)] = 0
            lists.append(ids[: request.num_tokens // group.spec.block_size])
        self.same("load", request, KVCacheBlocks(tuple(lists)))


EVERY_OUTCOME = {
    f"{name} {outcome}"
    for name, outcomes in {
        "computed": ("answered", "refused something"),
        "taken": ("answered", "answered something", "refused something"),
        "lookup": ("answered", "answered something", "refused something"),
        "hold": ("answered", "refused something"),
        "load": ("answered something", "refused something"),
        "drop": ("answered",),
        "forget": ("answered", "refused something"),
        "reset": ("answered", "refused something"),
    }.items()
    for outcome in outcomes
}


def played(num_runs: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for seed in range(num_runs):
        random = Random(seed)
        config = config_of(GROUPS[seed % len(GROUPS)])
        num_blocks = random.choice([1, 3, 5, 9])
        reference = tier_of(kvref.implementation(), config, num_blocks)
        other = tier_of(kvfast.implementation(), config, num_blocks)
        player = Player(config, [reference, other], random)
        player.play(120)
        counts += player.counts
    return counts


@pytest.mark.rule("KV-TIER-1", "KV-TIER-2", "KV-TIER-3", "KV-TIER-4", "KV-TIER-5")
@pytest.mark.rule("KV-TIER-6", "KV-TIER-7", "KV-TIER-8")
def test_both_tiers_answer_alike_and_every_kind_of_outcome_occurs() -> None:
    counts = played(80)
    assert set(counts) == EVERY_OUTCOME


MISTAKES = planted(ROOT / "tests/tier/planted/tier.diff")


@pytest.mark.rule("KV-TIER-1", "KV-TIER-2", "KV-TIER-3", "KV-TIER-4", "KV-TIER-5")
@pytest.mark.rule("KV-TIER-6", "KV-TIER-7", "KV-TIER-8")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda one: str(one.id))
def test_a_mistake_is_found_by_the_examples_and_beside_the_reference(mistake: Mistake) -> None:
    about = [each for each in EXAMPLES if each.rules[0].startswith("KV-TIER-")]
    with mistake.make():
        assert any(finds(check, kvfast.implementation()) for check in about)
        with pytest.raises((DisagreementError, KeyError)):
            played(40)


@pytest.mark.deep
def test_both_tiers_answer_alike_for_long() -> None:
    played(5000)
