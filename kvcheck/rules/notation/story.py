"""Find the examples in a text: blocks of a chapter of rules, or a file of them alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.values import evaluated

HEADING = re.compile(r"^### (KV-[A-Z]+-\d+) ")
TITLE = re.compile(r"^==((?: KV-[A-Z]+-\d+)*)(?: since (\d+\.\d+))?(?:  (\S.*))?$")
ROWS = re.compile(r"^for (.+?) in\b(.*)$")
SUM = re.compile(r"^(\S.*) = (\S.*)$")
SAFE = re.compile(r"-> (?:[A-Z]\w*Error\b|at_most )")
OF_IDS = frozenset({"queue", "references", "cached_ids", "popped", "reserved", "lookup", "ranks"})
"""Queries about block ids, compared only at level identity."""


@dataclass(frozen=True)
class Line:
    """A line of an example, without its comment. `number`: its place in the file, from 1."""

    number: int
    text: str


@dataclass(frozen=True)
class Story:
    """One example as text: its rules, the one it shows first, and its lines.

    `path`: the file. `rows`: of its table, each a name and its value in words. `since`: the
    edition that introduced it, if that is later than its rules'.
    """

    name: str
    rules: tuple[str, ...]
    path: str
    lines: tuple[Line, ...]
    rows: tuple[tuple[tuple[str, str], ...], ...] = ((),)
    since: str = ""

    @property
    def is_of_copies(self) -> bool:
        """Whether it is a record of copies (KV-HAZ-*), which no implementation takes part in."""
        return bool(self.lines) and self.lines[0].text.split()[0] == "hazards"

    def played_lines(self) -> Iterator[tuple[str, Sequence[Line]]]:
        """Yield the lines once for each row of its table, names replaced; "" without a table."""
        for row in self.rows:
            named = ", ".join(f"{name} = {value}" for name, value in row)
            yield named, [Line(line.number, _filled(line.text, row)) for line in self.lines]


def _filled(text: str, row: Sequence[tuple[str, str]]) -> str:
    for name, value in row:
        text = re.sub(rf"(?<![\w\"])(?<!\w\.){re.escape(name)}(?![\w=\"])", value, text)
    return text


def stories_of(text: str, path: str, *, first_line: int = 1, rule: str = "") -> list[Story]:
    """Read the examples of a chapter (`.md`), of the text of one `rule`, or of a `.kv` file."""
    numbered = [Line(number, each) for number, each in enumerate(text.split("\n"), first_line)]
    found: list[Story] = []
    for owner, lines in _blocks(numbered, rule, is_markdown=path.endswith(".md")):
        for part in _titled(lines):
            story = _story(owner, part, path)
            twins = sum(each.name.partition(", ")[0] == story.name for each in found)
            if twins:
                story = replace(story, name=f"{story.name}, {twins + 1}")
            found.append(story)
    return found


def _blocks(
    lines: Sequence[Line], rule: str, *, is_markdown: bool
) -> Iterator[tuple[str, list[Line]]]:
    """Yield the rule and the lines of each fenced block; of a `.kv` file all of it."""
    if not is_markdown:
        yield rule, list(lines)
        return
    inside: list[Line] | None = None
    for line in lines:
        heading = HEADING.match(line.text)
        if heading:
            rule = heading.group(1)
        if inside is not None and line.text.startswith("```"):
            yield rule, inside
            inside = None
        elif inside is not None:
            inside.append(line)
        elif line.text.strip() == "```kv":
            inside = []


def _titled(lines: Sequence[Line]) -> Iterator[list[Line]]:
    """Cut lines before each title."""
    part: list[Line] = []
    for line in lines:
        if line.text.startswith("==") and part:
            yield part
            part = []
        if _bare(line.text) or line.text.startswith("=="):
            part.append(line)
    if part:
        yield part


def _story(owner: str, lines: Sequence[Line], path: str) -> Story:
    rules, since, name = (owner,) if owner else (), "", ""
    first = lines[0]
    if first.text.startswith("=="):
        title = TITLE.match(first.text)
        if title is None:
            raise NotationError("no title: == KV-SW-2 KV-SW-3  a sentence", first.number)
        rules = tuple(dict.fromkeys((*rules, *title.group(1).split())))
        since, name, lines = title.group(2) or "", title.group(3) or "", lines[1:]
    if not rules:
        raise NotationError("an example names its rules in its title", first.number)
    rows: tuple[tuple[tuple[str, str], ...], ...] = ((),)
    table = ROWS.match(lines[0].text.strip()) if lines else None
    if table:
        first, lines, values = lines[0], lines[1:], [table.group(2)]
        while lines and lines[0].text.startswith(" "):  # its rows, a line each
            values.append(lines[0].text)
            lines = lines[1:]
        listed = ";".join(each for each in map(_bare, values) if each)
        rows = _rows(table.group(1), listed, first.number)
    kept = tuple(Line(line.number, _bare(line.text)) for line in lines)
    name = f"{rules[0]}: {name}" if name else rules[0]
    return Story(name, rules, path, kept, rows, since)


def _bare(text: str) -> str:
    """Cut the comment off: `#` and a space; `a#2` is a hash."""
    return re.sub(r"(^|\s)#(\s.*)?$", "", text).strip()


def _rows(names: str, values: str, number: int) -> tuple[tuple[tuple[str, str], ...], ...]:
    found = []
    for row in re.split(r";(?![^{]*\})", values):
        cells = _cells(row)
        if len(cells) != len(names.split()):
            raise NotationError(f"{len(cells)} values for {names!r}: {row.strip()!r}", number)
        found.append(tuple(zip(names.split(), cells, strict=True)))
    return tuple(found)


def _cells(row: str) -> list[str]:
    """Cut a row at spaces outside of brackets; braces are removed around what they enclose."""
    cells, depth = [""], 0
    for sign in row.strip():
        depth += {"[": 1, "(": 1, "{": 1, "]": -1, ")": -1, "}": -1}.get(sign, 0)
        if sign == " " and depth == 0:
            cells.append("")
        else:
            cells[-1] += sign
    return [cell.strip("{}") for cell in cells if cell]


def sums(text: str) -> tuple[object, object] | None:
    """Compute both sides of `cdiv(6 - 1, 4) = 2`; None for another line."""
    match = _sum(text)
    return None if match is None else (evaluated(match.group(1)), evaluated(match.group(2)))


def answered(story: Story) -> list[str]:
    return [line.text for line in story.lines if "->" in line.text or sums_in(line.text)]


def sums_in(text: str) -> bool:
    return _sum(text) is not None


def _sum(text: str) -> re.Match[str] | None:
    return None if "->" in text or "[" in text else SUM.match(text)


def is_pool(text: str) -> bool:
    """Check whether a line makes a manager or begins a plan."""
    return re.match(r"(pool|plan)\b", text) is not None


def starts_anew(text: str) -> bool:
    """Check that a line does not depend on earlier ones: it makes a manager without a name."""
    return is_pool(text) and re.match(r"pool [a-z]", text) is None


def is_of_safety(text: str) -> bool:
    """Check whether every level asks this: an error, or a hit of `at_most` n tokens."""
    return SAFE.search(text) is not None


def is_of_ids(text: str) -> bool:
    """Check whether a line asks about block ids alone."""
    verb, *rest = text.split()
    return (rest[0] == "next_free_blocks") if verb == "batch" and rest else verb in OF_IDS


TAKES_IDS = re.compile(
    r"^(?:evict_blocks|free_blocks|hold_blocks|get_block|keys|covered|take_deltas|host)\b(?P<a>[^>]*?)(?:->|$)"
    r"|\bnew_computed_blocks=(?P<b>\[[^=]*)"
    r"|-> .*\b(?P<c>rows|slots|pairs|retained|places)="
    r"|^tree (?P<e>nodes|lost|take_copies|take_transfers|row\b.*slots)\b"
    r"|^chunk (?:prepare_load|end_step)\b.*-> \[(?P<d>[^\]])"
)
LITERAL = re.compile(r"(?<![\w.#/-])[1-9]\d*(?![\w.])")


def needs_ids(story: Story) -> bool:
    """Check whether an example names blocks by ids that a subject might number otherwise."""
    if any("hash_function=any" in line.text for line in story.lines):
        return False  # for any subject, whatever it numbers its blocks
    for line in story.lines:
        match = TAKES_IDS.search(line.text)
        if match and (
            match["c"]
            or match["d"]
            or match["e"]
            or LITERAL.search(_without_entries(match["a"] or match["b"] or ""))
        ):
            return True
    return False


def _without_entries(text: str) -> str:
    """Remove entries of a request's list, `a[2]`, and members, `name=3`."""
    return re.sub(r"[A-Za-z][\w.]*\[[^]]*\]|\w+=\d+", "", text)


def choices_of(story: Story) -> tuple[str, ...]:
    """Return the choices required as usual by all of the example, and those that ids depend on."""
    pools = [line.text for line in story.lines if is_pool(line.text)]
    usual = [set(" ".join(re.findall(r"; usual ([a-z_ ]+)", pool)).split()) for pool in pools]
    found = sorted(set.intersection(*usual)) if usual else []
    answers = answered(story)
    if needs_ids(story) or (answers and all(map(is_of_ids, answers))):
        found += ("unhashed_freed_to", "exact_block_ids")
    return tuple(dict.fromkeys(found))
