"""Which tests kill the mutants of each function: what a sample tries first."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.mutation.runner import Result

FILE = Path(__file__).with_name("killers.json")
MOST = 6
"""Tests that are kept for a function."""


def function_of(name: str) -> str:
    """File and function, from the name of a mutant."""
    path, function, _ = name.split(":", 2)
    return f"{path}:{function}"


def by_function(results: Iterable[Result]) -> dict[str, list[str]]:
    """Of each function, the tests that killed its mutants, the deadliest first."""
    counts: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for result in results:
        if result.killer is not None:
            counts[function_of(result.name)][result.killer] += 1
    return {
        function: sorted(tests, key=lambda test: (-tests[test], test))[:MOST]
        for function, tests in sorted(counts.items())
    }


def write(results: Mapping[str, Mapping[str, Result]]) -> None:
    """Target by target, one line for each function; what is known of others stays."""
    lines, before = [], read()
    for target, found in results.items():
        known = {**before.get(target, {}), **by_function(found.values())}
        body = [
            f"    {json.dumps(function)}: {json.dumps(tests)}"
            for function, tests in sorted(known.items())
        ]
        lines.append(f"  {json.dumps(target)}: {{\n" + ",\n".join(body) + "\n  }")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read() -> dict[str, dict[str, list[str]]]:
    """What `write` wrote: by target, then by function."""
    found: dict[str, dict[str, list[str]]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def to_try_first(target: str, results: Iterable[Result]) -> dict[str, list[str]]:
    """Of each function: what killed its mutants in these results, then what the file names."""
    found = by_function(results)
    for function, tests in read().get(target, {}).items():
        known = found.setdefault(function, [])
        known.extend(test for test in tests if test not in known)
    return found
