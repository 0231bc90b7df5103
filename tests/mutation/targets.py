"""What is mutated, and which tests must notice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Target:
    """Files, and the tests that are about them.

    `files`: patterns below the repository. `tests`, `keyword`: what pytest is given, as paths and
    as `-k`. `sample`: so many mutants, drawn by `seed`; None: all. `enough`: the least score.
    """

    name: str
    about: str
    files: tuple[str, ...]
    tests: tuple[str, ...]
    keyword: str = ""
    sample: int | None = None
    enough: float = 0.95

    def paths(self) -> Iterator[Path]:
        """Its files, in order."""
        for pattern in self.files:
            yield from sorted(ROOT.glob(pattern))


def module_name(path: Path) -> str:
    """The module that a file of a package is imported as."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[1:] if parts[0] == "spec" else parts)


def named(names: Sequence[str]) -> tuple[Target, ...]:
    """The targets of these names, in the order of the table; all without a name.

    Raises KeyError for a name that is none.
    """
    known = {target.name: target for target in TARGETS}
    return tuple(known[name] for name in names) if names else TARGETS


TARGETS: tuple[Target, ...] = (
    Target(
        "kvref",
        "the reference and its planner; its host tier is a target of its own",
        ("kvref/[!t]*.py", "kvref/groups/*.py", "kvref/planning/*.py"),
        (
            "tests/contract",
            "tests/kvref",
            "tests/plans",
            "tests/invariants",
            "tests/differences",
            "tests/brute_force",
            "tests/machines",
        ),
        keyword="not kvfast",
    ),
    Target(
        "tier",
        "the host tier of the reference",
        ("kvref/tier.py",),
        ("tests/tier",),
    ),
    Target(
        "kvfast",
        "`kvfast/_core`, as plain Python; the rest of kvfast is left out",
        ("kvfast/_core/*.py",),
        ("tests/contract", "tests/lockstep", "tests/kvfast", "tests/brute_force"),
        keyword="uncompiled",
        sample=320,
    ),
    Target(
        "invariants",
        "the invariants of states and of transitions",
        ("spec/kvspec/invariants.py", "spec/kvspec/_places.py", "spec/kvspec/transitions.py"),
        ("tests/invariants",),
    ),
    Target(
        "oracles",
        "what a hit, the queue and a need must be, for one group of full attention",
        (
            "kvcheck/judge/oracles.py",
            "kvcheck/judge/longest_hit.py",
            "kvcheck/judge/single_group.py",
        ),
        ("tests/machines", "tests/judge"),
        keyword="not kvfast",
    ),
)
