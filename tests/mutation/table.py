"""docs/MUTATION.md: scores, and what lives."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version

from tests.mutation.explained import Explained
from tests.mutation.runner import Outcome, Result
from tests.mutation.targets import ROOT, TARGETS

PAGE = ROOT / "docs" / "MUTATION.md"

HEAD = """# Mutation scores

One small change in the code at a time – `<` for `<=`, `None` for an argument, a constant one
larger – and whether a test fails. The changes are those of
[mutmut](https://github.com/boxed/mutmut) {version}; the tests are the ones named below, run on
plain Python: the compiled build of kvfast is another file, and is never what is tried here.

Made with `python -m tests.mutation`, {date}, in several runs: what was killed once is not tried
again, unless its function changes, and later tests are counted in. CI tries 30 of them again
(`python -m tests.mutation --sample 30`), besides the mistakes made by hand in
[MUTANTS.md](MUTANTS.md).

score = killed / (mutants − equivalent). A mutant that does not end counts as killed. A mutant is
equivalent if no caller can observe the change; each is listed, with its reason, in
[explained.toml](../tests/mutation/explained.toml), and so is what lives though it is not. A mutant
lives when the tests pass that reach it and fit into the time it is given (`--budget`); more of them
could only kill more, so a score is a lower bound.

Not mutated: texts (what errors and offences say in words: f-strings, literals with a space, and
what a ConfigError says is allowed), annotations, `len(…)` and `isinstance(…)`, and what stands
outside of functions, as mutmut has it.
"""


@dataclass(frozen=True)
class Row:
    """Counts of one file, of one target, or of all."""

    name: str
    mutants: int
    killed: int
    timeouts: int
    equivalent: int
    survived: int

    @property
    def score(self) -> float:
        """Of those that differ, the share that dies; 1.0 if there are none."""
        differ = self.mutants - self.equivalent
        return (self.killed + self.timeouts) / differ if differ else 1.0

    def __str__(self) -> str:
        counts = (self.mutants, self.killed, self.timeouts, self.equivalent, self.survived)
        cells = " | ".join(f"{count:,}" for count in counts)
        return f"| {self.name} | {cells} | {100 * self.score:.1f} % |"


def row(name: str, results: Iterable[Result], lists: Explained) -> Row:
    """The counts. A change that compiles to the same code is equivalent."""
    counts: Counter[str] = Counter()
    for result in results:
        if result.outcome is Outcome.SAME or (
            result.outcome is Outcome.SURVIVED and lists.is_equivalent(result.name)
        ):
            counts["equivalent"] += 1
        else:
            counts[result.outcome] += 1
    return Row(
        name,
        sum(counts.values()),
        counts[Outcome.KILLED],
        counts[Outcome.TIMEOUT],
        counts["equivalent"],
        counts[Outcome.SURVIVED],
    )


def write(results: Mapping[str, Mapping[str, Result]], lists: Explained) -> None:
    """The page."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parts = [HEAD.format(version=version("mutmut"), date=today), *_summary(results, lists)]
    for target in TARGETS:
        parts.extend(_files(target.name, results[target.name], lists))
    parts.extend(_alive(lists))
    PAGE.write_text("\n".join(parts), encoding="utf-8")


def _summary(results: Mapping[str, Mapping[str, Result]], lists: Explained) -> Iterator[str]:
    yield _columns("target")
    for target in TARGETS:
        yield str(row(target.name, results[target.name].values(), lists))
    yield ""
    for target in TARGETS:
        tests = ", ".join(f"`{path}`" for path in target.tests)
        chosen = f" (`-k '{target.keyword}'`)" if target.keyword else ""
        drawn = f"; {target.sample} mutants drawn" if target.sample is not None else ""
        yield f"- **{target.name}**: {target.about}{drawn}. Tests: {tests}{chosen}."
    yield ""


def _columns(first: str) -> str:
    return (
        f"| {first} | mutants | killed | timeouts | equivalent | survived | score |\n"
        "|---|--:|--:|--:|--:|--:|--:|"
    )


def _files(title: str, results: Mapping[str, Result], lists: Explained) -> Iterator[str]:
    """A row for each file of a target."""
    by_file: dict[str, list[Result]] = {}
    for name, result in results.items():
        by_file.setdefault(name.partition(":")[0], []).append(result)
    yield f"## {title}\n"
    yield _columns("file")
    for path, found in sorted(by_file.items()):
        yield str(row(path, found, lists))
    yield ""


def _alive(lists: Explained) -> Iterator[str]:
    """What lives and is not equivalent, by reason."""
    yield "## Alive\n"
    by_reason: dict[str, list[str]] = {}
    for name, reason in lists.alive.items():
        by_reason.setdefault(reason, []).append(name)
    if not by_reason:
        yield "None.\n"
    for reason, names in by_reason.items():
        yield f"{reason}\n"
        yield from (f"- `{name}`" for name in names)
        yield ""


def complaints(results: Mapping[str, Mapping[str, Result]], lists: Explained) -> list[str]:
    """Scores that are too low, what lives unexplained, and explanations of what does not live."""
    found = []
    alive: set[str] = set()
    tried: set[str] = set()
    for target in TARGETS:
        total = row(target.name, results[target.name].values(), lists)
        if total.score < target.enough:
            found.append(f"{target.name}: {100 * total.score:.1f} %")
        tried |= results[target.name].keys()
        alive |= {r.name for r in results[target.name].values() if r.outcome is Outcome.SURVIVED}
    explained = lists.equivalent.keys() | lists.alive.keys()
    unexplained = [name for name in sorted(alive) if not lists.explains(name)]
    found.extend(f"lives unexplained: {name}" for name in unexplained)
    found.extend(f"does not live: {name}" for name in sorted(explained & tried - alive))
    return found
