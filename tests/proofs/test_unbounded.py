"""The proofs without bound hold; each finds the mistakes seeded in it, and says so if it can't."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import z3

from proofs._z3 import Ledger, Range, forall, function
from proofs.code import (
    allocation,
    cbor_head,
    cbor_key,
    fixed_point,
    free_queue,
    key_map,
    planning,
    windows,
)
from proofs.code._symbolic import Number, UndecidedError
from proofs.models import lists, pool

ROOT = Path(__file__).resolve().parents[2]


def test_every_action_keeps_every_invariant_of_the_pool() -> None:
    """Of a model, for any number of blocks; each is broken by some mistake in an action."""
    assert pool.main() == 0


def test_every_action_of_a_group_keeps_every_invariant_of_the_lists() -> None:
    """Of a model, for any number of lists; each is broken by some mistake in an action."""
    assert lists.main() == 0


@pytest.mark.rule("KV-POOL-3", "KV-POOL-5", "KV-POOL-6")
def test_the_ring_of_kvfast_is_the_free_queue() -> None:
    """For any number of blocks; the code of kvfast is run on unknown memory."""
    assert free_queue.main() == 0


@pytest.mark.rule("KV-POOL-13", "KV-POOL-14")
def test_the_slots_of_kvfast_are_the_map_from_keys_to_blocks() -> None:
    """For tables and rings of any size; without moving slots back some key is lost."""
    assert key_map.main() == 0


def test_the_arithmetic_of_windows_chunks_and_states_holds_for_all_integers() -> None:
    """Of formulas: what is skipped, needed, held; each has a close one that is refuted."""
    assert windows.main() == 0


@pytest.mark.rule("KV-COORD-5", "KV-COORD-6", "KV-COORD-7", "KV-COORD-8", "KV-COORD-10")
def test_the_hit_of_a_hybrid_is_the_longest_common_one() -> None:
    """For any number of groups and any lengths; what is assumed is shown to be needed."""
    assert fixed_point.main() == 0


@pytest.mark.rule("KV-GRP-3", "KV-GRP-4", "KV-GRP-6", "KV-GRP-7", "KV-MAMBA-7", "KV-MAMBA-8")
def test_the_need_is_what_an_allocation_takes() -> None:
    """For all integers and every kind of group; the code of kvfast is run on unknown ones."""
    assert allocation.main() == 0


@pytest.mark.rule("KV-PLAN-8", "KV-PLAN-9", "KV-PLAN-10", "KV-PLAN-12", "KV-PLAN-15", "KV-LIVE-3")
def test_a_plan_that_is_accepted_serves_one_request_of_full_length() -> None:
    """For all integers; the formulas of kvref are run on unknown ones."""
    assert planning.main() == 0


@pytest.mark.rule("KV-HASH-2")
def test_the_head_of_a_value_is_the_shortest() -> None:
    """For every value below 2^64; the code of kvfast is run on an unknown one."""
    assert cbor_head.main() == 0


@pytest.mark.rule("KV-HASH-1", "KV-HASH-2")
def test_two_different_keys_never_have_the_same_bytes() -> None:
    """No head begins another one; a message is as long as its parts."""
    assert cbor_key.main() == 0


def test_a_proof_runs_as_a_command() -> None:
    """As `.ci/run` and proofs/README.md start it."""
    done = subprocess.run(
        [sys.executable, "-m", "proofs.code.free_queue"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(" passed, 0 failed")


def test_a_false_statement_fails_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Proved and refuted the wrong way round, possible where it is not."""
    x = z3.Int("x")
    ledger = Ledger("twins")
    ledger.prove("false", [x > 0], x > 1)
    ledger.refute("true", [x > 0], x >= 1)
    ledger.possible("empty", x > 0, x < 0)
    assert ledger.finish() == 1
    assert capsys.readouterr().out.splitlines() == [
        "false: sat, expected unsat",
        "true: unsat, expected sat",
        "empty: unsat, expected sat",
        "twins: 0 passed, 3 failed",
    ]


def test_a_range_written_out_says_the_same_as_one_with_a_quantifier() -> None:
    """Of few values: what holds of all of them, and what one of them breaks."""
    f, n = function("f"), z3.Int("n")
    for values in (None, range(4)):
        numbers = Range(0, n, values)
        known = [n == 3, forall([numbers], lambda i: f(i) == i)]
        ledger = Ledger("ranges")
        ledger.prove("inside", known, f(2) == 2)
        ledger.prove("sum", known, f(1) + f(2) == 3)
        if values is not None:
            ledger.refute("outside", known, f(3) == 3)
        assert ledger.finish() == 0


def test_code_that_branches_on_what_is_open_is_refused() -> None:
    """A branch is taken only where the assumptions decide it."""
    x = z3.Int("x")
    assert Number(x, (x > 2,)) > 1
    assert Number(x, (x > 2,)) != 0
    with pytest.raises(UndecidedError):
        bool(Number(x, (x > 2,)) == 3)
