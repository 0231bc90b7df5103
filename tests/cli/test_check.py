"""`kvspec check` and `kvspec probe`: verdicts, records, exit codes."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from examples.own_manager.final import MyImplementation
from kvcheck.cli import main
from kvref.implementation import ReferenceImplementation
from kvspec.config import ManagerConfig
from kvspec.errors import UnsupportedError
from kvspec.interface import Capabilities, Feature
from kvspec.request import RequestInput
from tests.cases import Case, cases
from tests.commands import LEAKS, kvspec, python, said_by
from tests.remote.servers import SERVE, script, serve


class Bare(ReferenceImplementation):
    @property
    def capabilities(self) -> Capabilities:
        has = super().capabilities.features - {Feature.SNAPSHOT}
        return replace(super().capabilities, spec_types=frozenset(), features=has)


class Refusing(MyImplementation):
    def create(self, config: ManagerConfig, **options: Any) -> Any:
        raise UnsupportedError("anything", self.name)


class Picky(MyImplementation):
    def make_request(self, manager: Any, request: RequestInput) -> Any:
        raise UnsupportedError("mm_features", self.name)


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return kvspec(folder, "check", *args)


def test_the_reference_conforms_under_a_profile(tmp_path: Path) -> None:
    (tmp_path / "old.toml").write_text(
        'name = "old"\nversion = "1"\ndescription = "unhashed blocks to the back"\n'
        '[policy]\nunhashed_freed_to = "back"\n'
    )
    budget = ("--budget", "directed", "--rules", "KV-POOL-*")
    arguments = (*budget, "--profile", "old.toml", "--json", "report.json")
    done = run(tmp_path, "kvref", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "self-checks only: nothing to compare with" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["conforms"], report["self_checks_only"]) == (None, True)
    assert report["violations"] == []
    assert report["directed"] > 40


@pytest.fixture(scope="module")
def leaky(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("leaky")
    outputs = ("--records", "found", "--html", "page.html", "--junit", "junit.xml")
    arguments = ("-v", "--budget", "directed", "--rules", "KV-POOL-15", *outputs)
    done = run(folder, LEAKS, *arguments)
    assert done.returncode == 1, done.stderr
    return folder, done.stdout


def test_a_leak_is_shown_with_its_rule_its_calls_and_a_test(leaky: tuple[Path, str]) -> None:
    folder, shown = leaky
    assert "KV-POOL-15" in shown
    assert "leaked" in shown
    failures = ET.parse(folder / "junit.xml").getroot().get("failures")
    assert failures is not None
    assert int(failures) >= 1
    lines = shown.split("  as a test:\n")[1].splitlines()
    pasted = [line[4:] for line in takewhile(lambda line: line[:4] in ("", "    "), lines)]
    (folder / "test_pasted.py").write_text("\n".join(pasted) + "\n")
    again = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pasted.py", folder=folder)
    assert again.returncode == 1
    assert "leaked" in again.stdout


def test_each_violation_becomes_a_record_that_can_be_replayed_and_looked_at(
    leaky: tuple[Path, str],
) -> None:
    folder, shown = leaky
    record = "found/KV-POOL-15.jsonl"
    line = f"  record    kvspec golden {record} --impl {LEAKS}"
    assert line in shown.splitlines()
    assert kvspec(folder, "golden", record, "--impl", "kvref").returncode == 0
    assert kvspec(folder, "golden", record, "--impl", LEAKS).returncode == 1
    viewed = kvspec(folder, "view", record, "-o", "record.html")
    assert viewed.returncode == 0, viewed.stderr
    assert '"rule":"KV-POOL-15"' in (folder / "record.html").read_text("utf-8")


@pytest.mark.parametrize(("broken", "exit_code"), [(False, 0), (True, 1)])
def test_ctrl_c_ends_a_deep_run_with_its_report(
    broken: bool, exit_code: int, tmp_path: Path
) -> None:
    asked = ("--level", "safety", "--rules", "KV-POOL-15")
    arguments = ("--budget", "deep", *asked)
    # What was started in the background by a script ignores Ctrl-C, and so do its children.
    code = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kvcheck.cli import main; from kvcheck.judge import suite\n"
        "from pathlib import Path; draw = suite.random_programs\n"
        "suite.random_programs = lambda *asked: Path('begun').touch() or draw(*asked)\n"
        "sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "check", LEAKS if broken else "kvref", *arguments]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            wait_for(tmp_path / "begun")
            process.send_signal(signal.SIGINT)
            output, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == exit_code, errors
    assert "interrupted" in output
    assert "at level safety" in output
    assert ("KV-POOL-15" in output) is broken


def wait_for(path: Path) -> None:
    for _ in range(600):
        if path.exists():
            return
        time.sleep(0.1)
    raise TimeoutError(path)


def test_a_subject_that_refuses_what_it_is_asked_does_not_conform(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = said_by("check tests.cli.test_check:Picky --budget directed --level safety", capsys)
    assert "mm_features" in "\n".join(said)
    assert said[-1] == "exit code 1"


def test_a_run_that_checked_something_of_a_rule_may_conform(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = said_by("check kvfast --rules KV-SW-2 --budget directed", capsys)
    assert "conforms" in "\n".join(said)
    assert said[-1] == "exit code 0"


def test_a_run_can_end_at_the_first_failure(tmp_path: Path) -> None:
    few, all_of_them = (
        json.loads(run(tmp_path, LEAKS, *budget, "--json", "-").stdout)
        for budget in (("-x",), ("--budget", "directed"))
    )
    assert len(few["violations"]) == 1
    assert few["violations"][0]["rule"] in {each["rule"] for each in all_of_them["violations"]}
    assert 0 < few["directed"] < all_of_them["directed"]
    assert few["random"] == 0
    assert few["counts"]["not exercised"] > all_of_them["counts"]["not exercised"]
    said = run(tmp_path, LEAKS, "-x").stdout
    assert "stopped early      at the first failure; the rest was not run" in said


def probed(name: str, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    code = main(["probe", name, *more])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("framing", ["", "+json", "+cbor"])
def test_the_reference_answers_everything_right(
    framing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = probed(serve("kvref", options=framing), capsys)
    assert code == 0
    assert "features: admission, cache_salt" in said
    assert said.splitlines()[-1].startswith("42 of 42 replies are right; next: kvspec check")


@pytest.mark.parametrize("case", cases(__file__, "probes.txt"), ids=str)
def test_what_a_probe_says_of_a_server(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Show the replies that are not right, but for refusals, which are counted."""
    status, said = probed(script(tmp_path, "\n".join(case.given)), capsys, "--json", "-")
    rows = json.loads(said)
    wrong = [row for row in rows if row["verdict"] not in ("right", "refused")]
    shown = [f"{row['message']['op']}: {row['verdict']}, {row['detail']}" for row in wrong]
    counts = Counter(row["verdict"] for row in rows)
    last = f"{counts['right']} right, {counts['refused']} refused, exit code {status}"
    case.expect([*(re.sub(r"(?<=[0-9a-f]{8})[0-9a-f]{56}", "…", line) for line in shown), last])


def test_a_server_of_json_lines_is_probed_and_checked_under_one_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = f"""
serves = subprocess.Popen({(*SERVE, "kvref")}, stdin=-1, stdout=-1, text=True)
for line in sys.stdin:
    message = json.loads(line)  # this is no server of CBOR
    serves.stdin.write(line)
    serves.stdin.flush()
    answer = json.loads(serves.stdout.readline())
    if message["op"] == "hello":
        answer["result"]["features"] = ["prefix_caching"]
    write(answer)
"""
    name = script(tmp_path, code).replace("+json", "")
    status, said = probed(name, capsys)
    assert status == 0
    command = shlex.split(said.splitlines()[-1].partition("next: kvspec ")[2])
    assert command == ["check", name]
    assert main([*command, "--rules", "KV-POOL-5", "--budget", "directed"]) == 0
    assert "conforms at level behaviour" in capsys.readouterr().out
