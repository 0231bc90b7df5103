"""The site: `python -m sphinx -W -c docs/site . build/site`, from the repository's root.

Its pages are the Markdown files in place. Additions to them are generated from the repository while
the site is built, and not written anywhere else: docs/decisions/0054-site.md.
"""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("docs/site", "spec")]

from kvsite import front, pages, rules  # noqa: E402  # found only now

project = "kvspec"
author = "the authors of kvspec"
release = installed_version("kvspec")
root_doc = "README"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = [
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"),
    *(f"{folder}/**.md" for folder in ("docs", "spec", "bench", "examples", "proofs")),
    "tests/README.md",
]
exclude_patterns = ["build", "**/node_modules", "**/target", ".*", "docs/site"]

# Headings have the ids that links in the repository expect.
myst_heading_anchors = 6
myst_heading_slug_func = "kvsite.pages.slug"
# A rule is a heading of the third level in every chapter, also where no second level is above it.
suppress_warnings = ["myst.header"]

# Docstrings are plain text, in which `name` is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": True, "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
toc_object_entries = False

html_theme = "furo"
html_title = f"kvspec {release}"
html_static_path = ["static"]
html_favicon = "static/icon.svg"
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False
# No address in pages: the same files are right wherever they lie.
html_theme_options = {"navigation_with_keys": True, "top_of_page_buttons": []}


def setup(app: Sphinx) -> dict[str, bool]:
    """Connect the parts that are generated while the site is built."""
    pages.connect(app, rules.connect(app))
    front.connect(app)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
