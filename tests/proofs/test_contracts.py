"""Contracts hold on kvfast's own arrays, fail where code is broken, and say when they can't."""

from __future__ import annotations

import importlib
import inspect
import random
import typing
from collections.abc import Callable
from dataclasses import replace

import pytest

from kvfast._core.pool import BlockPool
from kvfast._core.shape import Shape
from proofs.code._planted import Planted
from proofs.code.contracts import _runner, arguments, pool
from proofs.code.contracts._runner import Answer, Case, Contract, Outcome
from tests.source import ROOT

FOLDER = ROOT / "proofs/code/contracts"
SUBJECTS = sorted(path.stem for path in FOLDER.glob("[!_]*.py"))


def contracts_of(subject: str) -> tuple[Contract, ...]:
    found: tuple[Contract, ...] = importlib.import_module(
        f"proofs.code.contracts.{subject}"
    ).CONTRACTS
    return found


def named(contracts: tuple[Contract, ...], name: str) -> Contract:
    return next(each for each in contracts if each.name == name)


def some_value(kind: type, rng: random.Random) -> object:
    """Draw a value of a type that contracts take; most ints are small."""
    if kind is bool:
        return rng.random() < 0.5
    if kind is int:
        return rng.choice((rng.randrange(6), rng.randrange(300), rng.randrange(1 << 30)))
    return tuple(some_value(each, rng) for each in typing.get_args(kind))


def some_case(function: Callable[..., object], rng: random.Random) -> Case:
    """Draw arguments for a contract; its preconditions may not hold."""
    kinds = typing.get_type_hints(function)
    return {name: some_value(kinds[name], rng) for name in inspect.signature(function).parameters}


@pytest.mark.rule("KV-POOL-5", "KV-POOL-6", "KV-GRP-2", "KV-GRP-4", "KV-SW-3", "KV-HASH-8")
@pytest.mark.parametrize("subject", SUBJECTS)
def test_contracts_hold_without_crosshair(subject: str) -> None:
    rng = random.Random(1)
    for contract in contracts_of(subject):
        num_met = 0
        for _ in range(2000):
            case = some_case(contract.function, rng)
            if _runner.meets(contract, case):
                num_met += 1
                assert not _runner.fails(contract, case), (contract.name, case)
            if num_met == 8:
                break
        assert num_met > 0, contract.name


@pytest.mark.parametrize("name", ["is_block", "are_tokens"])
def test_a_planted_mistake_is_refuted_and_the_counterexample_replayed(name: str) -> None:
    contract = named(arguments.CONTRACTS, name)
    assert _runner.ask(contract).outcome is Outcome.CONFIRMED
    answer = _runner.ask(contract, contract.mistakes[0])
    assert answer.outcome is Outcome.REFUTED
    assert answer.is_replayed
    assert answer.is_expected


def test_kvfast_that_is_broken_breaks_the_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    def put_at_the_back(self: BlockPool, block: int, left: int) -> int:
        self.set_refs(block, self.refs(block) - 1)
        if self.refs(block) == 0:
            self.put(self.before(0), block)
        return left

    monkeypatch.setattr(BlockPool, "drop_ref", put_at_the_back)
    answer = _runner.ask(named(pool.CONTRACTS, "release"))
    assert answer.outcome is Outcome.REFUTED
    assert answer.is_replayed
    assert not answer.is_expected
    assert "when calling release(" in str(answer)


def test_a_mistake_that_is_not_seen_fails() -> None:
    """Plant a mistake that the contract does not run, so that it stays confirmed."""
    contract = named(arguments.CONTRACTS, "is_count")
    elsewhere = Planted("KV-SW-2", (Shape, "run_length", "- 1", "- 2"))
    answer = _runner.ask(contract, elsewhere)
    assert answer.outcome is Outcome.CONFIRMED
    assert not answer.is_expected


def view_of_a_slice(count: int) -> bool:
    """Claim that what is taken from the front of a list is what it then lacks.

    pre: 1 <= count <= 2
    post: _
    """
    queue = [1, 2, 3]
    taken = queue[:count]
    del queue[:count]
    return sum(taken) + sum(queue) == 6


def test_a_counterexample_of_crosshair_alone_is_no_refutation() -> None:
    """Use a slice of unknown length, which CrossHair keeps as a view of its list."""
    answer = _runner.ask(Contract(view_of_a_slice))
    assert answer.outcome is Outcome.REFUTED
    assert not answer.is_replayed
    assert not answer.is_expected
    assert "no counterexample without CrossHair" in str(answer)


def no_such_count(count: int) -> bool:
    """Claim anything: no argument meets the precondition.

    pre: count > 2 and count < 0
    post: _
    """
    return True


def many_ways(count: int) -> bool:
    """Claim what is true, but on more paths than CrossHair may take.

    pre: count >= 0
    post: _
    """
    steps = 0
    while steps < count:
        steps += 1
    return steps == count


@pytest.mark.parametrize(
    ("function", "outcome"), [(no_such_count, Outcome.VACUOUS), (many_ways, Outcome.BOUNDED)]
)
def test_a_contract_without_a_case_or_with_too_many_is_not_confirmed(
    function: Callable[..., object], outcome: Outcome
) -> None:
    answer = _runner.ask(Contract(function, num_paths=20))
    assert answer.outcome is outcome
    assert str(answer).startswith(f"{function.__name__}: {outcome.value}, expected: confirmed")


def test_what_is_unexpected_is_printed_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    good = Answer("good", None, Outcome.CONFIRMED, Outcome.CONFIRMED, True, 3, "")
    seen = replace(good, mistake="seen", outcome=Outcome.REFUTED, expected=Outcome.REFUTED)
    missed = replace(good, mistake="missed", expected=Outcome.REFUTED)
    assert _runner.report("twins", [good, seen]) == 0
    assert _runner.report("twins", [good, missed]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "good: confirmed, 3 paths",
        "twins: 2 passed, 0 failed",
        "good: confirmed, 3 paths",
        "good, missed: confirmed, expected: refuted, 3 paths",
        "twins: 1 passed, 1 failed",
    ]


def test_the_version_is_the_one_of_the_extra_for_developers() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'"crosshair-tool=={_runner.CROSSHAIR}"' in text
