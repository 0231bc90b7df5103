"""The rules as a reference: an index to search in, figures, symbols, and where each rule lives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

import table
from kvsite import figure

CHAPTER = "spec/rules/"
CONTRACT = "spec/README"
SYMBOL_ROW = re.compile(r"^\| (.+?) \| (.+) \|$", re.MULTILINE)
NEXT_RULE = re.compile(r"^##+ ", re.MULTILINE)
KINDS = ("code", "invariants", "tests", "check", "proofs", "contracts", "model", "mistakes")
"""The kinds of citations in spec/table.py that are listed below a rule."""


def connect(app: Sphinx) -> Sequence[Any]:
    """Read the rules, and add to the pages that have them."""
    reference = Reference()
    app.connect("source-read", reference.add)
    return reference.rules


class Reference:
    """The additions to each rule."""

    def __init__(self) -> None:
        self.rules: Sequence[Any] = table.find_rules()
        self.places: dict[str, dict[str, list[str]]] = {}
        for citation in table.find_citations():
            kinds = self.places.setdefault(citation.rule, {})
            kinds.setdefault(citation.kind.value, []).append(citation.place)
        self.films = figure.films()

    def add(self, app: Sphinx, page: str, source: list[str]) -> None:
        """Add to a chapter or to the page about all of them."""
        if page == CONTRACT:
            source[0] += "\n".join(self.index())
        elif page.startswith(CHAPTER):
            symbols = symbols_of(Path(app.srcdir, f"{CONTRACT}.md").read_text("utf-8"))
            source[0] = self.chapter(source[0], symbols)

    def chapter(self, text: str, symbols: Mapping[str, str]) -> str:
        """Return the chapter with its symbols above the first rule, and additions below each
        rule.
        """
        before, *parts = re.split(r"^(?=### KV-)", text, flags=re.MULTILINE)
        used = {s: meaning for s, meaning in symbols.items() if is_used(s, text)}
        done = [before, *symbol_table(used)]
        for part in parts:
            rule = part.split()[1]
            after = NEXT_RULE.search(part, 4)
            end = after.start() if after else len(part)
            done += [part[:end].rstrip() + "\n\n", *self.below(rule), part[end:]]
        return "".join(done)

    def below(self, rule: str) -> Iterator[str]:
        """Yield the figure of a rule, and the places that cite it."""
        if film := self.films.get(rule):
            yield f'<figure class="rule"><div class="drawn">{figure.svg(film)}</div><figcaption>'
            yield f'<p class="keys">{figure.legend(film)}</p>The blocks after each line of an'
            yield f" example, <em>{escape(film.name)}</em>, on the reference."
            yield "</figcaption></figure>\n\n"
        rows = []
        for kind in KINDS:
            places = list(dict.fromkeys(self.places.get(rule, {}).get(kind, [])))
            if places:
                shown = ", ".join(f"<code>{escape(each)}</code>" for each in places)
                rows.append(f"<dt>{kind}</dt><dd>{shown}</dd>")
        if rows:
            yield '<details class="places"><summary>Where this rule lives</summary>'
            yield f"<dl>{''.join(rows)}</dl></details>\n\n"

    def index(self) -> Iterator[str]:
        """Yield a table of all rules, with a field that filters them."""
        yield "\n\n## All rules\n"
        yield '<input id="rule-filter" type="search" placeholder="id, name or words of the'
        yield ' sentence" aria-label="Show only rules with these words"><p id="rule-count"'
        yield f' aria-live="polite">{len(self.rules)} rules</p>\n\n'
        yield '<table id="all-rules"><thead><tr><th>rule</th><th>name</th><th>what it says</th>'
        yield "</tr></thead><tbody>"
        for rule in self.rules:
            address = f"rules/{Path(rule.chapter).stem}.html#{rule.id}"
            yield f'<tr><td><a href="{address}">{rule.id}</a></td><td>{escape(rule.name)}</td>'
            yield f"<td>{escape(rule.sentence)}</td></tr>"
        yield "</tbody></table>\n"


def symbols_of(contract: str) -> dict[str, str]:
    """Map each symbol to its meaning, from the table in spec/README.md."""
    table = contract.partition("## Symbols")[2].partition("\n## ")[0]
    return {row[1]: row[2] for row in SYMBOL_ROW.finditer(table) if row[1] not in ("symbol", "---")}


def is_used(symbol: str, text: str) -> bool:
    """Return whether a chapter uses a one-letter symbol: as a word, not as an article."""
    names = [name.partition("(")[0] for name in symbol.split(", ")]
    return any(
        len(name) == 1
        and name not in ("A", "a")
        and re.search(rf"(?<![\w.'-]){name}(?![\w'-])", text) is not None
        for name in names
    )


def symbol_table(symbols: Mapping[str, str]) -> Iterator[str]:
    """Yield the symbols of a chapter, folded."""
    if symbols:
        yield '<details class="symbols"><summary>Symbols in this chapter</summary>\n\n'
        yield "| symbol | meaning |\n|---|---|\n"
        yield from (f"| {symbol} | {meaning} |\n" for symbol, meaning in symbols.items())
        yield "\n</details>\n\n"
