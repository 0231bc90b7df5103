"""docs/MUTATION.md: what was tried of what there is, scores, and what lives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import version

from tests.mutation.counts import Counts, Row, row, total
from tests.mutation.explained import Explained
from tests.mutation.runner import Outcome, Result
from tests.mutation.sampling import LONG_S, SHORT_S
from tests.mutation.targets import ROOT, TARGETS

PAGE = ROOT / "docs" / "MUTATION.md"

HEAD = """# Mutation scores

One small change in the code at a time – `<` for `<=`, `None` for an argument, a constant one
larger – and whether a test fails. The changes are those of
[mutmut](https://github.com/boxed/mutmut) {version}; the tests are the ones named below, run on
plain Python: the compiled build of kvfast is another file, and is never what is tried here.

`python -m tests.mutation` tries mutants and writes this page; last {date}, in several runs. What
was killed once is not tried again, unless its function changes, and later tests are counted in. The
code has changed since: *there* are the mutants that it has today, *tried* those of which the runs
know anything, some of them in functions that have another form today. With `--page` it counts what
is there again. `.ci/nightly` tries 30 of them (`--sample 30`), besides the mistakes made by hand
in [KILLS.md](KILLS.md).

score = killed / (tried − equivalent). A mutant that does not end counts as killed. A mutant is
equivalent if no caller can observe the change; each is listed, with its reason, in
[explained.toml](../tests/mutation/explained.toml), and so is what lives though it is not. The
reasons are arguments, not proofs. A mutant lives when the tests pass that reach it and fit into the
time it is given (`--budget`); more of them could only kill more.

What lived was then looked into, and tests were written or reasons given until nothing was left. A
score of 100 % says that this was done. Of mutants that were not tried it says nothing: see the
[fresh draws](#fresh-draws).

Not mutated: texts (what errors and offences say in words: f-strings, literals with a space, and
what a ConfigError says is allowed), annotations, `len(…)` and `isinstance(…)`, and what stands
outside of functions, as mutmut has it. Files that are in no table below are not mutated: the other
modules of kvspec and kvfast, `kvfast.device`, and the `.pyx` and `.pxd` files.
"""


def write(counts: Counts) -> None:
    """The page."""
    PAGE.write_text("\n".join(lines(counts)), encoding="utf-8")


def lines(counts: Counts) -> Iterator[str]:
    """The page, line by line."""
    yield HEAD.format(version=version("mutmut"), date=counts.made)
    yield from _summary(counts)
    yield from _draws(counts)
    for target in TARGETS:
        yield from _files(target.name, counts.files[target.name])


def _summary(counts: Counts) -> Iterator[str]:
    yield _columns("target")
    for target in TARGETS:
        yield f"| {target.name} | {total(counts.files[target.name].values())} |"
    yield ""
    for target in TARGETS:
        tests = ", ".join(f"`{path}`" for path in target.tests)
        chosen = f" (`-k '{target.keyword}'`)" if target.keyword else ""
        drawn = ""
        if target.sample is not None:
            drawn = f"; {target.sample} mutants were drawn once, by seed 1, and no others tried"
        yield f"- **{target.name}**: {target.about}{drawn}. Tests: {tests}{chosen}."
    yield ""


def _draws(counts: Counts) -> Iterator[str]:
    """What became of mutants that nobody had looked at, survivors by name."""
    yield "## Fresh draws\n"
    if not counts.draws:
        yield "None so far, so nothing is known of the mutants that were not tried.\n"
        return
    yield "Drawn after the tests were written (`python -m tests.mutation NAME --fresh N --seed S`),"
    yield "and published as they came out: what lives is neither explained nor mended."
    yield f"The tests of one mutant: {SHORT_S:.0f} s of those that killed others of its function,"
    yield f"then {LONG_S:.0f} s of all. *Same* are changes that compile to the same code.\n"
    yield "| target | seed | there | drawn | killed | timeouts | same | survived |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|"
    for each in counts.draws:
        cells = (each.seed, each.there, each.number, each.killed, each.timeouts, each.same)
        numbers = " | ".join(f"{cell:,}" for cell in (*cells, len(each.survived)))
        yield f"| {each.target} | {numbers} |"
    yield ""
    for each in counts.draws:
        yield from (f"- seed {each.seed}: `{name}`" for name in each.survived)
    yield ""


def _columns(first: str) -> str:
    return (
        f"| {first} | there | tried | killed | timeouts | equivalent | survived | of the tried |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|"
    )


def _files(title: str, rows: Mapping[str, Row]) -> Iterator[str]:
    """A row for each file of a target."""
    yield f"## {title}\n"
    yield _columns("file")
    for path, each in sorted(rows.items()):
        if each.there or each.tried:
            yield f"| {path} | {each} |"
    yield ""


def complaints(results: Mapping[str, Mapping[str, Result]], lists: Explained) -> list[str]:
    """Scores that are too low, what lives unexplained, and explanations of what does not live."""
    found = []
    alive: set[str] = set()
    tried: set[str] = set()
    for target in TARGETS:
        found_here = row(0, results[target.name].values(), lists)
        if found_here.score < target.enough:
            found.append(f"{target.name}: {100 * found_here.score:.1f} %")
        tried |= results[target.name].keys()
        alive |= {r.name for r in results[target.name].values() if r.outcome is Outcome.SURVIVED}
    explained = lists.equivalent.keys() | lists.alive.keys()
    unexplained = [name for name in sorted(alive) if not lists.explains(name)]
    found.extend(f"lives unexplained: {name}" for name in unexplained)
    found.extend(f"does not live: {name}" for name in sorted(explained & tried - alive))
    return found
