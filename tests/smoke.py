"""Run every command of an installed kvspec in an empty directory, as a user would.

    python -I smoke.py

No test file: .ci/run starts it where only the wheel is installed and the repository is out of
reach, and test_packaging runs the same calls here. A command without a call below fails.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """One run of the command: its arguments, its exit code, words of its output, its files."""

    args: tuple[str, ...]
    shows: str
    exit_code: int = 0
    writes: tuple[str, ...] = ()


SERVE = "kvcheck.cli serve kvref"

CALLS = (
    Call(("--help",), "Commands:"),
    Call(("--version",), "kvspec "),
    Call(("no-such-command",), "kvspec: error: ", exit_code=2),
    Call(("bench", "--impl", "kvref", "--quick"), "decode step, ns per request"),
    Call(
        (
            *("bench", "--impl", "kvref", "--quick", "--only", "pools", "--only", "replay"),
            *("--trace", "demo", "--requests", "5"),
        ),
        "manager, in all",
    ),
    Call(("check", "kvref", "--budget", "directed"), "self-checks only: nothing to compare with"),
    Call(("doctor",), "implementation kvref"),
    Call(("doctor", "--json", "-"), '"implementations"'),
    Call(("examples", "kvref", "--rules", "KV-SW-*"), "0 failed"),
    Call(("explore", "--config", "retention", "--max-edges", "500"), "no rule broken"),
    Call(("golden", "--impl", "kvref"), "0 failed"),
    Call(("plan", "--list"), "llama-3.1-8b"),
    Call(("plan", "llama-3.1-8b"), "concurrency"),
    Call(("plan", "gemma-3-27b", "--json", "-"), '"capacity_tokens"'),
    Call(("plan", "gemma-3-27b", "--memory-gib", "1"), "the longest request", exit_code=1),
    Call(("prompts", "sample:messages", "--top", "1"), "part from all earlier ones"),
    Call(("rule", "KV-SW-2"), "free queue"),
    Call(
        ("replay", "demo", "--impl", "kvref", "--limit", "2", "--quiet", "--record", "out.jsonl"),
        "tokens hit",
        writes=("out.jsonl",),
    ),
    Call(
        (
            *("replay", "synth:chat?requests=3", "--impl", "kvref", "--quiet"),
            *("--json", "out.json", "--plot", "out.svg", "--html", "out.html"),
        ),
        "tokens hit",
        writes=("out.json", "out.svg", "out.html"),
    ),
    Call(
        ("view", "life_of_blocks", "-o", "record.html", "--impl", "kvref"),
        "34 operations",
        writes=("record.html",),
    ),
    Call(("hazards", "nowhere.jsonl"), "nowhere.jsonl", exit_code=2),
    Call(("probe", f"cmd:{shlex.quote(sys.executable)} -I -m {SERVE}"), "replies are right"),
    Call(
        ("redact", "identities", "-o", "redacted.jsonl"),
        "operations, redacted",
        writes=("redacted.jsonl",),
    ),
    Call(("serve", "kvref"), ""),
    Call(("shrink", "life_of_blocks", "--impl", "kvref"), "nothing to shrink", exit_code=1),
    Call(
        ("vectors", "--set", "pool", "-o", "vectors"),
        "vectors: ",
        writes=("vectors/index.jsonl",),
    ),
    Call(("serve", "nowhere"), "unknown implementation 'nowhere'", exit_code=2),
    Call(("golden", "--impl", f"cmd:{shlex.quote(sys.executable)} -I -m {SERVE}"), "0 failed"),
    Call(("golden", "--impl", "cmd:no-such-program"), "can't be started", exit_code=2),
    Call(
        ("whatif", "demo", "--block-size", "64", "--sizes", "3", "--html", "curves.html"),
        "best possible",
        writes=("curves.html",),
    ),
    Call(("replay", "demo", "demo", "--impl", "kvref", "--limit", "2", "--live"), "2 traces"),
    Call(("replay", "nowhere.jsonl", "--impl", "kvref"), "nowhere.jsonl", exit_code=2),
)


def problems(call: Call, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "kvcheck.cli", *call.args],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    found = []
    if done.returncode != call.exit_code:
        found.append(f"exit code {done.returncode}, not {call.exit_code}")
    if call.shows not in done.stdout:
        found.append(f"does not show {call.shows!r}")
    if "Traceback" in done.stdout:
        found.append("shows a traceback")
    found += [f"did not write {name}" for name in call.writes if not (folder / name).is_file()]
    return found and [f"kvspec {' '.join(call.args)}: {', '.join(found)}", done.stdout]


def main() -> int:
    from kvcheck.cli._commands import COMMANDS

    called = {call.args[0] for call in CALLS}
    found = [f"no call of kvspec {entry.name}" for entry in COMMANDS if entry.name not in called]
    for call in CALLS:
        found += problems(call, Path.cwd())
    print("\n".join(found) or f"{len(CALLS)} calls as they should be")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
