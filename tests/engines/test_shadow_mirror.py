"""The shadow beside vLLM's manager: kvref in vLLM's place, so that no vLLM is needed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvcheck.adapters.vllm.expected import Expected, read_expected
from kvcheck.adapters.vllm.mirror import Mirror, ShadowDifferenceError
from kvcheck.adapters.vllm.shadowed import ShadowedManager, ShadowedPool
from kvcheck.discovery import find_implementation
from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvalidArgumentError, KVSpecError
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec
from tests.commands import kvspec

CONFIG = ManagerConfig(
    KVCacheConfig(8, (KVCacheGroup(("0",), FullAttentionSpec(2, 1, 8, "float16")),)),
    max_model_len_tokens=16,
    scheduler_block_size_tokens=2,
    hash_seed="0",
)


class Stock:
    """The part of vLLM's manager that the scheduler calls here, on kvref."""

    def __init__(self, forgets_to_free: bool = False) -> None:
        self.kvref = find_implementation("kvref")
        self.manager = self.kvref.create(CONFIG)
        self.requests: dict[str, Any] = {}
        self.forgets_to_free = forgets_to_free
        self.coordinator = SimpleNamespace()
        self.block_pool = SimpleNamespace(get_num_free_blocks=lambda: self.manager.num_free_blocks)

    def mine(self, request: Any) -> Any:
        if request.request_id not in self.requests:
            given = RequestInput(request.request_id, request.all_token_ids)
            self.requests[request.request_id] = self.kvref.make_request(self.manager, given)
        mine = self.requests[request.request_id]
        mine.num_computed_tokens = request.num_computed_tokens
        return mine

    def get_computed_blocks(self, request: Any) -> tuple[Any, int]:
        hit = self.manager.get_computed_blocks(self.mine(request))
        return shown(hit.blocks), hit.hit_length_tokens

    def allocate_slots(
        self, request: Any, new: int, new_computed: int, hits: Any, **options: Any
    ) -> Any:
        ids = KVCacheBlocks(tuple([b.block_id for b in group] for group in hits.blocks))
        answer = self.manager.allocate_slots(
            self.mine(request),
            new,
            num_new_computed_tokens=new_computed,
            new_computed_blocks=None if ids.is_empty else ids,
            **options,
        )
        return None if answer is None else shown(answer)

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        """Cache nothing here."""

    def free(self, request: Any) -> None:
        if not self.forgets_to_free:
            self.manager.free(self.mine(request))


def shown(blocks: KVCacheBlocks) -> Any:
    return SimpleNamespace(
        blocks=tuple([SimpleNamespace(block_id=int(b)) for b in group] for group in blocks.groups)
    )


def request(name: str, tokens: list[int]) -> Any:
    return SimpleNamespace(
        request_id=name,
        all_token_ids=tokens,
        num_tokens=len(tokens),
        num_prompt_tokens=len(tokens),
        num_computed_tokens=0,
        num_preemptions=0,
        status=SimpleNamespace(name="WAITING"),
        block_hashes=[],
        prompt_embeds=None,
        lora_request=None,
        cache_salt=None,
        mm_features=[],
        skip_reading_prefix_cache=False,
        is_finished=lambda: True,
    )


def mirrored(report: Any = str, **options: Any) -> Mirror:
    return Mirror(find_implementation("kvref"), CONFIG, report, **options)


def followed(stock: Stock, mirror: Mirror) -> ShadowedManager:
    return ShadowedManager(stock, ShadowedPool(stock.block_pool, mirror), mirror)


def served(manager: ShadowedManager, name: str) -> None:
    one = request(name, [1, 2, 3, 4, 5])
    blocks, length = manager.get_computed_blocks(one)
    manager.allocate_slots(one, 5 - length, length, blocks)
    manager.free(one)


@pytest.mark.parametrize("name", ["kvref", "kvfast"])
def test_equal_managers_show_no_difference(name: str) -> None:
    mirror = Mirror(find_implementation(name), CONFIG, pytest.fail)
    manager = followed(Stock(), mirror)
    for number in range(6):
        served(manager, f"r{number}")
    assert mirror.difference is None
    assert mirror.num_calls == 18


@pytest.mark.parametrize("is_monitored", [True, False])
def test_the_first_difference_is_reported_with_a_record_that_others_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_monitored: bool
) -> None:
    """Keep a block too many in vLLM's manager; the record shows what is right."""
    monkeypatch.setenv("KVSPEC_SHADOW_RAISE", "1")
    monkeypatch.setenv("KVSPEC_SHADOW_RECORD", "1")
    said: list[str] = []
    mirror = mirrored(said.append, records=is_monitored)
    manager = followed(Stock(forgets_to_free=True), mirror)
    served(manager, "a")
    with pytest.raises(ShadowDifferenceError, match="allocate_slots of b: vLLM") as caught:
        served(manager, "b")
    assert len(said) == 1
    record = caught.value.record
    assert record is not None
    assert kvspec(tmp_path, "golden", str(record), "--impl", "kvfast").returncode == 0
    assert kvspec(tmp_path, "view", str(record), "-o", "page.html").returncode == 0


def test_the_shadow_goes_on_behind_a_known_difference(tmp_path: Path) -> None:
    """Continue from vLLM's state with the blocks not freed; the next difference is alike."""
    told = tmp_path / "known.toml"
    told.write_text('[[expected]]\ncall = "allocate_slots"\nsays = "shadow"\nreason = "keeps"\n')
    stock = Stock(forgets_to_free=True)
    known, state = read_expected(told), lambda popped, none_hash: stock.manager.snapshot()
    mirror = mirrored(pytest.fail, expected=known, state=state)
    manager = followed(stock, mirror)
    served(manager, "a")
    served(manager, "b")
    assert (mirror.difference, mirror.num_expected) == (None, {"keeps": 1})
    assert mirror.manager.num_free_blocks == stock.manager.num_free_blocks + 1
    served(manager, "c")
    assert (mirror.difference, mirror.num_expected) == (None, {"keeps": 2})


def test_a_known_difference_that_no_state_is_known_behind_ends_it(tmp_path: Path) -> None:
    mirror = mirrored(expected=[Expected("call", "vLLM", "known")])
    mirror.same("call", lambda: 1, 2)
    assert "expected, but vLLM's state cannot be followed" in str(mirror.difference)
    told = tmp_path / "known.toml"
    told.write_text("[[expected]]\ncall = 'look-up'\n")
    with pytest.raises(InvalidArgumentError, match=r"tables \[\[expected\]\]"):
        read_expected(told)
    with pytest.raises(InvalidArgumentError, match="a pattern"):
        Expected("call", "(", "known")


def test_a_call_that_the_contract_refuses_is_a_difference() -> None:
    mirror = mirrored()
    mirror.same("evict_blocks", lambda: mirror.manager.evict_blocks([-1]), None)
    assert mirror.difference is not None
    assert "kvref refuses: block id -1" in mirror.difference.said


def test_a_session_that_loses_a_token_that_was_seen_is_made_anew() -> None:
    mirror = mirrored(records=None)
    one = request("s", [1, 2, 3, 4, 5])
    first = mirror.current(one)
    assert (first.num_tokens, mirror.current(one)) == (5, first)
    one.all_token_ids[-1:] = [6, 7]
    one.num_tokens = 6
    second = mirror.current(one)
    assert list(second.token_ids) == [1, 2, 3, 4, 6, 7]
    one.num_prompt_tokens = 6  # what was sampled is of its prompt now
    assert mirror.current(one).num_prompt_tokens == 6
    assert mirror.current(one) is not second
    with pytest.raises(KVSpecError, match="prompt embeddings"):
        mirror.current(SimpleNamespace(**{**vars(one), "request_id": "e", "prompt_embeds": 1}))


def test_an_exception_of_vllm_is_a_difference_and_the_last() -> None:
    def ask() -> int:
        raise ValueError("no free block")

    for expected in ((), (Expected("free", "vLLM raised ValueError: no free block", "known"),)):
        mirror = mirrored(records=None, expected=expected)
        with pytest.raises(ValueError, match="no free block"):
            mirror.answered("free", ask)
        assert mirror.num_expected == ({"known": 1} if expected else {})
        assert (mirror.difference is None) is bool(expected)
        mirror.same("free", lambda: 1, 2)
        assert mirror.num_calls == 0


def test_who_does_not_follow_reports_what_a_scheduler_must_keep() -> None:
    mirror = mirrored(records=None, follows=False)
    mirror.same("free", lambda: 1, 2)
    assert (mirror.num_calls, mirror.difference) == (0, None)
    mirror.require("schedule", None)
    mirror.require("schedule", "too much")
    assert "asks for too much" in str(mirror.difference)


def test_a_stale_common_prefix_is_a_difference() -> None:
    """Read the number of the last look-up, though a read was skipped, as vLLM does."""
    mirror = mirrored(records=None)
    stock = Stock()
    stock.coordinator.num_uncached_common_prefix_tokens = 2
    manager = followed(stock, mirror)
    served(manager, "a")
    assert mirror.difference is not None
    assert "0, 2), shadow" in mirror.difference.said
    assert mirror.difference.record is None


def test_only_final_tokens_may_be_cached() -> None:
    mirror = mirrored(records=None, follows=False)
    manager = followed(Stock(), mirror)
    manager.cache_blocks(request("a", [1, 2, 3, 4, 5]), 5)
    assert mirror.difference is None
    manager.cache_blocks(request("a", [1, 2, 3, 4, 5]), 6)
    assert "6 tokens to be cached, of which 5 are final" in str(mirror.difference)
