"""Fuzzing kvfast's core: random stories, each judged after every line.

    python -m tests.fuzz.core --seconds 120 --seed 1

Stories are played in child processes, so one that ends its process is found, too; the same seed
gives the same stories. Each new finding is shortened and printed as a text to paste. The exit code
is 1 if there was one. `.ci/sanitize` runs it with the sanitizers, which see what only harms memory.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import re
import resource
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvcheck.play.shrink import smallest, without_runs
from tests.fuzz.draw import draw_story
from tests.fuzz.planted import PLANTED
from tests.fuzz.reach import Reached, reached
from tests.fuzz.world import Finding, play

MEMORY_BYTES = 8 << 30
SILENT_SECONDS = 120.0  # without a sign of life; a line that computes is ended long before
SHRINK_SECONDS = 40.0
FORMAT = struct.Struct("qqq")
SUMMARY = re.compile(r"SUMMARY: (.*)|runtime error: (.*)")
CALL = re.compile(r"(\w+)\(")


class Child:
    """A process that plays stories; where it is stands in memory that its parent reads."""

    def __init__(self, play_all: Callable[[Child], Finding | None], patience: float) -> None:
        self.progress = mmap.mmap(-1, FORMAT.size)
        self.patience = patience
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the object)
        self.answer = tempfile.TemporaryFile()  # noqa: SIM115 (the same)
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._be_child(play_all)

    def _be_child(self, play_all: Callable[[Child], Finding | None]) -> None:
        os.dup2(self.errors.fileno(), 2)
        if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # it reserves all there is
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            found = play_all(self)
            self.answer.write(json.dumps(asdict(found) if found else None).encode())
            self.answer.flush()
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
            os._exit(70)

    def at(self, story: int, line: int) -> None:
        """Tell the parent; from now on there are some seconds of computing, or the process ends."""
        signal.setitimer(signal.ITIMER_VIRTUAL, self.patience)
        number = FORMAT.unpack_from(self.progress)[2]
        FORMAT.pack_into(self.progress, 0, story, line, number + 1)

    def wait(self) -> tuple[int, Finding | None]:
        """The story at which it ended, and its finding there."""
        status = self._status()
        story, line, _ = FORMAT.unpack_from(self.progress)
        said = _text(self.errors)
        if status is None or status == -signal.SIGVTALRM:
            return story, Finding(line, "hang", f"this line does not end\n{said}")
        if status != 0:
            return story, Finding(line, _crash(status, said), f"status {status}\n{said[-6000:]}")
        answer = json.loads(_text(self.answer))
        return story, Finding(**answer) if answer else None

    def _status(self) -> int | None:
        """Its exit status; None where it made no progress and was ended."""
        seen, since = -1, time.monotonic()
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            number = FORMAT.unpack_from(self.progress)[2]
            if number != seen:
                seen, since = number, time.monotonic()
            if time.monotonic() - since > SILENT_SECONDS:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return None
            time.sleep(0.01)


def _text(file: Any) -> str:
    file.seek(0)
    return str(file.read().decode(errors="replace"))


def _crash(status: int, said: str) -> str:
    """One cause, one key: what a sanitizer says without addresses, else the number."""
    found = SUMMARY.search(said)
    if found is None:
        return f"ended with {status}"
    return re.sub(r"0x[0-9a-f]+|\(.*?\)|\S*/", "", found[1] or found[2])


class Fuzzer:
    """Stories of one seed on one build. `plant` names a hole: a test of this fuzzer."""

    def __init__(
        self, build: str, seed: str, *, patience: float = 20.0, plant: str | None = None
    ) -> None:
        self.build = build
        self.seed = seed
        self.patience = patience
        self.reached: tuple[Reached, ...] = reached(build)
        if plant is not None:
            PLANTED[plant][0]()
        self.num_lines = 0
        self.num_stories = 0

    def story(self, number: int) -> tuple[list[str], bool]:
        """Story of this number, and whether refusals are checked to change nothing."""
        return draw_story(f"{self.seed}/{number}", self.reached)

    def findings(self, seconds: float, most_stories: int) -> Iterator[tuple[int, Finding]]:
        """Every finding, as it comes: the number of its story, and what it is."""
        until, number = time.monotonic() + seconds, 0
        while number < most_stories and time.monotonic() < until:

            def play_all(child: Child, first: int = number) -> Finding | None:
                for story in range(first, min(first + 300, most_stories)):
                    lines, strict = self.story(story)
                    found = play(
                        self.build, lines, strict=strict, at=lambda i, s=story: child.at(s, i)
                    )
                    if found or time.monotonic() > until:
                        return found
                return None

            story, found = Child(play_all, self.patience).wait()
            for played in range(number, story + 1):
                self.num_stories += 1
                self.num_lines += len(self.story(played)[0])
            number = story + 1
            if found:
                yield story, found

    def replay(self, lines: Sequence[str]) -> Finding | None:
        """What a story's lines find in a child of their own."""

        def play_one(child: Child) -> Finding | None:
            return play(self.build, list(lines), at=lambda i: child.at(0, i))

        return Child(play_one, self.patience).wait()[1]

    def shrunk(self, lines: list[str], found: Finding) -> list[str]:
        """As few of the lines as lead to the same finding, as far as time allows."""

        def smaller(story: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
            return without_runs(story)

        def tried(fewer: tuple[str, ...]) -> tuple[str, ...] | None:
            again = self.replay(fewer)
            is_same = again is not None and again.key == found.key
            return fewer[: again.line + 1] if again is not None and is_same else None

        left = smallest(tuple(lines), smaller, tried, seconds=SHRINK_SECONDS)
        return list(left)


def report(build: str, lines: Sequence[str], found: Finding) -> str:
    """A finding, with its story ready to paste."""
    story = "\n".join(lines)
    return (
        f"\n=== {found.key}\n{found.text}\nThe story, for `python -m tests.fuzz.core"
        f" --build {build} --story -`:\n\n{story}\n"
    )


def main(given: Sequence[str] | None = None) -> int:
    """The command; 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--build", default="compiled", choices=("compiled", "uncompiled"))
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--stories", type=int, default=1 << 40, help="at most so many")
    parser.add_argument("--seed", default=None, help="any text; drawn and printed if left out")
    parser.add_argument("--story", help="play the lines of this file (- for stdin) instead")
    parser.add_argument("--whole", action="store_true", help="don't shorten stories")
    parser.add_argument("--findings", type=int, default=50, help="stop after so many")
    parser.add_argument("--until", help="stop at a finding whose key begins with this")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds for one line")
    parser.add_argument("--plant", choices=tuple(PLANTED), help="break the uncompiled build first")
    options = parser.parse_args(given)
    seed = options.seed if options.seed is not None else str(time.time_ns() % 10**6)
    fuzzer = Fuzzer(options.build, seed, patience=options.patience, plant=options.plant)
    if options.story:
        text = sys.stdin.read() if options.story == "-" else Path(options.story).read_text("utf-8")
        found = fuzzer.replay(text.splitlines())
        print(report(options.build, text.splitlines(), found) if found else "nothing found")
        return int(found is not None)
    print(f"seed {seed}, {options.build}, {len(fuzzer.reached)} attributes in reach", flush=True)
    counts: dict[str, int] = {}
    for number, found in fuzzer.findings(options.seconds, options.stories):
        counts[found.key] = counts.get(found.key, 0) + 1
        if counts[found.key] == 1:
            print(f"\nstory {seed}/{number}, line {found.line}", flush=True)
            lines = fuzzer.story(number)[0][: found.line + 1]
            lines = lines if options.whole else fuzzer.shrunk(lines, found)
            print(report(options.build, lines, found), flush=True)
        is_it = options.until is not None and found.key.startswith(options.until)
        if is_it or len(counts) >= options.findings:
            break
    print(f"{fuzzer.num_stories} stories, {fuzzer.num_lines} lines, {len(counts)} findings")
    for key, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:6} {key}")
    return int(bool(counts))


if __name__ == "__main__":
    sys.exit(main())
