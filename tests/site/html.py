"""A built site: links that lead nowhere, and anything that a browser would load from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

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
