"""A mistake in the code of kvfast makes a proof fail: it is about the code that runs."""

from __future__ import annotations

import pytest

from kvfast._core.lookup import Lookup
from kvfast._core.request import FastRequest
from kvref.planning import memory, pages
from kvspec.planning import PlanningConfig
from kvspec.specs import LayerSpec
from proofs import _z3
from proofs.code import fixed_point, planning


@pytest.fixture(autouse=True)
def _no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less effort for z3, which finds no proof of a false statement anyway."""
    monkeypatch.setattr(_z3, "EFFORT", 2_000_000)


def test_a_search_that_keeps_its_marks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(self: Lookup, a: int, request: FastRequest, length: int, max_tokens: int) -> int:
        size = self.block_size_of(a)
        if self.is_full(a) and self.found_blocks[a] >= 0:
            return length - length % size
        is_unverified = self.drops(a) and not self.is_verified[a]
        drop = is_unverified and not self.is_mamba(a)
        within = min(length + size, max_tokens) if drop else length
        num_blocks = self.look_up(a, request, within, drop, self.shape.alignment // size)
        if self.drops(a):
            self.is_verified[a] = 1
        self.found_blocks[a] = num_blocks
        self.longest_tokens = max(self.longest_tokens, num_blocks * size)
        return num_blocks * size

    monkeypatch.setattr(Lookup, "ask", ask)
    ledger = _z3.Ledger("twin")
    fixed_point.check_claim(ledger, "falls")
    assert not ledger.unexpected
    fixed_point.check_claim(ledger, "marks")
    assert any(line.startswith("way ") for line in ledger.unexpected)


def test_a_plan_that_counts_too_little_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    max_blocks = pages.max_blocks

    def one_less(spec: LayerSpec, config: PlanningConfig) -> int:
        return max_blocks(spec, config) - 1

    monkeypatch.setattr(memory, "max_blocks", one_less)
    assert planning.main() == 1
    failed = capsys.readouterr().out.splitlines()[:-1]
    assert {line.partition(":")[0] for line in failed} >= {"full", "window", "chunk", "align"}
