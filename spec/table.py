"""List rules and their citations in code, tests, other checks.

    python spec/table.py KV-POOL-4    where one rule is written, implemented and checked
    python spec/table.py              write kvcheck/data/rules.json
    python spec/table.py --check      exit 1 when it is not current, or when something does not fit

A rule is a heading in spec/rules, with its id and short name, and the paragraph below it, which is
what the rule says. Code cites it in a docstring or a comment, a directed check as
`@example("KV-POOL-4")` or as an example in text (spec/examples.md), another test by
`@pytest.mark.rule`, a mistake by its first line, an exploration by the rule that it calls broken, a
proof in its docstring, every other check by naming it. A proof that runs nothing of kvref or kvfast
is about formulas and counts as no check, nor does one that finds no mistake of the rule (shown.py).
It reports a rule without a test, with a single kind of check or without a mistake, unless
exceptions.toml gives the reason; an unneeded reason; a citation of no rule; a malformed rule. A
withdrawn rule keeps its heading, and its paragraph begins with `Withdrawn:`; only text may still
cite it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from shown import PLACED, PROVING, Shown, find_shown, runs_code

ROOT = Path(__file__).resolve().parents[1]
# The rules as package data: what `kvspec check` shows of a broken rule.
SENTENCES = "kvcheck/data/rules.json"
WRITTEN = frozenset({SENTENCES})  # by programs: no citations
# Rules that are checked in fewer ways, with the reasons: [one_kind] and [no_mistake].
EXCEPTIONS = "spec/exceptions.toml"
# Chapters that are not about managers: `kvspec check` knows nothing of their rules.
BESIDE = ("spec/rules/device.md",)
MISTAKES = ("kvref/mistakes/", "kvfast/mistakes/")
INSTALLED = "node_modules"

# `### KV-POOL-8 · reverse release <a id="KV-POOL-8"></a>`: links go by the id, not by the name.
HEADING = re.compile(r"^### (KV-[A-Z]+-[0-9]+)\b(.*)\n+((?:.+\n?)*)", re.MULTILINE)
TITLE = re.compile(r'^ · (\S.*\S) <a id="(KV-[A-Z]+-[0-9]+)"></a>$')
NEXT = re.compile(r"^##", re.MULTILINE)
MAX_NAME_WORDS, MAX_NAME_CHARACTERS = 4, 32
MAX_FIRST_SENTENCE_WORDS = 25
# The id of a mistake, the rules it breaks, and what is wrong.
MISTAKE = re.compile(r"^\w+ ((?:KV-[A-Z]+-[0-9]+(?:, )?)+): ")
# A single rule, or a range of one chapter: KV-MGR-3 … KV-MGR-10.
CITATION = re.compile(r"KV-([A-Z]+)-([0-9]+)(?:\s*…\s*KV-\1-([0-9]+))?")


class Kind(Enum):
    """The meaning of a citation."""

    TEXT = "text"  # other rules and documents: counts for nothing, but must name a rule
    CODE = "code"
    TEST = "tests"
    INVARIANT = "invariants"
    SUITE = "check"  # directed and random programs of `kvspec check`
    EXPLORATION = "explore"  # `kvspec explore`
    RECORD = "records"
    PROOF = "proofs"  # that run code of kvref or kvfast
    FORMULA = "formulas"
    CONTRACT = "contracts"
    MODEL = "model"
    MISTAKE = "mistakes"


# Checks of an implementation, besides tests.
OTHER_CHECKS = tuple(
    kind for kind in Kind if kind not in (Kind.TEXT, Kind.CODE, Kind.TEST, Kind.FORMULA)
)

# The kind of a file's citations, by the first matching beginning of its path.
PLACES = (
    ("spec/kvspec/invariants.py", Kind.INVARIANT),
    ("spec/kvspec/transitions.py", Kind.INVARIANT),
    ("kvcheck/judge/applying.py", Kind.TEXT),
    *((f"kvcheck/{part}/", Kind.SUITE) for part in ("judge", "play", "rules/scenarios")),
    ("kvcheck/rules/random_plans.py", Kind.SUITE),
    ("kvcheck/rules/", Kind.TEXT),  # but for the rules that directed checks are about
    ("kvcheck/data/records/", Kind.RECORD),
    ("spec/kvspec/", Kind.CODE),  # but for the rules that explorations call broken
    ("spec/tla/", Kind.MODEL),
    ("spec/", Kind.TEXT),
    *((folder, Kind.TEXT) for folder in MISTAKES),  # but for the first lines of mistakes
    *((f"{part}/", Kind.CODE) for part in ("kvcheck", "kvref", "kvfast")),
    ("proofs/code/contracts/", Kind.CONTRACT),  # in the docstring of a file that is run, as below
    ("proofs/README.md", Kind.TEXT),
    ("proofs/", Kind.PROOF),  # or FORMULA
    ("tests/", Kind.TEXT),  # but for the marks of tests
    ("docs/", Kind.TEXT),
    ("README.md", Kind.TEXT),
)
MARKS = ("example", "pytest.mark.rule")
EXAMPLE = "```kv"  # begins an example under its rule (spec/examples.md)
CODE = (".py", ".pxd", ".md", ".kv", ".tla", ".cfg", ".smt2", ".diff", ".json", ".jsonl")


@dataclass(frozen=True)
class Rule:
    """A rule: its id, its short name, its sentence, and its chapter.

    `text`: its explanation in the chapter, from `line` on; `title`: the chapter's.
    """

    id: str
    name: str
    sentence: str
    chapter: str
    text: str = ""
    title: str = ""
    line: int = 0

    @property
    def withdrawn(self) -> bool:
        return self.sentence.startswith("Withdrawn")

    def flaws(self) -> Iterator[str]:
        """Yield what is wrong with its wording."""
        first = re.split(r"(?<=[.])\s", self.sentence)[0]
        if not self.name:
            yield f'is not headed `### {self.id} · short name <a id="{self.id}"></a>`'
        if len(self.name.split()) > MAX_NAME_WORDS or len(self.name) > MAX_NAME_CHARACTERS:
            yield f"has a long name, {self.name!r}"
        if ";" in self.sentence:
            yield "joins sentences by a semicolon"
        if len(first.split()) > MAX_FIRST_SENTENCE_WORDS:
            yield f"has a first sentence of {len(first.split())} words"
        if not self.sentence.endswith("."):
            yield "is no sentence"


@dataclass(frozen=True)
class Citation:
    """A place that names a rule; `inside` is the function or class around it, if any."""

    rule: str
    kind: Kind
    path: str
    line: int
    inside: str = ""

    @property
    def place(self) -> str:
        """The place, such as `kvref/block_pool.py:39 BlockPool.take`."""
        return f"{self.path}:{self.line} {self.inside}".rstrip()


def find_rules(root: Path = ROOT) -> list[Rule]:
    """Return all rules, ordered by chapter and number."""
    rules = []
    for path in sorted((root / "spec/rules").glob("*.md")):
        chapter = path.read_text(encoding="utf-8")
        about = chapter.partition("\n")[0].removeprefix("# ")
        for match in HEADING.finditer(chapter):
            title = TITLE.match(match[2])
            name = title[1] if title and title[2] == match[1] else ""
            sentence = " ".join(match[3].split())
            text = NEXT.split(chapter[match.end() :])[0].strip("\n")
            where = path.relative_to(root).as_posix()
            line = chapter.count("\n", 0, chapter.find(text, match.end())) + 1
            rules.append(Rule(match[1], name, sentence, where, text, about, line))
    return sorted(rules, key=lambda rule: (rule.chapter, _number(rule.id)))


def _number(rule_id: str) -> tuple[str, int]:
    chapter, _, number = rule_id.rpartition("-")
    return chapter, int(number)


def cited_in(text: str) -> Iterator[str]:
    """Yield the ids that a text names, with ranges expanded."""
    for chapter, first, last in CITATION.findall(text):
        for number in range(int(first), int(last or first) + 1):
            yield f"KV-{chapter}-{number}"


def find_citations(root: Path = ROOT) -> list[Citation]:
    """Return every citation in the repository, without the rules' own headings."""
    found: list[Citation] = []
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        kind = next((kind for begin, kind in PLACES if name.startswith(begin)), None)
        is_read = path.is_file() and path.suffix in CODE and INSTALLED not in path.parts
        if kind is None or path == Path(__file__) or name in WRITTEN or not is_read:
            continue
        text = path.read_text(encoding="utf-8")
        if kind is Kind.PROOF and path.suffix == ".py" and not runs_code(path, root):
            kind = Kind.FORMULA
        found += _citations_of(name, text, kind)
    return found


def _citations_of(name: str, text: str, kind: Kind) -> Iterator[Citation]:
    tree = ast.parse(text) if name.endswith(".py") else None
    scopes = list(_scopes(tree)) if tree is not None else []
    if name.startswith(("tests/", "kvcheck/rules/")) and tree is not None:
        for rule, number in _marks(tree):
            yield Citation(rule, Kind.TEST, name, number)
    if name.startswith("kvcheck/explore/") and tree is not None:
        for rule, number in _constants(tree):
            yield Citation(rule, Kind.EXPLORATION, name, number)
    stated = _statement(text, tree) if kind.value in PROVING and tree is not None else None
    owner = ""
    for number, line in enumerate(text.splitlines(), 1):
        if name.startswith("spec/rules/") and line.startswith("### "):
            owner = line.split()[1]
            continue
        if (line == EXAMPLE and owner) or (line.startswith("== ") and name.startswith("spec/")):
            for rule in cited_in(line if line.startswith("==") else owner):
                yield Citation(rule, Kind.TEST, name, number)
            continue
        mistake = MISTAKE.match(line) if name.startswith(MISTAKES) else None
        if mistake is not None:
            for rule in mistake[1].split(", "):
                yield Citation(rule, Kind.MISTAKE, name, number)
            continue
        around = [scope for first, last, scope in scopes if first <= number <= last]
        shows = kind if stated is None or number in stated else Kind.TEXT
        for rule in cited_in(line):
            # Scopes are listed from the outside in.
            yield Citation(rule, shows, name, number, around[-1] if around else "")


def _statement(text: str, tree: ast.Module) -> range:
    """Return the lines that state what a proof proves: its docstring, if the file can be run."""
    if '__name__ == "__main__"' not in text or ast.get_docstring(tree) is None:
        return range(0)
    return range(tree.body[0].lineno, (tree.body[0].end_lineno or 0) + 1)


def _scopes(node: ast.AST, outer: str = "") -> Iterator[tuple[int, int, str]]:
    """Yield first line, last line and dotted name of each class and function; outer ones first."""
    for child in ast.iter_child_nodes(node):
        name = outer
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{outer}.{child.name}" if outer else child.name
            yield child.lineno, child.end_lineno or child.lineno, name
        yield from _scopes(child, name)


def _marks(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield ids passed to `example(…)` or `pytest.mark.rule(…)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in MARKS:
            for argument in node.args:
                if isinstance(argument, ast.Constant):
                    yield str(argument.value), node.lineno


def _constants(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the texts that are the id of a rule and nothing else."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and CITATION.fullmatch(str(node.value)):
            yield str(node.value), node.lineno


def find_exceptions(root: Path = ROOT) -> Mapping[str, Mapping[str, str]]:
    """Map rules to reasons: those with `one_kind` of check, and those with `no_mistake`."""
    path = root / EXCEPTIONS
    found = tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {name: found.get(name, {}) for name in ("one_kind", "no_mistake")}


def thin(
    rules: list[Rule],
    citations: list[Citation],
    exceptions: Mapping[str, Mapping[str, str]],
    shown: Shown,
) -> Iterator[str]:
    """Yield rules checked in one way only, or broken by no mistake, without a reason for it."""
    known = {rule.id: rule for rule in rules if not rule.withdrawn}
    kinds: dict[str, set[Kind]] = {rule: set() for rule in known}
    for citation in citations:
        if citation.rule in kinds and citation.kind in (Kind.TEST, *OTHER_CHECKS):
            if citation.kind.value in PLACED and (citation.rule, citation.path) not in shown:
                continue
            kinds[citation.rule].add(citation.kind)
    lacking = {
        "one_kind": {r: "has fewer than two kinds of check" for r in kinds if len(kinds[r]) < 2},
        "no_mistake": {r: "is broken by no mistake" for r in kinds if Kind.MISTAKE not in kinds[r]},
    }
    for table, problems_of in lacking.items():
        reasons = exceptions[table]
        for rule, problem in problems_of.items():
            reason = reasons.get(rule) or reasons.get(_subject(rule), "")
            if not reason.strip():
                yield f"{known[rule].chapter}: {rule} {problem}, and {EXCEPTIONS} says not why"
        needed = {*problems_of, *map(_subject, problems_of)}
        for rule in reasons:
            if rule not in needed:
                yield f"{EXCEPTIONS}: {rule} needs no reason in [{table}]"


def _subject(rule_id: str) -> str:
    """Return `KV-TIER` for KV-TIER-3: a reason may cover all rules of a subject."""
    return rule_id.rpartition("-")[0]


def problems(
    rules: list[Rule],
    citations: list[Citation],
    exceptions: Mapping[str, Mapping[str, str]],
    shown: Shown,
) -> list[str]:
    """Return the problems, one line each."""
    found = [] if rules else ["spec/rules: there is no rule"]
    known = {rule.id: rule for rule in rules}
    for rule in rules:
        if sum(other.id == rule.id for other in rules) > 1:
            found.append(f"{rule.chapter}: {rule.id} is defined more than once")
        if rule.name and sum(other.name == rule.name for other in rules) > 1:
            found.append(f"{rule.chapter}: {rule.id} shares its name, {rule.name!r}")
        found += [f"{rule.chapter}: {rule.id} {flaw}" for flaw in rule.flaws()]
    tested = {citation.rule for citation in citations if citation.kind is Kind.TEST}
    untested = [rule for rule in rules if rule.id not in tested and not rule.withdrawn]
    found += [f"{rule.chapter}: {rule.id} has no test" for rule in untested]
    for citation in citations:
        if citation.rule not in known:
            found.append(f"{citation.path}:{citation.line}: {citation.rule} is no rule")
        elif known[citation.rule].withdrawn and citation.kind is not Kind.TEXT:
            found.append(f"{citation.path}:{citation.line}: {citation.rule} is withdrawn")
    found += thin(rules, citations, exceptions, shown)
    return list(dict.fromkeys(found))


def sentences(rules: list[Rule]) -> str:
    """Return rule id -> name, sentence, explanation, chapter and place, as JSON.

    A withdrawn rule is neither kept nor broken, nor are rules of components beside a manager.
    """
    mine = [rule for rule in rules if rule.chapter not in BESIDE and not rule.withdrawn]
    members = {key: key for key in ("name", "sentence", "text")}
    members |= {"chapter": "title", "path": "chapter", "line": "line"}
    kept = ({rule.id: {key: getattr(rule, of) for key, of in members.items()}} for rule in mine)
    lines = (json.dumps(each, ensure_ascii=False)[1:-1] for each in kept)
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def show(rule_id: str, rules: list[Rule], citations: list[Citation], shown: Shown) -> int:
    """Print the place of a rule, its citations, and its failed checks; returns 1 if unknown."""
    for rule in rules:
        if rule.id == rule_id:
            print(f"{rule.id} ({rule.name})  {rule.sentence}\n  rule        {rule.chapter}")
            mine = [citation for citation in citations if citation.rule == rule_id]
            for kind in (*list(Kind)[1:], Kind.TEXT):
                places = dict.fromkeys(each.place for each in mine if each.kind is kind)
                if kind is Kind.RECORD and places:
                    places = {f"{len(places)} files": None}
                if kind in (Kind.TEST, *OTHER_CHECKS[:-1]) and kind.value not in PLACED and places:
                    places[_fails(shown, rule_id, kind.value)] = None
                for place in places:
                    note = ""
                    if kind.value in PLACED:
                        path = place.partition(":")[0]
                        note = f"  ({_fails(shown, rule_id, path)})"
                    print(f"  {kind.value:<10}  {place}{note}")
            return 0
    print(f"{rule_id} is no rule", file=sys.stderr)
    return 1


def _fails(shown: Shown, rule: str, place: str) -> str:
    mistake = shown.get((rule, place))
    return f"found {mistake}" if mistake else "not shown to fail"


def main(args: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Show one rule, or write the file of all.")
    parser.add_argument("rule", nargs="?", help="show what cites this one")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 on a misfit")
    options = parser.parse_args(args)
    rules = find_rules()
    if not (options.rule or options.check):
        (ROOT / SENTENCES).write_text(sentences(rules), encoding="utf-8")
        return 0
    citations, shown = find_citations(), find_shown(ROOT)
    if options.rule:
        return show(options.rule, rules, citations, shown)
    found = problems(rules, citations, find_exceptions(), shown)
    path = ROOT / SENTENCES
    if not path.exists() or path.read_text(encoding="utf-8") != sentences(rules):
        found.append(f"{SENTENCES} is not current; run: python spec/table.py")
    by_rule = [len({place for rule, place in shown if rule == each.id}) for each in rules]
    print(f"{sum(n > 1 for n in by_rule)} rules with two checks that were seen to fail")
    print("\n".join(found) or f"{len(rules)} rules, each checked in two ways")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
