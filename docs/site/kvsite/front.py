"""The front page: README.md, with figures that come from files and a record to step through."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

from kvcheck.records.select import named_record
from kvcheck.tools.view import load
from kvcheck.view.page import page

FRONT = "README"
BEFORE = "## Try it"
LONGEST, PICTURE = 200, "_static/link.png"
APPLYING = frozenset({"unbroken", "broken", "in doubt", "not exercised"})
RECORD, STORY = "life_of_blocks", "view.html"


def connect(app: Sphinx) -> None:
    """Add to the front page, and write what it shows."""
    app.connect("source-read", add)
    app.connect("build-finished", write)
    app.connect("html-page-context", describe)


def add(app: Sphinx, name: str, source: list[str]) -> None:
    """Add what only the site has: text above the first command, and the table of contents."""
    if name == FRONT:
        here, root = Path(__file__).parent, Path(app.srcdir)
        above, contents = ((here / part).read_text("utf-8") for part in ("front.md", "contents.md"))
        before, found, after = source[0].partition(BEFORE)
        assert found, f"README.md has no line that begins with {BEFORE!r}"  # noqa: S101
        shown = Template(above).substitute(figures(root))
        source[0] = "".join((before, shown, "\n", found, after, "\n", contents))


def figures(root: Path) -> dict[str, str]:
    """Return the numbers of the front page, each from a generated file."""

    def read(path: str) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = json.loads((root / path).read_text("utf-8"))
        return found

    cells = read("tests/kills/cells.json")["cells"]
    killed = sum('"killed"' in json.dumps(layers) for layers in cells.values())
    report: dict[str, Any] = read("docs/findings/vllm-0.33.json")
    said = report["rules"]
    broken = {rule for rule, verdict in said.items() if verdict == "broken"}
    known = tomllib.loads((root / "docs/findings/vllm-0.33.toml").read_text("utf-8"))["known"]
    # The others are arguments, forms, orders, and what it changed or does not offer.
    causes = {each["cause"] for each in known if each["reason"].startswith("Wrong:")}
    wrong = {each["rule"] for each in report["violations"] if each["cause"] in causes}
    results = (root / "bench/RESULTS.md").read_text("utf-8")
    replay = re.findall(r"^\| manager, in all \|.*\| ([\d.]+) \([^|]*\) \|$", results, re.MULTILINE)
    return {
        "rules": f"{len(read('kvcheck/data/rules.json')):,}",
        "mistakes": f"{len(cells):,}",
        "killed": f"{killed:,}",
        "wrong": str(len(broken & wrong)),
        "applying": str(sum(verdict in APPLYING for verdict in said.values())),
        "differing": str(len(broken - wrong)),
        "unbroken": str(list(said.values()).count("unbroken")),
        "faster": replay[0],
    }


def describe(app: Sphinx, name: str, _: str, context: dict[str, Any], tree: Any) -> None:
    """Give a page the title and the description that a link to it shows: its first paragraph."""
    paragraphs = () if tree is None else tree.findall(nodes.paragraph)
    text = " ".join(next((each.astext() for each in paragraphs), "").split())
    about = escape(text if len(text) <= LONGEST else text[: LONGEST - 1] + "…")
    title = escape(re.sub(r"<[^>]+>", "", context.get("title", "")))
    context["metatags"] = (
        f'{context.get("metatags", "")}<meta name="description" content="{about}">'
        f'<meta property="og:title" content="{title}">'
        f'<meta property="og:description" content="{about}">'
        f'<meta property="og:image" content="{context["pathto"](PICTURE, resource=True)}">'
    )


def write(app: Sphinx, error: Exception | None) -> None:
    """Write the record's page, and the front page where a browser looks for it."""
    if error is None:
        out = Path(app.outdir)
        story = page(load(named_record(Path(RECORD)), None))
        (out / STORY).write_text(story, encoding="utf-8")
        shutil.copy(out / f"{FRONT}.html", out / "index.html")
