"""Every rule has its test, every citation its rule, and the table in spec/README.md is current."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.source import ROOT


def load_table() -> ModuleType:
    """The script spec/table.py as a module; spec is no package."""
    spec = importlib.util.spec_from_file_location("spec_table", ROOT / "spec/table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


table = load_table()


def test_there_are_rules() -> None:
    assert table.find_rules()


def test_rules_code_and_tests_fit_together() -> None:
    assert table.problems(table.find_rules(), table.find_citations()) == []


def test_the_table_is_current() -> None:
    made = table.make_table(table.find_rules(), table.find_citations())
    readme = (ROOT / table.README).read_text(encoding="utf-8")
    assert readme == table.with_table(readme, made), "run: python spec/table.py"


FILES = {
    "spec/rules/pool.md": """# The pool
### KV-POOL-1 Block 0 is null.
### KV-POOL-2 The queue is in order.
Follows from KV-POOL-1.
""",
    "kvref/pool.py": '''
class Pool:
    def take(self):
        """Take blocks (KV-POOL-1 … KV-POOL-2)."""
''',
    "spec/kvspec/invariants.py": "# KV-POOL-2\n",
    "tests/test_pool.py": """
import pytest

@pytest.mark.rule("KV-POOL-1")
def test_null():
    pass
""",
}


def small_repository(folder: Path, **changes: str) -> Path:
    for name, text in {**FILES, **changes}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def found_in(folder: Path) -> list[str]:
    found: list[str] = table.problems(table.find_rules(folder), table.find_citations(folder))
    return found


def test_a_rule_without_a_test_is_found(tmp_path: Path) -> None:
    assert found_in(small_repository(tmp_path)) == ["spec/rules/pool.md: KV-POOL-2 has no test"]


@pytest.mark.parametrize("name", ["kvref/x.py", "tests/test_x.py", "docs/x.md", "proofs/x.smt2"])
def test_a_citation_without_a_rule_is_found(tmp_path: Path, name: str) -> None:
    folder = small_repository(tmp_path, **{name: "# KV-POOL-7\n"})
    assert f"{name}:1: KV-POOL-7 is no rule" in found_in(folder)


def test_a_mark_without_a_rule_is_found(tmp_path: Path) -> None:
    absent = "KV-" + "NONE-1"  # in two pieces: this file is searched for citations, too
    text = f'import pytest\npytestmark = pytest.mark.rule("KV-POOL-2", "{absent}")\n'
    folder = small_repository(tmp_path, **{"tests/test_x.py": text})
    assert found_in(folder) == [f"tests/test_x.py:2: {absent} is no rule"]


def test_a_rule_that_stands_twice_is_found(tmp_path: Path) -> None:
    folder = small_repository(tmp_path, **{"spec/rules/zoo.md": "### KV-POOL-1 Again.\n"})
    assert "spec/rules/zoo.md: KV-POOL-1 stands more than once" in found_in(folder)


def test_a_withdrawn_rule_needs_no_test_and_may_only_be_cited_in_text(tmp_path: Path) -> None:
    text = FILES["spec/rules/pool.md"].replace("The queue is in order.", "Withdrawn: no queue.")
    cited = {"spec/rules/pool.md": text, "docs/x.md": "KV-POOL-2\n", "kvref/pool.py": ""}
    folder = small_repository(tmp_path, **cited)
    assert found_in(folder) == ["spec/kvspec/invariants.py:1: KV-POOL-2 is withdrawn"]
    assert json.loads(table.sentences(table.find_rules(folder))) == {
        "KV-POOL-1": "Block 0 is null."
    }


def test_without_any_rule_nothing_fits(tmp_path: Path) -> None:
    assert found_in(tmp_path) == ["spec/rules: there is no rule"]


def test_the_table_names_code_tests_and_other_checks(tmp_path: Path) -> None:
    folder = small_repository(tmp_path)
    made = table.make_table(table.find_rules(folder), table.find_citations(folder))
    assert made.splitlines()[2:] == [
        "| [KV-POOL-1](rules/pool.md#kv-pool-1-block-0-is-null) | Block 0 is null. "
        "| kvref.pool.Pool.take | tests/test_pool.py | – |",
        "| [KV-POOL-2](rules/pool.md#kv-pool-2-the-queue-is-in-order) | The queue is in order. "
        "| kvref.pool.Pool.take | – | invariants |",
    ]


def test_the_table_replaces_the_one_before() -> None:
    text = f"a\n{table.BEGIN}\nold\n{table.END}\nb\n"
    once = table.with_table(text, "new")
    assert once == f"a\n{table.BEGIN}\n\nnew\n\n{table.END}\nb\n"
    assert table.with_table(once, "new") == once
    with pytest.raises(SystemExit, match="lacks"):
        table.with_table("no table here", "new")
