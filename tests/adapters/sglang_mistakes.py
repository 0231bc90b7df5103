"""Judge SGLang's trees, and then with mistakes planted and upstream's own fixes taken back.

    python -m tests.adapters.sglang_mistakes            # writes the tables of docs/FINDINGS.md

Each mistake changes an installed SGLang in memory, until a rule is broken in a life. nano-vllm,
whose accounts are judged beside SGLang's, is looked for on the path.
"""

from __future__ import annotations

import inspect
import logging
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import process_time
from tomllib import loads
from types import MappingProxyType
from typing import Any

from kvcheck.adapters.sglang import trees
from kvcheck.adapters.sglang.engine import load_modules
from kvcheck.discovery import find_tree
from kvcheck.play.lives import broken_by, judged
from kvcheck.tree.suite import game_of
from tests.source import ROOT, write_behind

LIVES = 150
RUNS = "| subject | rules tried | broken | CPU seconds |\n|---|---:|---|---:|\n"
TABLE = "| | what is changed | rules named | lives | CPU seconds |\n|---|---|---|---|---|\n"

SUBJECTS: Mapping[str, str] = MappingProxyType(
    {
        "sglang.trees:python_core": "full attention and windows",
        "sglang.trees:rust_core": "the same; its nodes cannot be seen",
        "sglang.trees:all_orders": "every order of eviction",
        "sglang.trees:plain_radix_cache": "the older tree",
        "sglang.trees:states": "recurrent states as well, which are copied",
        "sglang.trees:rust_states": "the same; its nodes cannot be seen",
        "sglang.trees:extra_buffer": "states are left at a grid of positions",
        "sglang.trees:in_session": "as `states`, each request is one of a session",
        "sglang.trees:kept_in_session": "the same; a request may keep a match's state",
        "sglang.trees:sessions": "as `python_core`, what sessions have stored is evicted last",
        "sglang.trees:host": "full attention with HiCache, which writes through",
        "nanovllm:implementation": "the accounts of nano-vllm's manager",
    }
)
"""Subjects by their factories in `kvcheck.adapters`."""


@dataclass(frozen=True)
class Change:
    """A function of SGLang's, `place`, whose text `old` becomes `new`, and each pair of `more`.

    `subject`: of `trees`. `rules`: one of these should be named, among the first three.
    """

    about: str
    place: str
    old: str
    new: str
    subject: str
    rules: Sequence[str]
    more: Sequence[tuple[str, str]] = ()


def read_changes() -> Iterator[dict[str, Change]]:
    """Read the fixes to take back, and then the mistakes to plant."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    yield from ({name: Change(**each) for name, each in of.items()} for of in loads(text).values())


FIXES, MISTAKES = read_changes()


@contextmanager
def planted(change: Change) -> Iterator[None]:
    """Change the function in memory, and change it back."""
    module_name, _, path = change.place.partition(":")
    module = sys.modules.get(f"sglang.srt.{module_name}") or __import__(
        f"sglang.srt.{module_name}", fromlist=["_"]
    )
    *owners, name = path.split(".")
    owner: Any = module
    for each in owners:
        owner = getattr(owner, each)
    was = inspect.unwrap(getattr(owner, name))
    text = textwrap.dedent(inspect.getsource(was))
    if text.count(change.old) < 1:
        raise LookupError(f"{change.place} has no {change.old!r}")
    text = text[text.index("def ") :]
    for old, new in ((change.old, change.new), *change.more):
        text = text.replace(old, new)
    scope: dict[str, Any] = {}
    exec(compile("from __future__ import annotations\n" + text, change.place, "exec"),
         vars(module), scope)  # fmt: skip
    before = getattr(owner, name)
    others = [] if owners else [each for each in list(sys.modules.values()) if each is not module]
    places = [owner, *(each for each in others if vars(each).get(name) is before)]
    for each in places:
        setattr(each, name, scope[name])
    try:
        yield
    finally:
        for each in places:
            setattr(each, name, before)


def found(change: Change) -> tuple[list[str], int, float, str]:
    """Return the rules named first, the lives and seconds it took, and what was wrong."""
    begun = process_time()
    with planted(change):
        subject: Callable[[], Any] = getattr(trees, change.subject)
        game = game_of(subject())
        for seed in range(LIVES):
            broken = broken_by(game, game.begun(game.drawn(seed)))
            if broken is not None:
                rules = [broken.rule, *broken.others][:3]
                return rules, seed + 1, process_time() - begun, str(broken)
    return [], LIVES, process_time() - begun, "nothing"


def runs() -> Iterator[str]:
    """Judge each subject, and yield a row for it."""
    subjects = {name: find_tree(f"kvcheck.adapters.{name}") for name in SUBJECTS}
    for name, about in SUBJECTS.items():
        begun = process_time()
        report = judged(game_of(subjects[name]), num_lives=LIVES)
        tried = len([rule for rule in report.rules if report.tried[rule]])
        broken = ", ".join(sorted(report.findings)) or "none"
        seconds = process_time() - begun
        yield f"| `{name}`: {about} | {tried} | {broken} | {seconds:.1f} |"


def mistakes() -> Iterator[str]:
    """Plant each mistake, and yield a row for it."""
    for title, changes in (("taken back", FIXES), ("planted", MISTAKES)):
        for name, change in changes.items():
            rules, lives, seconds, _ = found(change)
            is_right = bool(set(rules) & set(change.rules))
            label = f"[#{name}](https://github.com/sgl-project/sglang/pull/{name})"
            label = label if title == "taken back" else name
            named = ", ".join(rules) or "none"
            named += "" if is_right or not rules else " (not the right one)"
            yield f"| {label} | {change.about} | {named} | {lives} | {seconds:.1f} |"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    load_modules()
    write_behind(ROOT / "docs/FINDINGS.md", RUNS, runs())
    write_behind(ROOT / "docs/FINDINGS.md", TABLE, mistakes())
