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
    """Return the sentence of every rule that a manager can keep or break, by id."""
    return {rule: each["sentence"] for rule, each in _rules().items()}


def rule_names() -> dict[str, str]:
    """Return the short name of each rule."""
    return {rule: each["name"] for rule, each in _rules().items()}


def rule_text(rule: str) -> str:
    """Return the explanation of the rule in its chapter, as Markdown."""
    return _rules()[rule]["text"] if rule in _rules() else ""


def rule_blocks() -> Iterator[tuple[str, str, int, str]]:
    """Yield each rule, its file, the line where its explanation starts, and the explanation."""
    for rule, each in _rules().items():
        yield rule, each["path"], int(each["line"]), each["text"]


def rule_chapters() -> dict[str, str]:
    """Return the chapter title of each rule."""
    return {rule: each["chapter"] for rule, each in _rules().items()}


def titled(rule: str) -> str:
    """Return the id with the short name in brackets; just the id if there is no such rule."""
    name = rule_names().get(rule)
    return rule if name is None else f"{rule} ({name})"


def stated(rule: str) -> str:
    """Return the rule in one line: its title and its sentence."""
    return f"{titled(rule)}  {rule_sentences().get(rule, '')}"
