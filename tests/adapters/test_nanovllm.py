"""nano-vllm's block manager behind the contract; skipped without a checkout of it on the path."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvcheck.adapters.nanovllm import NanoImplementation, NanoUnavailableError, implementation
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Report
from kvcheck.judge.suite import Suite
from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.notation.playing import Play
from kvspec.blocks import KVCacheBlocks
from kvspec.config import KVCacheConfig, KVCacheGroup, ManagerConfig
from kvspec.errors import InvalidArgumentError, StaleHitError, UnsupportedError
from kvspec.policy import Policy
from kvspec.request import RequestInput
from kvspec.specs import FullAttentionSpec, LayerSpec

FULL = FullAttentionSpec(2, 1, 8, "float16")


def config(spec: LayerSpec = FULL, num_blocks: int = 6, **members: Any) -> ManagerConfig:
    group = KVCacheGroup(("layer",), spec)
    return ManagerConfig(KVCacheConfig(num_blocks, (group,)), 32, **members)


def checked(subject: NanoImplementation) -> Report:
    """Run the directed programs of level safety, without random ones to shorten them."""
    return Suite(subject, None, Options(Level.SAFETY, Budget(0.0, 0))).run()


@pytest.fixture
def nano() -> NanoImplementation:
    try:
        return implementation()
    except NanoUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("nano")
def test_no_module_of_it_stays() -> None:
    assert not [name for name in sys.modules if name.split(".")[0] == "nanovllm"]


def test_calls_become_those_of_the_block_manager(nano: NanoImplementation) -> None:
    """Shift ids by one; take all blocks of a prompt at once, and one per generated token."""
    play = Play(Bench(nano, Policy(), audits=False, guards=False))
    for line in Path(__file__).with_name("nano.txt").read_text("utf-8").splitlines():
        play.line(line)
        assert play.skipped is None
    assert play.num_judged == 10


def test_it_passes_and_broken_copies_of_it_do_not(nano: NanoImplementation) -> None:
    """Show that the suite judges the manager behind the adapter."""
    assert checked(nano).violations == ()
    manager = nano.library.block_manager.BlockManager
    for name, breaks in BREAKS.items():
        with pytest.MonkeyPatch.context() as patch:
            breaks(patch, manager)
            assert checked(nano).violations, name


def _forgets_a_block(patch: pytest.MonkeyPatch, manager: type[Any]) -> None:
    """Keep the first block of a request in use for ever."""
    release = manager.deallocate

    def deallocate(self: Any, seq: Any) -> None:
        del seq.block_table[:1]
        release(self, seq)

    patch.setattr(manager, "deallocate", deallocate)


def _hashes_blocks_alone(patch: pytest.MonkeyPatch, manager: type[Any]) -> None:
    """Hash equal tokens the same after any prefix."""
    chained = manager.compute_hash
    patch.setattr(manager, "compute_hash", staticmethod(lambda tokens, prefix=-1: chained(tokens)))


def _hands_out_a_block_twice(patch: pytest.MonkeyPatch, manager: type[Any]) -> None:
    """Leave allocated blocks in the free list."""
    append = manager.may_append

    def may_append(self: Any, seq: Any) -> None:
        before = len(seq.block_table)
        append(self, seq)
        self.free_block_ids.extend(seq.block_table[before:])

    patch.setattr(manager, "may_append", may_append)


BREAKS: dict[str, Callable[[pytest.MonkeyPatch, type[Any]], None]] = {
    "forgets a block": _forgets_a_block,
    "hashes blocks alone": _hashes_blocks_alone,
    "hands out a block twice": _hands_out_a_block_twice,
}


def test_arguments_without_a_counterpart_are_refused(nano: NanoImplementation) -> None:
    """Refuse blocks of a token, a hit of an older look-up, too many tokens, and further options."""
    with pytest.raises(UnsupportedError, match="blocks of 1"):
        nano.create(config(FullAttentionSpec(1, 1, 8, "float16")))
    manager = nano.create(config())
    request = nano.make_request(manager, RequestInput("a", [1, 2, 3]))
    with pytest.raises(StaleHitError):
        manager.allocate_slots(
            request, 1, num_new_computed_tokens=2, new_computed_blocks=KVCacheBlocks(([1],))
        )
    for count in (0, 4, True):
        with pytest.raises(InvalidArgumentError):
            manager.allocate_slots(request, count)
    with pytest.raises(InvalidArgumentError):
        manager.allocate_slots(request, 1, num_new_computed_tokens=2)
    with pytest.raises(UnsupportedError, match="num_lookahead_tokens"):
        manager.allocate_slots(request, 1, num_lookahead_tokens=1)
    with pytest.raises(UnsupportedError, match="evict_blocks"):
        manager.evict_blocks([1])
    with pytest.raises(UnsupportedError, match="tokens"):
        nano.make_request(manager, RequestInput("b", [1], cache_salt="s"))
    assert manager.num_free_blocks == 5
