"""Every rule has its name and test, every citation its rule; the file of rules is current."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.regenerate import load_table
from tests.source import ROOT

table = load_table()


def test_there_are_rules() -> None:
    assert table.find_rules()


def test_rules_code_and_tests_fit_together() -> None:
    assert found_in(ROOT) == []


def rule(rule_id: str, sentence: str, name: str = "") -> str:
    """Return a rule as a chapter has it."""
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


def small_repository(folder: Path, **changes: str) -> Path:
    for name, text in {**FILES, **changes}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def found_in(folder: Path) -> list[str]:
    rules, citations = table.find_rules(folder), table.find_citations(folder)
    exceptions, shown = table.find_exceptions(folder), table.find_shown(folder)
    found: list[str] = table.problems(rules, citations, exceptions, shown)
    return found


def test_what_fits_is_no_problem(tmp_path: Path) -> None:
    assert found_in(small_repository(tmp_path)) == []


def test_a_rule_without_a_test_is_found(tmp_path: Path) -> None:
    text = FILES["tests/test_pool.py"].replace("KV-POOL-2", "KV-POOL-1")
    folder = small_repository(tmp_path, **{"tests/test_pool.py": text})
    assert found_in(folder) == ["spec/rules/pool.md: KV-POOL-2 has no test"]


STATED = '"""That (KV-POOL-1)."""\nif __name__ == "__main__":\n    pass\n'
ONE_KIND = "spec/rules/pool.md: KV-POOL-1 has fewer than two kinds of check"
NO_MISTAKE = "spec/rules/pool.md: KV-POOL-1 is broken by no mistake"
NOT_WHY = ", and spec/exceptions.toml says not why"
ONE_UNBROKEN = "Wrong KV-POOL-2: no order.\n- pass  # KV-POOL-1\n"


def test_a_rule_with_one_kind_of_check_is_found(tmp_path: Path) -> None:
    folder = small_repository(tmp_path, **{MISTAKES: ONE_UNBROKEN})
    assert found_in(folder) == [ONE_KIND + NOT_WHY, NO_MISTAKE + NOT_WHY]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("spec/kvspec/transitions.py", "# KV-POOL-1\n"),
        ("kvcheck/judge/x.py", "# KV-POOL-1\n"),
        ("kvcheck/explore/x.py", 'broken = "KV-POOL-1"\n'),
        ("kvcheck/data/records/x.jsonl", '"KV-POOL-1"\n'),
        ("spec/tla/Pool.tla", "\\* KV-POOL-1\n"),
        ("proofs/x.py", STATED + "import kvref.pool\nMISTAKE = 'KV-POOL-1'\n"),
        ("proofs/x.py", STATED + "import kvref\nfrom proofs.code.contracts._y import WRONG\n"),
        ("proofs/x.py", STATED + "from proofs.code.contracts import x\nTWIN = 'KV-POOL-1'\n"),
        ("proofs/code/contracts/x.py", STATED + "from kvfast import y\nTWIN = 'KV-POOL-1'\n"),
    ],
)
def test_a_second_kind_of_check_counts(tmp_path: Path, name: str, text: str) -> None:
    changes = {
        MISTAKES: ONE_UNBROKEN,
        "proofs/code/contracts/x.py": "import kvfast\n",
        "proofs/code/contracts/_y.py": "WRONG = Mistake('KV-POOL-1')\nRIGHT = 'KV-POOL-2'\n",
        name: text,
    }
    folder = small_repository(tmp_path, **changes)
    assert found_in(folder) == [NO_MISTAKE + NOT_WHY]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("kvref/x.py", "# KV-POOL-1\n"),
        ("kvcheck/explore/x.py", "# KV-POOL-1\n"),
        ("kvcheck/judge/unobservable.py", "# KV-POOL-1\n"),
        ("proofs/README.md", "KV-POOL-1\n"),
        ("proofs/x.py", STATED + "import z3\nTWIN = 'KV-POOL-1'\n"),
        ("proofs/x.py", STATED + "import kvref\nTWIN = 'KV-POOL-2'\n"),
        ("proofs/x.py", STATED + "import kvref\nfrom proofs._y import RIGHT\n"),
        ("proofs/x.py", "import kvref\n" + STATED.replace("KV-POOL-1", "x") + "# KV-POOL-1\n"),
        ("proofs/_x.py", '"""KV-POOL-1"""\nimport kvref\n'),
        ("tests/test_x.py", "# KV-POOL-1\n"),
    ],
)
def test_what_is_no_check_does_not_count(tmp_path: Path, name: str, text: str) -> None:
    folder = small_repository(tmp_path, **{MISTAKES: ONE_UNBROKEN, name: text})
    assert ONE_KIND + NOT_WHY in found_in(folder)


def test_a_reason_is_enough_and_none_may_be_left_over(tmp_path: Path) -> None:
    reasons = '[one_kind]\nKV-POOL-1 = "why"\n[no_mistake]\nKV-POOL-1 = "why"\nKV-POOL-2 = "why"\n'
    changes = {MISTAKES: ONE_UNBROKEN, "spec/exceptions.toml": reasons}
    folder = small_repository(tmp_path, **changes)
    assert found_in(folder) == ["spec/exceptions.toml: KV-POOL-2 needs no reason in [no_mistake]"]


def test_a_reason_may_be_that_of_a_subject(tmp_path: Path) -> None:
    reasons = '[one_kind]\nKV-POOL = "why"\n[no_mistake]\nKV-POOL = "why"\nKV-GRP = "why"\n'
    changes = {MISTAKES: ONE_UNBROKEN, "spec/exceptions.toml": reasons}
    folder = small_repository(tmp_path, **changes)
    assert found_in(folder) == ["spec/exceptions.toml: KV-GRP needs no reason in [no_mistake]"]


def test_an_empty_reason_is_none(tmp_path: Path) -> None:
    reasons = '[one_kind]\nKV-POOL-1 = "why"\n[no_mistake]\nKV-POOL-1 = " "\n'
    changes = {MISTAKES: ONE_UNBROKEN, "spec/exceptions.toml": reasons}
    assert found_in(small_repository(tmp_path, **changes)) == [NO_MISTAKE + NOT_WHY]


@pytest.mark.parametrize("name", ["kvref/x.py", "tests/test_x.py", "docs/x.md", "proofs/x.smt2"])
def test_a_citation_without_a_rule_is_found(tmp_path: Path, name: str) -> None:
    folder = small_repository(tmp_path, **{name: "# KV-POOL-7\n"})
    assert f"{name}:1: KV-POOL-7 is no rule" in found_in(folder)


def test_a_mark_without_a_rule_is_found(tmp_path: Path) -> None:
    absent = "KV-" + "NONE-1"  # in two pieces: this file is also searched for citations
    text = f'import pytest\npytestmark = pytest.mark.rule("KV-POOL-2", "{absent}")\n'
    folder = small_repository(tmp_path, **{"tests/test_x.py": text})
    assert found_in(folder) == [f"tests/test_x.py:2: {absent} is no rule"]


def test_a_rule_that_stands_twice_is_found(tmp_path: Path) -> None:
    again = rule("KV-POOL-1", "Again.")
    folder = small_repository(tmp_path, **{"spec/rules/zoo.md": again})
    assert "spec/rules/zoo.md: KV-POOL-1 is defined more than once" in found_in(folder)


@pytest.mark.parametrize(
    ("text", "flaw"),
    [
        ("### KV-POOL-2 The queue is in order.\n", "is not headed `### KV-POOL-2 · short name"),
        (rule("KV-POOL-2", "It is.", "a b c d e"), "has a long name, 'a b c d e'"),
        (rule("KV-POOL-2", "It is.", "a" * 33), "has a long name, "),
        (rule("KV-POOL-2", "It is.", "null block"), "shares its name, 'null block'"),
        (rule("KV-POOL-2", "It is; so is that."), "joins sentences by a semicolon"),
        (rule("KV-POOL-2", "It " + "so " * 24 + "is."), "has a first sentence of 26 words"),
        (rule("KV-POOL-2", "When it is:"), "is no sentence"),
        (rule("KV-POOL-2", ""), "is no sentence"),
    ],
)
def test_a_rule_that_is_not_written_as_one_is_found(tmp_path: Path, text: str, flaw: str) -> None:
    text = rule("KV-POOL-1", "Block 0 is null.", "null block") + text
    folder = small_repository(tmp_path, **{"spec/rules/pool.md": text})
    assert any(f"KV-POOL-2 {flaw}" in problem for problem in found_in(folder))


def test_a_withdrawn_rule_needs_no_test_and_may_only_be_cited_in_text(tmp_path: Path) -> None:
    text = FILES["spec/rules/pool.md"].replace("The queue\nis in order", "Withdrawn: no queue")
    cited = {
        "spec/rules/pool.md": text,
        "docs/x.md": "KV-POOL-2\n",
        "kvref/pool.py": "",
        MISTAKES: "Wrong KV-POOL-1: not null.\n",
        "tests/test_pool.py": FILES["tests/test_pool.py"].replace("KV-POOL-2", "KV-POOL-1"),
    }
    folder = small_repository(tmp_path, **cited)
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
    stated = STATED.replace("KV-POOL-1", "KV-POOL-2")
    changes = {
        "proofs/x.py": stated,
        "proofs/y.py": stated + "import kvref\nTWIN = 'KV-POOL-2'\n",
        "tests/kills/cells.json": '{"cells": {"Wrong": {"directed": ["killed", "queue"]}}}',
    }
    folder = small_repository(tmp_path, **changes)
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
    """Find them in docs/changing-a-rule.md, each as a file or its folder."""
    page = (ROOT / "docs/changing-a-rule.md").read_text(encoding="utf-8")
    linked = re.findall(r"\]\(\.\./([^)]+)\)", page.partition("## Adding a block type")[2])
    places = [(ROOT / name).resolve() for name in linked]
    named = [
        path
        for part in ("spec", "kvref", "kvfast", "kvcheck")
        for path in (ROOT / part).rglob("*.py")
        if block_type in path.read_text(encoding="utf-8")
    ]
    assert len(named) > 10
    outside = [path for path in named if not any(path.is_relative_to(each) for each in places)]
    assert outside == []
