"""A run of cdiv(W, B) blocks, made by both twins alike, is noticed by all that name KV-SW-2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from kvcheck.mistakes.twin import copied, source_of, unaudited
from kvcheck.rules.directed import example_violation, find_example
from kvspec.policy import Policy
from proofs.models._formal._bounds import compared
from proofs.models._formal._manager import ManagerSide
from proofs.models._formal._search import explore
from tests.proofs.off_by_one import BY_RULE, OffByOne, outcome

PLACES: Mapping[str, tuple[str, str]] = MappingProxyType({
    "kvref": ("kvref.groups.sliding_window", "self.window - 1, self.block_size) + ("),
    "kvfast": ("kvfast._core.shape", "self.reach[group] - 1\n        return self.cdiv("),
})  # fmt: skip
EXAMPLE = "KV-SW-2: one token less needs one block"


def mistaken(twin: str) -> OffByOne:
    module, old = PLACES[twin]
    before, found, _ = source_of(module).encode().partition(old.encode())
    assert found, "the code is another one"
    start = len(before)
    return OffByOne(f"{module}:run", 0, start, start + len(found), old, old.replace(" - 1", ""))


@pytest.mark.rule("KV-SW-2")
@pytest.mark.parametrize("twin", PLACES)
def test_the_example_notices_it(twin: str) -> None:
    made = unaudited(copied(twin, mistaken(twin).sources()))
    assert example_violation(find_example(EXAMPLE), made, Policy()) is not None


@pytest.mark.rule("KV-SW-2")
@pytest.mark.parametrize("proof", ["code.windows", "code.look_ups"])
@pytest.mark.parametrize("twin", PLACES)
def test_a_proof_notices_it(proof: str, twin: str) -> None:
    assert outcome(proof, mistaken(twin), limit_s=60)[0] == BY_RULE


@pytest.mark.rule("KV-SW-2")
def test_the_formal_model_notices_it() -> None:
    right = compared()["window"]
    assert isinstance(right, ManagerSide)
    made = unaudited(copied("kvref", mistaken("kvref").sources()))
    wrong = ManagerSide(replace(right.bounds, made_by=made))
    assert explore(wrong).edges != explore(right).edges
