"""Everything in the repository that a program writes: `python -m tests.regenerate [NAME…]`.

Without names it writes the files that take seconds, and `--check` lists those that are stale, as
the tests do. Files that take longer are written by name; the list says how long.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import click

from tests.adapters import findings
from tests.differences.vectors import write_vectors
from tests.kills import matrix
from tests.kills import page as kills_page
from tests.mutation.page import texts as mutation
from tests.proofs import refinement
from tests.remote.schema import protocol
from tests.replay import page as prompts_page
from tests.source import ROOT


def load_table() -> ModuleType:
    """Load the script spec/table.py and the one beside it as modules; spec is no package."""
    _load("shown", "spec/shown.py")
    return _load("spec_table", "spec/table.py")


def _load(name: str, path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Quick:
    """Texts that take seconds: path -> text."""

    name: str
    texts: Callable[[], Mapping[str, str]]


@dataclass(frozen=True)
class Slow:
    """A command that writes these files, and its time on two cores."""

    name: str
    writes: str
    takes: str
    command: tuple[str, ...]


def rules() -> Mapping[str, str]:
    table = load_table()
    return {table.SENTENCES: table.sentences(table.find_rules())}


def decisions() -> Mapping[str, str]:
    lines = [
        "# Decisions",
        "",
        "One page each: what the field does, what we chose, why, what it costs.",
        "",
    ]
    for page in sorted((ROOT / "docs/decisions").glob("0*.md")):
        heading = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        number, _, title = heading.partition(" ")
        lines.append(f"- [{number.rstrip('.')}]({page.name}) {title}")
    return {"docs/decisions/README.md": "\n".join(lines) + "\n"}


def differences() -> Mapping[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        write_vectors(Path(folder))
        return {
            f"kvcheck/data/records/differences/{path.name}": path.read_text(encoding="utf-8")
            for path in sorted(Path(folder).iterdir())
        }


def kills() -> Mapping[str, str]:
    text = kills_page.text(kills_page.everybody(), matrix.read())
    return {str(kills_page.PAGE.relative_to(ROOT)): text}


PYTHON = sys.executable
KVSPEC = (PYTHON, "-m", "kvcheck.cli")
PICTURE = "docs/images/demo.png"

GENERATED: Sequence[Quick | Slow] = (
    Quick("rules", rules),
    Quick("decisions", decisions),
    Quick("differences", differences),
    Quick("findings", findings.texts),
    Quick("protocol", protocol),
    Quick("refinement", lambda: {refinement.PAGE: refinement.page()}),
    Quick("mutation", mutation),
    Quick("kills", kills),
    Quick("prompts", lambda: {"docs/prompts.md": prompts_page.text()}),
    Slow(
        "demo",
        PICTURE,
        "seconds",
        (*KVSPEC, "replay", "demo", "--impl", "kvref", "--limit", "50", "--plot", PICTURE),
    ),
    Slow("verdict", "docs/images/verdict.svg", "seconds", (PYTHON, "-m", "tests.picture")),
    Slow(
        "window",
        "docs/implement-your-own.md",
        "a minute",
        (PYTHON, "-m", "tests.examples.window"),
    ),
    Slow("cells", "tests/kills/cells.json", "up to an hour", (PYTHON, "-m", "tests.kills")),
)


def outdated(each: Quick, root: Path = ROOT) -> Iterator[str]:
    for name, text in each.texts().items():
        path = root / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            yield name


def write(each: Quick | Slow, root: Path = ROOT) -> None:
    if isinstance(each, Slow):
        subprocess.run(each.command, cwd=root, check=True)
        return
    for name, text in each.texts().items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([each.name for each in GENERATED]))
@click.option("--check", is_flag=True, help="Write nothing; exit 1 if something is not current.")
@click.option("--list", "lists", is_flag=True, help="Show what there is.")
def command(names: tuple[str, ...], check: bool, lists: bool) -> None:
    """Write what programs write: what takes seconds, or what is named."""
    quick = [each for each in GENERATED if isinstance(each, Quick)]
    if lists:
        for each in GENERATED:
            takes = each.takes if isinstance(each, Slow) else "seconds, checked"
            writes = each.writes if isinstance(each, Slow) else ", ".join(sorted(each.texts())[:2])
            click.echo(f"{each.name:12}  {takes:16}  {writes}")
    elif check:
        found = [name for each in quick for name in outdated(each)]
        for name in found:
            click.echo(f"{name} is not current; run: python -m tests.regenerate")
        sys.exit(bool(found))
    else:
        for each in [each for each in GENERATED if each.name in names] or quick:
            write(each)


if __name__ == "__main__":
    command()
