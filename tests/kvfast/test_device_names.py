"""Names that engines import from kvfast.device: those in `__all__`, none behind an underscore."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvfast import device
from tests.source import ROOT, shown

PACKAGE = "kvfast.device"
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = tuple(
    sorted(
        path
        for folder in ("examples", "docs", "bench")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md")
    )
)


def code_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    return [text] if path.suffix == ".py" else CODE.findall(text)


def imported(code: str) -> Iterator[str]:
    """Yield the imported names of kvfast.device: `pools`, `_backend.Backend`, …"""
    for node in ast.walk(ast.parse(textwrap.dedent(code))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        yield from (
            name.removeprefix(f"{PACKAGE}.") for name in names if name.startswith(f"{PACKAGE}.")
        )


def is_private(name: str) -> bool:
    return any(part.startswith("_") for part in name.split("."))


@pytest.mark.parametrize("path", SHOWN, ids=shown)
def test_what_readers_copy_imports_public_names_only(path: Path) -> None:
    names = [name for code in code_of(path) for name in imported(code)]
    assert [name for name in names if is_private(name)] == []
    assert [name for name in names if name not in device.__all__] == []


def test_a_private_import_is_found() -> None:
    code = "from kvfast.device._backend import Backend\nimport kvfast.device._arguments\n"
    assert [is_private(name) for name in imported(code)] == [True, True]
    assert list(imported("from kvfast.device import KVPools, _formats")) == ["KVPools", "_formats"]


def test_the_page_tells_of_every_public_name() -> None:
    text = (ROOT / "docs/device.md").read_text(encoding="utf-8")
    names = re.findall(r"`(\w+)`", text[text.index("## Names") :])
    assert [name for name in device.__all__ if name not in names] == []
