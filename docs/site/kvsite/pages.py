"""Changes to all pages: links to folders, and ids of rules as links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from myst_parser.slugs import github_slugify
from pygments.lexers import JsonLexer, TextLexer
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish
from sphinx.transforms.post_transforms import SphinxPostTransform

LINK = re.compile(r"\[([^\]\n]+)\]\(([^)#\s:]+?)/?\)")
RULE = re.compile(r"\bKV-[A-Z]+-[0-9]+\b")
RULE_OR_CHAPTER = re.compile(r"\bKV-[A-Z]+(?:-[0-9]+)?\b")
WORD = re.compile(rf"{RULE_OR_CHAPTER.pattern}|\w+", re.IGNORECASE)
BELOW: Mapping[str, str] = {
    "docs/decisions/README": r"0[^)#]*\.md",
    "docs/FINDINGS": r"reports/[^)#]*\.md",
    "spec/README": r"rules/[^)#]*\.md",
}
"""In the table of contents, pages linked from these are placed below them, in that order."""

STAR = re.compile(r"(?<=-)[*]")
UNTOUCHED = (nodes.reference, nodes.title, nodes.literal, nodes.literal_block, nodes.comment)


def connect(app: Sphinx, rules: Iterable[Any]) -> None:
    """Process every page. `rules`: those of spec/table.py."""
    known = {name: rule for rule in rules for name in (rule.id.rpartition("-")[0], rule.id)}
    app.connect("source-read", link_folders)
    app.connect("autodoc-process-docstring", escape_stars)
    app.add_lexer("jsonl", JsonLexer)
    app.add_lexer("kv", TextLexer)
    app.add_object_type("rule", "rule")
    app.add_search_language(Search)
    app.connect("doctree-read", note_rules)
    app.add_post_transform(type("LinkTheRules", (LinkRules,), {"rules": known}))


def link_folders(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace a link to a folder by one to its README.md; without one only the name stays."""
    here = (Path(app.srcdir) / page).parent

    def instead(link: re.Match[str]) -> str:
        folder = here / link[2]
        if not folder.is_dir():
            return link[0]
        return f"[{link[1]}]({link[2]}/README.md)" if (folder / "README.md").exists() else link[1]

    source[0] = LINK.sub(instead, source[0])
    if below := BELOW.get(page):
        names = dict.fromkeys(re.findall(rf"\]\(({below})[)#]", source[0]))
        source[0] += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```\n"


def slug(title: str) -> str:
    """Return the anchor of a heading: the id of a rule, otherwise the usual one in Markdown."""
    rule = RULE.match(title)
    return rule[0] if rule else github_slugify(title)


def escape_stars(
    app: Sphinx, what: str, name: str, it: object, options: object, lines: list[str]
) -> None:
    """Escape the star of `KV-BATCH-*` in a docstring, which would begin emphasis."""
    lines[:] = [STAR.sub(r"\\*", line) for line in lines]


def note_rules(app: Sphinx, document: nodes.document) -> None:
    """Make the search find a rule's heading first, as it does functions and classes."""
    for section in document.findall(nodes.section):
        for name in filter(RULE.fullmatch, section["ids"]):
            app.env.domains.standard_domain.note_object("rule", name, name)


class Search(SearchEnglish):
    """English, in which the id of a rule or a chapter is one word."""

    js_splitter_code = f"""
var splitQuery = (query) =>
  query.match(/{RULE_OR_CHAPTER.pattern}|[\\p{{Letter}}\\p{{Number}}_]+/giu) ?? [];
"""

    def split(self, text: str) -> list[str]:
        """Return the words of a text, split as the search script does."""
        return WORD.findall(text)


class LinkRules(SphinxPostTransform):
    """`KV-POOL-8` in a text leads to that rule, whose sentence shows when it is pointed at."""

    default_priority = 900
    rules: ClassVar[Mapping[str, Any]]
    """By id; a chapter is known by one of its rules."""

    def run(self, **_: object) -> None:
        for text in list(self.document.findall(nodes.Text)):
            parent = text.parent
            if parent is None or not RULE_OR_CHAPTER.search(text) or self._is_untouched(text):
                continue
            parent.replace(text, list(self._parts(text.astext())))

    def _is_untouched(self, node: nodes.Node) -> bool:
        while node.parent is not None:
            node = node.parent
            if isinstance(node, UNTOUCHED):
                return True
        return False

    def _parts(self, text: str) -> list[nodes.Node]:
        parts: list[nodes.Node] = []
        end = 0
        for found in RULE_OR_CHAPTER.finditer(text):
            rule = self.rules.get(found[0])
            if rule is None:
                continue
            address = self.app.builder.get_relative_uri(
                self.env.docname, rule.chapter.removesuffix(".md")
            )
            link = nodes.reference("", found[0], internal=True, refuri=address, classes=["rule"])
            if found[0] == rule.id:
                link["refuri"] += f"#{rule.id}"
                link["reftitle"] = f"{rule.name}: {rule.sentence}"
            parts += [nodes.Text(text[end : found.start()]), link]
            end = found.end()
        return [*parts, nodes.Text(text[end:])]
