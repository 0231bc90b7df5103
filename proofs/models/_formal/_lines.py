"""Where the model stops following a record, in words: its state, beside the recorded one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from kvspec.record import Operation
from proofs.models._formal._record import Translation

_TOKEN = re.compile(r'<<|>>|\|->|:>|@@|"[^"]*"|-?\d+|\w+|[\[\](){},]')
_CLOSING = {"<<": ">>", "[": "]", "(": ")", "{": "}"}


def value_of(text: str) -> Any:
    """Parse the checker's output: a tuple, a dict (record or function), a frozenset, a word."""
    tokens = _TOKEN.findall(text)[::-1]
    return _parsed(tokens)


def _parsed(tokens: list[str]) -> Any:
    opened = tokens.pop()
    if opened not in _CLOSING:
        if opened in ("true", "false", "TRUE", "FALSE"):
            return opened.lower() == "true"
        return int(opened) if opened.lstrip("-").isdigit() else opened.strip('"')
    found: list[Any] = []
    pairs: dict[Any, Any] = {}
    while tokens[-1] != _CLOSING[opened]:
        item = _parsed(tokens)
        if tokens[-1] in ("|->", ":>"):
            tokens.pop()
            pairs[item] = _parsed(tokens)
        else:
            found.append(item)
        if tokens[-1] in (",", "@@"):
            tokens.pop()
    tokens.pop()
    if opened in ("[", "("):
        return pairs
    return frozenset(found) if opened == "{" else tuple(found)


def variables_of(state: str) -> dict[str, Any]:
    """Return the variables of a state, by name."""
    lines = re.findall(r"^\s+(\w+) = (.*)$", state, re.MULTILINE)
    return {name: value_of(value) for name, value in lines}


def as_recorded(cache: Mapping[str, Any], translation: Translation) -> dict[str, Any]:
    """Return a state of the model under the names of records, with words for keys."""
    pool = cache["pool"]
    lists, counts = {}, {}
    for name, number in translation.names.items():
        if any(cache["lists"][number - 1]):
            lists[name] = [list(blocks) for blocks in cache["lists"][number - 1]]
        held = [None if count < 0 else count for count in cache["counts"][number - 1]]
        if held != [None] * len(held):
            counts[name] = held
    return {
        "free_queue": list(pool["queue"]),
        "ref_cnt": [0, *pool["refs"]],
        "block_hash": [None, *map(_in_words, pool["keys"])],
        "req_blocks": lists,
        "num_cached_block": counts,
    }


def recorded(translation: Translation) -> dict[str, Any]:
    """Return the recorded state after the last translated operation, in the same words."""
    state = dict(translation.seen)
    if "block_hash" in state:
        state["block_hash"] = [_in_words(translation.content(key)) for key in state["block_hash"]]
    return state


def _in_words(content: tuple[int, ...]) -> str | None:
    """Describe a key by group, number of tokens, and a number that tells texts apart."""
    if not content:
        return None
    group, *tokens = content
    name = sum(token * 31**place for place, token in enumerate(tokens, 1)) % 9973
    return f"group {group - 1}: {len(tokens)} tokens, text {name}"


def differences(operation: Operation, after: str, translation: Translation) -> list[str]:
    """List where the record's result and state differ from the model's, whose state is `after`."""
    model, record = variables_of(after), recorded(translation)
    lines = []
    if model["said"] != translation.said:
        lines.append(f"answer: recorded {translation.said}, the model {model['said']}")
    shown = as_recorded(model["cache"], translation)
    free, wanted = len(shown["free_queue"]), operation.observed.num_free_blocks
    if free != wanted:
        lines.append(f"free blocks: recorded {wanted}, the model {free}")
    for name, value in shown.items():
        if name in record and record[name] != value:
            lines += [f"{name}: recorded  {record[name]}", f"{name}: the model {value}"]
    return lines or ["the copies of a key: their order is another one, or one more or less"]


def state_lines(before: str, translation: Translation) -> list[str]:
    """List the parts of the model's state, a line each."""
    shown = as_recorded(variables_of(before)["cache"], translation)
    return [f"{name}: {value}" for name, value in shown.items()]
