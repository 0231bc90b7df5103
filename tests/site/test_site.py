"""The site builds without a warning, links lead somewhere, nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.browser import browse, find_browser
from tests.source import ROOT

LOADING = frozenset({"script", "img", "iframe", "source", "video", "audio", "embed", "object"})
STYLED = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])(?:https?:)?//""")


@dataclass
class Page(HTMLParser):
    """The ids of a page, what it links to, and what it loads."""

    path: Path
    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "link" or tag in LOADING:
            self.loaded += [given[name] for name in ("href", "src", "data") if name in given]


def problems(folder: Path) -> Iterator[str]:
    """Yield one line for each problem."""
    pages = {path.resolve(): Page(path) for path in sorted(folder.rglob("*.html"))}
    for path, page in pages.items():
        name = path.relative_to(folder.resolve()).as_posix()
        for address in page.loaded:
            if is_elsewhere(address):
                yield f"{name}: loads {address}"
        for address in (*page.links, *page.loaded):
            if not is_elsewhere(address) and not leads_somewhere(path, address, pages):
                yield f"{name}: {address} leads nowhere"
    for path in sorted([*folder.rglob("*.css"), *folder.rglob("*.html")]):
        if STYLED.search(path.read_text(encoding="utf-8")):
            yield f"{path.name}: its style loads something from elsewhere"


def is_elsewhere(address: str) -> bool:
    return bool(urlsplit(address).netloc)


def leads_somewhere(path: Path, address: str, pages: dict[Path, Page]) -> bool:
    parts = urlsplit(address)
    if parts.scheme in ("data", "mailto"):
        return True
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    page = pages.get(target)
    place = unquote(parts.fragment)
    known = not place or page is None or place in page.ids or place.startswith("op=")  # of a record
    return target.is_file() and known


pytest.importorskip("furo", reason="needs the extra docs")


def sphinx(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_site_is_whole(tmp_path: Path) -> None:
    """Build the site once for all checks: it takes half a minute."""
    site = tmp_path / "site"
    done = sphinx("-c", "docs/site", "-d", tmp_path / "read", ".", site)
    assert done.returncode == 0, done.stderr
    assert list(problems(site)) == []
    every_page_of_the_repository_is_there(site)
    the_front_page_says_what_the_files_say(site)
    a_rule_has_its_figure_its_places_and_its_row_in_the_table(site)
    a_search_for_a_rule_finds_it_first(site, tmp_path)


def every_page_of_the_repository_is_there(site: Path) -> None:
    written = {p.relative_to(ROOT) for f in ("docs", "spec") for p in (ROOT / f).rglob("*.md")}
    written -= {p for p in written if "site" in p.parts or "node_modules" in p.parts}
    assert not [path for path in written if not (site / path.with_suffix(".html")).is_file()]


def the_front_page_says_what_the_files_say(site: Path) -> None:
    front = (site / "index.html").read_text("utf-8")
    shown = re.findall(r"<b>([^<]+)</b>", front)
    rules = json.loads((ROOT / "kvcheck/data/rules.json").read_text("utf-8"))
    findings = (ROOT / "docs/FINDINGS.md").read_text("utf-8")
    listed = findings.partition("<!-- begin vllm-0.33 -->")[2].partition("<!-- end")[0]
    lines = listed.partition("**Wrong")[2].partition("\n<details>")[0].splitlines()
    titles = (line.partition("<details>")[0] for line in lines)
    wrong = {rule for title in titles for rule in re.findall(r"KV-[A-Z]+-\d+", title)}
    totals = re.findall(r"\*\*\d+ of (\d+), (\d+) broken\*\*", findings)
    applying, broken = totals[1]  # the second column: vLLM 0.33.0
    assert shown[0] == f"{len(rules)}"
    assert shown[2] == f"{len(wrong)} of {applying}"
    assert f"breaks {int(broken) - len(wrong)} more rules" in front
    assert len(shown) == 4
    assert f"| {shown[3].split()[0]} (" in (ROOT / "bench/RESULTS.md").read_text("utf-8")
    assert 'src="view.html#op=' in front
    assert "life_of_blocks" in (site / "view.html").read_text("utf-8")


def a_rule_has_its_figure_its_places_and_its_row_in_the_table(site: Path) -> None:
    chapter = (site / "spec/rules/pool.html").read_text("utf-8")
    rule = chapter.partition('id="KV-POOL-8"')[2].partition('id="KV-POOL-9"')[0]
    assert "<svg" in rule
    assert 'class="key"' in rule
    assert "<dt>code</dt>" in rule
    assert "kvref/" in rule
    rules = json.loads((ROOT / "kvcheck/data/rules.json").read_text("utf-8"))
    contract = (site / "spec/README.html").read_text("utf-8")
    assert all(f"#{rule}" in contract for rule in rules)


def a_search_for_a_rule_finds_it_first(site: Path, folder: Path) -> None:
    index = json.loads((site / "searchindex.js").read_text("utf-8")[len("Search.setIndex(") : -1])
    rules = json.loads((ROOT / "kvcheck/data/rules.json").read_text("utf-8"))
    assert set(rules) <= {name for *_, name in index["objects"][""]}
    assert "kv-pool-8" in index["titleterms"]
    if browser := find_browser():
        address = f"{(site / 'search.html').as_uri()}?q=kv-pool-8"
        shown = browse(browser, folder, address, "--dump-dom")
        results = re.findall(r'<li[^>]*><a href="([^"?]+)', shown.partition('class="search"')[2])
        assert results[0].endswith("spec/rules/pool.html#KV-POOL-8")
        assert 1 < len(results) < 40  # pages that name it, and not those about any pool


def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text("# A page\n\n[nowhere](gone.md)\n", encoding="utf-8")
    done = sphinx("-C", "-D", "extensions=myst_parser", tmp_path, tmp_path / "out")
    assert done.returncode == 1
    assert "gone.md" in done.stderr


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('<a href="gone.html">x</a>', "leads nowhere"),
        ('<a href="#gone">x</a>', "leads nowhere"),
        ('<script src="https://example.org/x.js"></script>', "loads https://example.org/x.js"),
        ('<link rel="stylesheet" href="//example.org/x.css">', "loads //example.org/x.css"),
        ("<style>@import 'https://example.org/x.css'</style>", "loads something from elsewhere"),
        ('<a href="https://example.org">x</a><b id="y"></b><a href="#y">x</a>', None),
    ],
)
def test_the_check_of_links_can_fail(tmp_path: Path, text: str, problem: str | None) -> None:
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    found = list(problems(tmp_path))
    assert len(found) == (problem is not None)
    assert problem is None or problem in found[0]
