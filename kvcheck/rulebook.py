"""The rules of the contract as data, with their texts. `spec/table.py` writes the file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from types import MappingProxyType


@cache  # asked for each line of a report
def _rules() -> Mapping[str, Mapping[str, str]]:
    text = files("kvcheck").joinpath("data/rules.json").read_text(encoding="utf-8")
    return MappingProxyType(json.loads(text))


def rule_sentences() -> dict[str, str]:
    """Every rule that a manager can keep or break: id -> what it says."""
    return {rule: each["sentence"] for rule, each in _rules().items()}


def rule_names() -> dict[str, str]:
    """The same rules: id -> short name."""
    return {rule: each["name"] for rule, each in _rules().items()}


def rule_text(rule: str) -> str:
    """What explains the rule in its chapter: Markdown."""
    return _rules()[rule]["text"] if rule in _rules() else ""


def rule_blocks() -> Iterator[tuple[str, str, int, str]]:
    """Yield each rule, its file, and the line from which on its explanation stands there."""
    for rule, each in _rules().items():
        yield rule, each["path"], int(each["line"]), each["text"]


def rule_chapters() -> dict[str, str]:
    """The same rules: id -> the title of the chapter."""
    return {rule: each["chapter"] for rule, each in _rules().items()}


def titled(rule: str) -> str:
    """The id with the short name in brackets; what is no rule stands alone."""
    name = rule_names().get(rule)
    return rule if name is None else f"{rule} ({name})"


def stated(rule: str) -> str:
    """The rule in one line: its title and what it says."""
    return f"{titled(rule)}  {rule_sentences().get(rule, '')}"
