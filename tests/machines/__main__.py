"""The twin machines from new seeds: what fails is printed, ready to paste, and kept as a record.

    python -m tests.machines --seconds 600 --seed 3 [--build uncompiled] [--keep FOLDER]

Records of earlier runs that lie in FOLDER come first. A story of single calls is made as small as
it gets, printed as a test and written there, for `kvspec golden`, `kvspec view` and `tests`; of
whole steps, which records do not hold, Hypothesis' story is printed and the seed that repeats it.
The exit code is 1 if something failed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from kvcheck.play.steps import Program
from kvcheck.records.trace import replay_trace
from kvfast._implementation import FastImplementation
from kvspec.interface import Implementation
from tests.lockstep.production import NAMES, tell
from tests.machines.machine import Machine
from tests.machines.test_twins import machines

STEPS = 60


def fails_again(folder: Path, subject: Implementation) -> Iterator[str]:
    """Records that are kept there, and which the subject does not follow."""
    for path in sorted(folder.glob("*.jsonl")):
        result = replay_trace(path, subject)
        if not result.passed:
            yield f"{path.name}: {result.mismatch.what if result.mismatch else 'not finished'}"


def run(
    name: str, subject: Implementation, number: int, *, shrinks: bool = False
) -> Program | str | None:
    """One machine from one seed: a program that fails, or what was raised.

    `shrinks`: the story is Hypothesis' own, for what is no program.
    """
    machine, max_examples = machines(subject)[name]
    is_program = issubclass(machine, Machine) and not shrinks
    # A program is made smaller as such.
    quiet = settings(
        max_examples=max_examples,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        phases=[Phase.generate] if is_program else list(Phase),
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(seed(number)(machine), settings=quiet)
    except Exception as error:  # whatever a broken subject runs into
        if is_program and machine.failed:  # type: ignore[attr-defined]  # that of a Machine
            return machine.failed[-1]  # type: ignore[attr-defined, no-any-return]  # the same
        story = "\n".join(getattr(error, "__notes__", ()))
        return f"{type(error).__name__}: {error}\n{story}"
    return None


def search(subject: Implementation, name: str, first_seed: int, seconds: float, keep: Path) -> int:
    """Round after round until the time is up; how many rounds failed. Each machine fails once."""
    begin, failed, rounds = time.monotonic(), set[str](), 0
    while not rounds or time.monotonic() - begin < seconds:
        number = first_seed + rounds
        for machine in machines(subject):
            found = None if machine in failed else run(machine, subject, number)
            if found is not None:
                failed.add(machine)
                print(f"\n# {machine}, seed {number}:", flush=True)
            if isinstance(found, Program):
                path = keep / f"{name}-{machine.replace(' ', '-')}-{number}.jsonl"
                if not tell(found, name, subject, path):
                    found = run(machine, subject, number, shrinks=True)
            if isinstance(found, str):
                print(found)
        rounds += 1
    print(f"{name}: {rounds} rounds of {len(machines(subject))} machines, {len(failed)} failed")
    return len(failed)


def main(arguments: list[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--build", choices=("compiled", "uncompiled"), default="compiled")
    parser.add_argument("--keep", type=Path, default=Path("found"), help="for records of failures")
    options = parser.parse_args(arguments)
    subject = FastImplementation(options.build)
    again = list(fails_again(options.keep, subject))
    for line in again:
        print(f"still fails: {line}")
    num_failed = search(subject, NAMES[options.build], options.seed, options.seconds, options.keep)
    return int(bool(again) or num_failed > 0)


if __name__ == "__main__":
    sys.exit(main())
