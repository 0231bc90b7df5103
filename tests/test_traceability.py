"""Every rule has its name and test, every citation its rule; the file of rules is current."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cases import Case, cases
from tests.regenerate import load_table
from tests.repositories import check, written
from tests.source import ROOT

table = load_table()


def test_there_are_rules() -> None:
    assert table.find_rules()


def test_rules_code_and_tests_fit_together() -> None:
    assert found_in(ROOT) == []


def rule(rule_id: str, sentence: str, name: str = "") -> str:
    return f'### {rule_id} · {name or rule_id.lower()} <a id="{rule_id}"></a>\n\n{sentence}\n\n'


LETTER = re.compile(r"(?<![\w.\"'’`-])[B-Z](?![\w\"'’`-])")


def test_every_letter_in_the_rules_has_one_meaning() -> None:
    """Look it up in the table of symbols; A is also a word."""
    symbols = (ROOT / "spec/README.md").read_text(encoding="utf-8").partition("## Symbols")[2]
    known = set(re.findall(r"^\| ([A-Z])\b", symbols.partition("\n## ")[0], re.MULTILINE))
    used = {
        letter
        for path in (ROOT / "spec/rules").glob("*.md")
        for letter in LETTER.findall(path.read_text(encoding="utf-8"))
    }
    assert used <= known, f"not in the table of symbols: {sorted(used - known)}"
    assert known <= used | {"A"}


MISTAKES = "kvref/mistakes/pool.diff"
FILES = {
    "spec/rules/pool.md": "# The pool\n\n"
    + rule("KV-POOL-1", "Block 0 is null.", "null block")
    + rule("KV-POOL-2", "The queue\nis in order.")
    + "Follows from KV-POOL-1.\n",
    "kvref/pool.py": '''
class Pool:
    def take(self):
        """Take blocks (KV-POOL-1 … KV-POOL-2)."""
''',
    "spec/kvspec/invariants.py": "# KV-POOL-2\n",
    MISTAKES: "Wrong KV-POOL-2, KV-POOL-1: no order.\n+ pass\n",
    "tests/test_pool.py": """
import pytest

@pytest.mark.rule("KV-POOL-1")
def test_null():
    pass

@pytest.mark.rule("KV-POOL-2")
def test_order():
    pass
""",
}


def found_in(folder: Path) -> list[str]:
    rules, citations = table.find_rules(folder), table.find_citations(folder)
    exceptions, shown = table.find_exceptions(folder), table.find_shown(folder)
    found: list[str] = table.problems(rules, citations, exceptions, shown)
    return found


@pytest.mark.parametrize("case", cases(__file__, "test_traceability.txt"), ids=str)
def test_what_does_not_fit_together_is_found(tmp_path: Path, case: Case) -> None:
    check(case, FILES, tmp_path, found_in)


def test_a_withdrawn_rule_needs_no_test_and_may_only_be_cited_in_text(tmp_path: Path) -> None:
    text = FILES["spec/rules/pool.md"].replace("The queue\nis in order", "Withdrawn: no queue")
    cited = {
        "spec/rules/pool.md": text,
        "docs/x.md": "KV-POOL-2\n",
        "kvref/pool.py": "",
        MISTAKES: "Wrong KV-POOL-1: not null.\n",
        "tests/test_pool.py": FILES["tests/test_pool.py"].replace("KV-POOL-2", "KV-POOL-1"),
    }
    folder = written(tmp_path, {**FILES, **cited})
    assert found_in(folder) == ["spec/kvspec/invariants.py:1: KV-POOL-2 is withdrawn"]
    assert json.loads(table.sentences(table.find_rules(folder))) == {
        "KV-POOL-1": {
            "name": "null block",
            "sentence": "Block 0 is null.",
            "text": "",
            "chapter": "The pool",
            "path": "spec/rules/pool.md",
            "line": 6,
        }
    }


def test_without_any_rule_nothing_fits(tmp_path: Path) -> None:
    assert found_in(tmp_path) == ["spec/rules: there is no rule"]


def test_one_rule_is_shown_with_all_that_cites_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stated = '"""That (KV-POOL-2)."""\nif __name__ == "__main__":\n    pass\n'
    changes = {
        "proofs/x.py": stated,
        "proofs/y.py": stated + "import kvref\nTWIN = 'KV-POOL-2'\n",
        "tests/kills/cells.json": '{"cells": {"Wrong": {"directed": ["killed", "queue"]}}}',
    }
    folder = written(tmp_path, {**FILES, **changes})
    rules, citations = table.find_rules(folder), table.find_citations(folder)
    shown = table.find_shown(folder)
    assert table.show("KV-POOL-2", rules, citations, shown) == 0
    assert capsys.readouterr().out.splitlines() == [
        "KV-POOL-2 (kv-pool-2)  The queue is in order.",
        "  rule        spec/rules/pool.md",
        "  code        kvref/pool.py:4 Pool.take",
        "  tests       tests/test_pool.py:8",
        "  tests       found Wrong",
        "  invariants  spec/kvspec/invariants.py:1",
        "  invariants  not shown to fail",
        "  proofs      proofs/y.py:1  (found a mistake of its own)",
        "  formulas    proofs/x.py:1",
        "  mistakes    kvref/mistakes/pool.diff:1",
        "  text        proofs/y.py:5",
        "  text        tests/test_pool.py:8",
    ]
    assert table.show("KV-POOL-9", rules, citations, shown) == 1


BLOCK_TYPES = ("ChunkedLocalAttentionSpec", "MambaSpec")


@pytest.mark.parametrize("block_type", BLOCK_TYPES)
def test_the_places_of_a_block_type_are_named(block_type: str) -> None:
    page = (ROOT / "docs/changing-a-rule.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(\.\./([^)]+)\)", page.partition("## Adding a block type")[2])
    places = [(ROOT / name).resolve() for name in linked]
    named = [
        path
        for part in ("spec", "kvref", "kvfast", "kvcheck")
        for path in (ROOT / part).rglob("*.py")
        if block_type in path.read_text(encoding="utf-8")
    ]
    assert len(named) > 5
    outside = [path for path in named if not any(path.is_relative_to(each) for each in places)]
    assert outside == []
