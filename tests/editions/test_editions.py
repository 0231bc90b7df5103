"""Editions of the contract: what conformed to one continues to conform (decision 0057)."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import kvref
from kvcheck.judge.options import Budget, Options
from kvcheck.judge.outcome import Report
from kvcheck.judge.report import text_lines, to_json
from kvcheck.judge.suite import Suite
from kvcheck.play.left_out import LeftOut
from kvcheck.play.verdicts import Level
from kvcheck.remote.client import RemoteImplementation, connect
from kvcheck.rulebook import rule_sentences
from kvcheck.rules.directed import find_example
from kvcheck.rules.example import example_violation
from kvref.implementation import ReferenceImplementation
from kvspec.editions import EDITIONS, edition_of_rules, has_come
from kvspec.interface import Capabilities, Feature, Implementation
from kvspec.policy import Policy
from tests.mistakes import mistaken
from tests.remote.test_example_servers import CPP

FROZEN = Path(__file__).with_name("cpp-0.1.tar.gz")
"""The example in C++ as commit 4fe46e09 had it: full attention and windows, by edition 0.1."""


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteImplementation]:
    folder = tmp_path_factory.mktemp("frozen")
    # Not by tarfile: Python 3.11.3 and earlier have no `filter`, and 3.12 warns without.
    subprocess.run(["tar", "-xzf", FROZEN, "-C", folder], check=True)
    with closing(connect(f"cmd:{CPP.build(folder, folder)}")) as server:
        yield server


def report_of(subject: Implementation) -> Report:
    options = Options(Level.IDENTITY, Budget(0.0, 40).counted(40))
    return Suite(subject, kvref.implementation(), options).run()


def test_a_server_of_edition_0_1_conforms(frozen: RemoteImplementation) -> None:
    assert frozen.capabilities.edition == "0.1"
    report = report_of(frozen)
    assert [violation.rule for violation in report.violations] == []
    assert report.directed > 300
    assert report.random > 10
    said = to_json(report)
    assert {"KV-SW-9", "KV-MGR-22"} <= set(said["new_since_edition"])
    assert "KV-POOL-6" not in said["new_since_edition"]
    assert any(line.startswith("new since 0.1 ") for line in text_lines(report))


class Declared(ReferenceImplementation):
    edition = "0.1"
    lacks: frozenset[Feature] = frozenset()

    @property
    def capabilities(self) -> Capabilities:
        can = super().capabilities
        return replace(can, edition=self.edition, features=can.features - self.lacks)


CAME_LATER = (
    ("0.2", "KV-MGR-3: every count is an int from 0 to 2^53 - 1"),
    ("0.2", "KV-MGR-4: there are no more new tokens than slots"),
    ("0.3", "KV-CHUNK-7"),
)


@pytest.mark.parametrize(("since", "name"), CAME_LATER)
@pytest.mark.parametrize("edition", EDITIONS)
def test_a_check_is_asked_from_its_edition_on(edition: str, since: str, name: str) -> None:
    subject = Declared()
    subject.edition = edition
    if edition < since:
        with pytest.raises(LeftOut, match=f"edition {since}"):
            example_violation(find_example(name), subject, Policy())
    else:
        assert example_violation(find_example(name), subject, Policy()) is None


def test_lists_of_unequal_length_are_asked_of_who_has_them() -> None:
    """Blame a manager that refuses them only if it declares the feature (KV-MGR-22)."""
    story = find_example("KV-MGR-22: what a short list lacks is counted")
    found = example_violation(story, mistaken("ShortListsAreRefused"), Policy())
    assert found is not None
    assert found.rule == "KV-MGR-22"
    subject = Declared()
    subject.edition, subject.lacks = EDITIONS[-1], frozenset({Feature.UNEQUAL_HITS})
    with pytest.raises(LeftOut, match="unequal_hits"):
        example_violation(story, subject, Policy())


def test_every_rule_has_an_edition() -> None:
    came = edition_of_rules()
    assert set(came.values()) == set(EDITIONS)
    assert set(rule_sentences()) <= set(came)


def test_an_unknown_edition_is_newer_than_all() -> None:
    assert [has_come(EDITIONS[-1], edition) for edition in (*EDITIONS, "9.9")] == [
        *(False,) * (len(EDITIONS) - 1),
        True,
        True,
    ]
