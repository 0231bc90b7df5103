"""`kvspec check` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

BROKEN = """
from kvref.block_pool import BlockPool
from kvref.implementation import ReferenceImplementation


class Leaks(BlockPool):
    def release(self, blocks):
        for block in blocks:
            if block:
                self.ref_counts[block] -= 1


def implementation():
    return ReferenceImplementation(Leaks)
"""


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """`kvspec check` in a folder."""
    command = [sys.executable, "-m", "kvspec.cli", "check", *args]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_reference_conforms(tmp_path: Path) -> None:
    """Exit code 0, the verdict on the last lines, and the same in JSON."""
    done = run(tmp_path, "kvref", "--budget", "directed", "--json", "report.json")
    assert done.returncode == 0, done.stderr
    assert "kvref conforms at level identity" in done.stdout
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["conforms"] is True
    assert report["violations"] == []
    assert report["directed"] > 60


def test_a_leak_is_shown_with_its_rule_its_calls_and_a_test(tmp_path: Path) -> None:
    """Exit code 1; the test to paste fails for the same reason."""
    (tmp_path / "leaky.py").write_text(BROKEN)
    done = run(tmp_path, "leaky:implementation", "--budget", "directed", "--junit", "junit.xml")
    assert done.returncode == 1, done.stderr
    assert "KV-POOL-15" in done.stdout
    assert "leaked" in done.stdout
    failures = ET.parse(tmp_path / "junit.xml").getroot().get("failures")
    assert failures is not None
    assert int(failures) >= 1
    lines = done.stdout.split("  as a test:\n")[1].splitlines()
    pasted = [line[4:] for line in lines if line.startswith("    ")]
    (tmp_path / "test_pasted.py").write_text("\n".join(pasted) + "\n")
    again = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_pasted.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 1
    assert "leaked" in again.stdout


def test_a_profile_is_what_the_oracle_follows_too(tmp_path: Path) -> None:
    """Under a policy of older engines the reference conforms to itself."""
    (tmp_path / "old.toml").write_text(
        'name = "old"\nversion = "1"\ndescription = "unhashed blocks to the back"\n'
        '[policy]\nunhashed_freed_to = "back"\n'
    )
    done = run(tmp_path, "kvref", "--budget", "directed", "--profile", "old.toml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_that_do_not_exist_cannot_be_checked(tmp_path: Path) -> None:
    """Exit code 2 and one line."""
    done = run(tmp_path, "kvref", "--rules", "KV-NOTHING-*")
    assert done.returncode == 2
    assert done.stderr.startswith("kvspec: error: no rule fits KV-NOTHING-*")
