"""SGLang's radix cache behind the contract; skipped where SGLang cannot be imported."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from kvcheck.adapters.sglang import (
    SGLangImplementation,
    SGLangUnavailableError,
    implementation,
    plain_radix_cache,
    python_core,
)
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Report
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import StaleHitError, UnsupportedError
from kvspec.request import LoRA, RequestInput
from kvspec.specs import FullAttentionSpec

GROUP = KVCacheGroup(("layer",), FullAttentionSpec(2, 1, 8, "float16"))
CONFIG = ManagerConfig(KVCacheConfig(9, (GROUP,)), 32)


@pytest.fixture(params=[implementation, python_core, plain_radix_cache], ids=lambda f: f.__name__)
def sglang(request: pytest.FixtureRequest) -> SGLangImplementation:
    factory: Callable[[], SGLangImplementation] = request.param
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # importing it warns of what a CPU lacks
            return factory()
    except SGLangUnavailableError as error:
        pytest.skip(str(error))


def checked(subject: SGLangImplementation) -> Report:
    """Run the directed programs of level safety."""
    return Suite(subject, None, Options(Level.SAFETY, Budget(0.0, 0))).run()


def test_pages_are_blocks_and_a_hit_is_kept_on_the_request(sglang: SGLangImplementation) -> None:
    """Share two pages among two requests; each holds one more for its remaining tokens."""
    manager = sglang.create(CONFIG)
    first = sglang.make_request(manager, RequestInput("a", [1, 2, 3, 4, 5]))
    assert manager.get_computed_blocks(first).hit_length_tokens == 0
    assert manager.allocate_slots(first, 5) == KVCacheBlocks(([1, 2, 3],))
    second = sglang.make_request(manager, RequestInput("b", [1, 2, 3, 4, 9]))
    hit = manager.get_computed_blocks(second)
    assert (hit.blocks.to_lists(), hit.hit_length_tokens) == ([[1, 2]], 4)
    with pytest.raises(StaleHitError):
        manager.allocate_slots(
            second, 1, num_new_computed_tokens=4, new_computed_blocks=KVCacheBlocks(([1, 3],))
        )
    manager.allocate_slots(second, 1, num_new_computed_tokens=4, new_computed_blocks=hit.blocks)
    assert manager.get_blocks(second).to_lists()[0][:2] == [1, 2]
    assert manager.num_free_blocks == 4
    assert manager.reset_prefix_cache() is False
    manager.free(first)
    manager.free(second)
    assert manager.num_free_blocks == 8
    assert manager.reset_prefix_cache() is True


def test_salts_and_adapters_are_told_apart(sglang: SGLangImplementation) -> None:
    manager = sglang.create(CONFIG)
    for number, more in enumerate(({}, {"cache_salt": "s"}, {"lora": LoRA("s", 1)})):
        made = RequestInput(f"r{number}", [1, 2, 3], **more)  # type: ignore[arg-type]
        request = sglang.make_request(manager, made)
        assert manager.get_computed_blocks(request).hit_length_tokens == 0
        manager.allocate_slots(request, 3)


def test_what_it_does_not_have_is_refused_by_name(sglang: SGLangImplementation) -> None:
    manager = sglang.create(CONFIG)
    with pytest.raises(UnsupportedError, match="pop_blocks_for_free"):
        manager.pop_blocks_for_free(sglang.make_request(manager, RequestInput("a", [1])))


def test_it_passes_and_broken_copies_of_it_do_not(sglang: SGLangImplementation) -> None:
    """Show that the suite judges SGLang's own locking and freeing."""
    assert checked(sglang).violations == ()
    is_plain = sglang.core == "plain"
    tree = sglang.m.plain.RadixCache if is_plain else sglang.m.unified.UnifiedRadixCache
    for name, breaks in BREAKS.items():
        with pytest.MonkeyPatch.context() as patch:
            breaks(patch, tree)
            assert checked(sglang).violations, name


def _never_unlocks(patch: pytest.MonkeyPatch, tree: type[Any]) -> None:
    patch.setattr(tree, "unlock", lambda self, lock: None)


def _never_locks(patch: pytest.MonkeyPatch, tree: type[Any]) -> None:
    patch.setattr(tree, "lock", lambda self, node, skip_lock_components=(): None)


def _keeps_the_row_of_a_freed_duplicate(patch: pytest.MonkeyPatch, tree: type[Any]) -> None:
    """Return the request's pages to the pool, but keep them in its row."""
    checkpoint = tree.checkpoint

    def stale(self: Any, req: Any, **options: Any) -> None:
        row = self.req_to_token_pool.req_to_token[req.kv.req_pool_idx]
        before = row.clone()
        checkpoint(self, req, **options)
        row.copy_(before)

    patch.setattr(tree, "checkpoint", stale)


BREAKS: dict[str, Callable[[pytest.MonkeyPatch, type[Any]], None]] = {
    "never unlocks": _never_unlocks,
    "never locks": _never_locks,
    "keeps the row of a freed duplicate": _keeps_the_row_of_a_freed_duplicate,
}
