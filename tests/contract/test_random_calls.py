"""Properties of hashes, events, needs and copies, for any content and any calls."""

from __future__ import annotations

from collections import Counter
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcheck.rules.bench import Bench
from kvcheck.rules.digests import Value, encode, hashes_of, sha256
from kvcheck.rules.specs import chunked, full, mamba, sliding
from kvspec.audit import AuditedManager
from kvspec.events import BlockRemoved, BlockStored
from kvspec.policy import Policy
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings
from tests.contract.player import CONFIGS, Player, Step, steps

BOUNDARIES = (0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1)
"""Both sides of each length at which the encoding of an int grows, and the ends of the range."""


@pytest.mark.rule("KV-MGR-18")
@given(held=st.integers(0, 12), num_tokens=st.integers(1, 40), caching=st.booleans())
@settings(max_examples=40)
def test_the_need_is_pure_and_exact(
    bench: Bench, held: int, num_tokens: int, caching: bool
) -> None:
    """Asking changes nothing, and an allocation up to as many slots takes exactly the answer."""
    manager = bench.manager(12, enable_caching=caching)
    request = manager.request("r", range(50))
    if held:
        manager.admit(request, held)
    before = manager.snapshot()
    need = manager.get_num_blocks_to_allocate(
        request, num_tokens=num_tokens, total_computed_tokens=held, num_tokens_main_model=num_tokens
    )
    assert manager.snapshot() == before
    free = manager.num_free_blocks
    if num_tokens > held:
        assert manager.run(request, num_tokens - held) is not None
        assert free - manager.num_free_blocks == need
    else:
        assert need == 0


@pytest.mark.on("kvref", "kvfast")
@pytest.mark.rule("KV-EVT-7", "KV-EVT-4", "KV-EVT-5")
@pytest.mark.parametrize("config", CONFIGS)
@given(program=steps)
@settings(max_examples=25)
def test_the_fold_always_equals_the_cached_keys(
    bench: Bench, config: dict[str, Any], program: list[Step]
) -> None:
    """Whatever was called, the events so far say exactly what is cached, and how often."""
    manager = bench.manager(12, **config, enable_events=True)
    told: Counter[tuple[bytes | int, int]] = Counter()
    player = Player(manager)
    for step in program:
        ((_, seen),) = player.play([step])
        for event in seen.events:
            if isinstance(event, BlockStored):
                told.update((block_hash, event.group) for block_hash in event.block_hashes)
            elif isinstance(event, BlockRemoved):
                told.subtract((block_hash, event.group) for block_hash in event.block_hashes)
            else:
                told.clear()
        carried = Counter(
            (key[:-4], int.from_bytes(key[-4:], "big"))
            for keys in seen.snapshot.block_keys
            for key in keys
        )
        assert {key: count for key, count in told.items() if count} == carried


@pytest.mark.rule("KV-POL-9", "KV-POOL-15")
@given(
    where=st.sampled_from(("front", "back")),
    per=st.sampled_from(("copy", "last_copy")),
    is_hit=st.booleans(),
    steps=st.lists(st.integers(1, 9), min_size=1, max_size=6),
)
def test_no_policy_touches_conservation(
    bench: Bench, where: str, per: str, is_hit: bool, steps: list[int]
) -> None:
    """Free blocks and those in use make num_blocks - 1 after every step, in a mixture of groups."""
    policy = Policy(
        unhashed_freed_to=where, removed_event_per=per, chunked_null_prefix_is_hit=is_hit
    )
    specs = [full(4), sliding(4, 6), chunked(4, 8), mamba(4)]
    manager = bench.manager(80, specs=specs, policy=policy)
    request = manager.request("r", range(60))
    for number in steps:
        manager.new_step_starts()
        manager.run(request, number)
        in_use = {block for blocks in manager.lists(request) for block in blocks if block}
        assert manager.num_free_blocks + len(in_use) == 79
    manager.free(request)
    assert manager.num_free_blocks == 79


@pytest.mark.rule("KV-HASH-2")
@pytest.mark.parametrize("value", [*BOUNDARIES, -1, -24, -25, -256, -257])
def test_ints_are_encoded_as_a_cbor_library_does(value: int) -> None:
    """On both sides of every length boundary."""
    assert encode(value) == cbor2.dumps(value, canonical=True)


@pytest.mark.rule("KV-HASH-2")
@given(
    st.recursive(
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=30),
        max_leaves=40,
    )
)
@settings(max_examples=50)
def test_values_are_encoded_as_a_cbor_library_does(value: Value) -> None:
    """The encoder of these tests agrees with cbor2 on any value a hash may cover."""
    assert encode(value) == cbor2.dumps(value, canonical=True)


@pytest.mark.rule("KV-HASH-1", "KV-HASH-4", "KV-HASH-10")
@given(
    tokens=st.lists(st.sampled_from(BOUNDARIES) | st.integers(0, 2**63 - 1), min_size=1),
    block_size=st.integers(1, 9),
    salt=st.none() | st.text(min_size=1, max_size=3),
)
@settings(max_examples=40)
def test_any_request_is_hashed_as_the_rule_says(
    bench: Bench, tokens: list[int], block_size: int, salt: str | None
) -> None:
    """The hashes of any tokens under any salt equal an independent computation."""
    manager = bench.manager(6, block_size)
    request = manager.request("r", tokens, cache_salt=salt)
    expected, parent = [], manager.none_hash
    for start in range(0, len(tokens) - block_size + 1, block_size):
        extra = [["cache_salt", salt]] if salt and start == 0 else None
        parent = sha256(parent, tokens[start : start + block_size], extra)
        expected.append(parent)
    assert list(request.block_hashes) == expected


names = st.sampled_from(["x", "lora", "mm", "cache_salt", "xlora"])


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """Extra keys for one block of four tokens, of few values, so that many are equal."""
    path = draw(st.none() | names)
    return {
        "cache_salt": draw(st.none() | names),
        "lora": draw(st.none() | names.map(lambda name: LoRA(name, 1, path))),
        "multimodal": draw(
            st.just(()) | st.tuples(names.map(lambda name: MultimodalItem(name, 0, 1)))
        ),
        "prompt_embeddings": draw(
            st.none() | st.binary(min_size=4, max_size=4).map(lambda b: PromptEmbeddings(b, 1))
        ),
    }


@pytest.mark.rule("KV-HASH-7", "KV-HASH-10")
@given(first=contents(), second=contents())
def test_any_two_contents_have_equal_hashes_only_if_they_are_equal(
    bench: Bench, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """Under the rules' own policy extra keys are read in one way only."""
    one = hashes_of(bench, [7] * 4, **first)
    other = hashes_of(bench, [7] * 4, **second)
    assert (one == other) == (first == second)


@pytest.mark.on("kvref", "kvfast")
@pytest.mark.rule("KV-MGR-20")
@pytest.mark.parametrize("config", CONFIGS)
@given(before=steps, after=steps)
@settings(max_examples=15)
def test_a_restored_manager_gives_every_later_answer(
    bench: Bench, config: dict[str, Any], before: list[Step], after: list[Step]
) -> None:
    """Random calls, a snapshot, a restored manager: the same calls on both answer the same."""
    original = bench.manager(12, **config, enable_events=True, log_stats=True, hash_seed=None)
    player = Player(original)
    player.play(before)
    restored = bench.restore(original.config, original.snapshot())
    assert restored.snapshot() == original.snapshot()
    other = player.on(restored)
    assert other.play(after) == player.play(after)


@pytest.mark.on("kvref", "kvfast")
@pytest.mark.rule("KV-MGR-20")
@pytest.mark.parametrize("config", CONFIGS)
@given(before=steps, after=steps)
@settings(max_examples=15)
def test_a_clone_gives_every_later_answer_and_disturbs_nobody(
    bench: Bench, config: dict[str, Any], before: list[Step], after: list[Step]
) -> None:
    """The clone answers as the original does later, which saw nothing of the clone's calls."""
    original = bench.manager(12, **config, enable_events=True, log_stats=True)
    player = Player(original)
    player.play(before)
    clone = original.clone()
    state = original.snapshot()
    answers = player.on(clone).play(after)
    assert original.snapshot() == state
    assert player.play(after) == answers


@pytest.mark.rule("KV-MGR-20")
@pytest.mark.parametrize("check", [True, False])
def test_a_clone_audits_itself_as_the_original_does(bench: Bench, check: bool) -> None:
    """An unaudited manager has an unaudited clone."""
    clone = bench.create(bench.config(), check_invariants=check).clone()
    assert isinstance(clone.real, AuditedManager) is check
