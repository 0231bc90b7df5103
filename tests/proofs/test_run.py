"""Proofs are run and listed, a false one fails, and what models say is what the twins do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import pytest
import z3

from kvcheck.mistakes.twin import copied, source_of, unaudited
from kvcheck.rules.directed import example_violation, find_example
from kvfast._core.lookup import Lookup
from kvfast._core.request import FastRequest
from kvfast._core.shape import Shape
from kvref.hybrid import HybridCoordinator
from kvref.planning import memory, pages
from kvref.request import ReferenceRequest
from kvspec.planning import PlanningConfig
from kvspec.policy import Policy
from kvspec.specs import LayerSpec
from proofs import _z3
from proofs._z3 import Ledger, Range, forall, function
from proofs.code import fixed_point, planning
from proofs.code._fixed_point import worlds
from proofs.code._planted import Planted, check_planted
from proofs.code._symbolic import Number, UndecidedError
from proofs.models._formal._bounds import compared
from proofs.models._formal._manager import ManagerSide
from proofs.models._formal._search import explore
from tests.proofs import refinement
from tests.proofs.off_by_one import BY_RULE, OffByOne, outcome
from tests.proofs.refinement import Source, sources
from tests.source import ROOT

CITED = re.compile(r"KV-[A-Z]+-[0-9]+")
MUST_FAIL = re.compile(r"refute|twin|mistake|planted", re.IGNORECASE)


def problems(root: Path) -> Iterator[str]:
    """Yield what nothing runs, what cannot fail, and what the table has otherwise."""
    patterns = re.findall(r"^for proof in (.+); do$", (root / ".ci/run").read_text("utf-8"), re.M)
    run = {path for pattern in patterns[0].split() for path in root.glob(pattern)}
    readme = (root / "proofs/README.md").read_text("utf-8")
    rows = re.findall(r"^\|[^|]*KV-[^|]*\| `([^`|]+)` \|", readme, re.MULTILINE)
    listed = {root / "proofs" / file for file in rows}
    yield from (f"{path}: no row, or no proof" for path in listed ^ run)
    for path in run:
        text = path.read_text("utf-8")
        if not CITED.search(ast.get_docstring(ast.parse(text)) or ""):
            yield f"{path}: its docstring names no rule"
        if "sys.exit(main(" not in text or not MUST_FAIL.search(text):
            yield f"{path}: it cannot fail"
    modules = {path: path.read_text("utf-8") for path in (root / "proofs").rglob("*.py")}
    yield from unnamed(modules.keys() - run, modules)
    models = [path for path in (root / "spec/tla").glob("*") if path.suffix in (".tla", ".cfg")]
    yield from unnamed(models, modules | {path: path.read_text("utf-8") for path in models})


def unnamed(paths: Iterable[Path], texts: dict[Path, str]) -> Iterator[str]:
    """Yield the files that no other one names."""
    for path in paths:
        word = re.compile(rf"\b{path.stem}\b")
        if not any(word.search(text) for other, text in texts.items() if other != path):
            yield f"{path}: nothing runs it"


def test_every_proof_and_model_is_run_and_listed() -> None:
    assert list(problems(ROOT)) == []


def test_what_nothing_runs_and_what_cannot_fail_is_found(tmp_path: Path) -> None:
    proof = "def main() -> int:\n    return 0\n\n\nsys.exit(main())\n"
    files = {
        ".ci/run": "for proof in proofs/*/[!_]*.py; do\n",
        "proofs/README.md": "| a (KV-POOL-1) | `code/a.py` | z3 |\n| b (KV-POOL-1) | `code/b.py` |",
        "proofs/code/a.py": f'"""About KV-POOL-1."""\n{proof}',
        "proofs/code/c.py": f"MISTAKES = ()\n{proof}",
        "proofs/code/_left.py": "",
        "spec/tla/Pool.tla": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    found = {line.removeprefix(f"{tmp_path}/") for line in problems(tmp_path)}
    assert found == {
        "proofs/code/a.py: it cannot fail",
        "proofs/code/b.py: no row, or no proof",
        "proofs/code/c.py: no row, or no proof",
        "proofs/code/c.py: its docstring names no rule",
        "proofs/code/_left.py: nothing runs it",
        "spec/tla/Pool.tla: nothing runs it",
    }


def test_a_false_statement_fails_and_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Prove and refute the wrong way round, and claim an impossible case."""
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
    x = z3.Int("x")
    assert Number(x, (x > 2,)) > 1
    assert Number(x, (x > 2,)) != 0
    with pytest.raises(UndecidedError):
        bool(Number(x, (x > 2,)) == 3)


def test_a_mistake_whose_line_is_gone_fails(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = Ledger("gone")
    gone = Planted("KV-SW-2", (Shape, "run_length", "a line of long ago", "another"))
    check_planted(ledger, [(lambda twin: (), gone)])
    assert ledger.finish() == 1
    assert "run_length: another for a line of long ago: False, expected True" in (
        capsys.readouterr().out
    )


def test_every_assumption_is_discharged_or_named() -> None:
    assert refinement.problems(sources()) == []


def test_the_page_is_current() -> None:
    assert (ROOT / refinement.PAGE).read_text(encoding="utf-8") == refinement.page()


def test_an_assumption_that_is_not_discharged_is_found() -> None:
    less = [each for each in sources() if each.path != "spec/kvspec/invariants.py"]
    lost = "proofs/code/free_queue.py: not discharged: a block that is put into the queue is not"
    assert any(problem.startswith(lost) for problem in refinement.problems(less))


def test_a_part_that_is_not_discharged_is_found() -> None:
    less = [each for each in sources() if each.path != "proofs/code/caching.py"]
    lost = "a part is not discharged: both hand the same blocks to the cache"
    assert lost in refinement.problems(less)


def test_who_discharges_itself_and_what_is_trusted_for_nothing_are_found() -> None:
    checks = list(sources())
    checks[0] = replace(checks[0], assumes=("it",), guarantees=("it",))
    checks.append(Source("proofs/gone.py", "proved", (), ()))
    found = refinement.problems(checks, {**refinement.TRUSTED, "nothing": "why"})
    assert f"{checks[0].path}: guarantees its own assumption: it" in found
    assert "trusted for nothing: nothing" in found
    assert "no such file: proofs/gone.py" in found


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


class FakeAttention:
    """A group of a small world, as kvref's coordinator asks it."""

    block_size = step = 1
    looks_beyond = False

    def __init__(self, number: int, group: worlds.Group) -> None:
        self.group = group
        self.members = [SimpleNamespace(index=number, is_cacheable=True)]
        self.is_full, self.is_mamba = group.is_full, group.is_mamba
        self.drops_block = group.is_eagle

    def look_up(
        self, hashes: object, length: int, *, drop: bool, alignment: int
    ) -> tuple[list[list[int]], int]:
        answer = self.group.look_up(length, drop=drop)
        return [[0] * answer], answer

    def cut(self, length: int) -> int:
        return length


def reference_hit(world: tuple[worlds.Group, ...]) -> int:
    coordinator = object.__new__(HybridCoordinator)
    coordinator.alignment = 1
    fakes: Any = [FakeAttention(number, group) for number, group in enumerate(world)]
    coordinator.attention_groups = fakes
    coordinator.groups = tuple(fake.members[0] for fake in fakes)
    request = cast(ReferenceRequest, SimpleNamespace(block_hashes=()))
    hit = coordinator.longest_hit(request, worlds.NUM_TOKENS)
    assert {len(blocks) for blocks in hit.blocks.groups} == {hit.hit_length_tokens}
    return hit.hit_length_tokens


@pytest.mark.rule("KV-COORD-5", "KV-COORD-7", "KV-COORD-8", "KV-COORD-10")
def test_both_implementations_search_alike_in_small_worlds() -> None:
    for number, world in enumerate(worlds.all_worlds()):
        if number % 23 == 0:
            request = cast(FastRequest, None)
            fast = worlds.SmallLookup(world).agreed_hit(request, worlds.NUM_TOKENS)
            assert reference_hit(world) == fast
