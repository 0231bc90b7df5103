"""Short readable text of values, differences and calls."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Mapping, Sequence, Set
from dataclasses import MISSING, Field, fields, is_dataclass
from itertools import groupby
from typing import Any

from kvcheck.play.calls import DEFAULTS
from kvspec.config import NOT_NAMED

HASH_DIGITS = 8
"""Digits shown of a hash: enough to tell two apart in one report."""

LONG = 8
"""Length from which a run of numbers is written by its first and last."""

LIMIT = 200
"""Most characters shown of a value."""

DEFAULT_ARGUMENTS: Mapping[str, object] = {
    **DEFAULTS["get_num_blocks_to_allocate"],
    **DEFAULTS["allocate_slots"],
    "num_preemptions": 0,
}
"""Values of arguments that are not shown."""


def shown(value: object, limit: int = LIMIT) -> str:
    """Return `repr` with hashes cut to their first digits and without default members, cut."""
    text = _shown(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def _shown(value: object) -> str:
    if isinstance(value, (bytes, bytearray)):
        return _shown_hash(value.hex()) or "b''"
    if isinstance(value, str):
        is_hash = len(value) >= 2 * HASH_DIGITS and set(value) <= set(string.hexdigits)
        return _shown_hash(value) if is_hash else repr(value)
    if is_dataclass(value) and not isinstance(value, type):
        members = (f"{f.name}={_shown(getattr(value, f.name))}" for f in changed_members(value))
        return f"{type(value).__name__}({', '.join(members)})"
    if isinstance(value, Mapping):
        members = (f"{_shown(key)}: {_shown(item)}" for key, item in value.items())
        return "{" + ", ".join(members) + "}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(_shown, value))) + "}"
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return repr(value)


def changed_members(value: Any) -> list[Field[Any]]:
    """Return the members of a dataclass that are not at their defaults."""
    return [f for f in fields(value) if getattr(value, f.name) != default_of(value, f)]


def default_of(value: Any, field: Field[Any]) -> object:
    """Return the default of this member of a dataclass."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    if field.default is NOT_NAMED:  # KV-POL-26: the only one that is taken from the policy
        return value.policy.default_interval_tokens
    return field.default


def shortened(text: str, limit: int = 2 * LIMIT) -> str:
    """Cut a text that quotes values: bytes and hashes to their first digits, then the rest."""
    text = _BYTES.sub(lambda quoted: shown(ast.literal_eval(quoted[0])), text)
    text = _DIGITS.sub(lambda digits: _shown_hash(digits[0]), text)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


_BYTES = re.compile(r"""\bb(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")""")
_DIGITS = re.compile(rf"\b(?=[0-9]*[a-f])[0-9a-f]{{{2 * HASH_DIGITS},}}\b")


def _shown_hash(digits: str) -> str:
    return digits if len(digits) <= HASH_DIGITS else f"{digits[:HASH_DIGITS]}…"


def operation_text(name: str, request: str | None, arguments: Mapping[str, Any]) -> str:
    """Return one operation as a call, without default arguments."""
    said = [
        f"{key}={_run(value) or shown(value)}" for key, value in said_arguments(arguments).items()
    ]
    return f"{name}({', '.join([repr(request)] * (request is not None) + said)})"


def said_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that are not at their defaults.

    A status that follows from the computed tokens is left out too: WAITING at 0, then RUNNING.
    """
    computed = arguments.get("num_computed_tokens")
    told = set()
    if "status" in arguments and arguments["status"] == ("RUNNING" if computed else "WAITING"):
        told = {"status"} if computed else {"status", "num_computed_tokens"}
    return {
        key: value
        for key, value in arguments.items()
        if key not in told and (key not in DEFAULT_ARGUMENTS or value != DEFAULT_ARGUMENTS[key])
    }


def _run(value: object) -> str:
    """Abbreviate tokens that grow by one or are all equal; return an empty string for others."""
    if not isinstance(value, list) or len(value) < LONG or {type(item) for item in value} != {int}:
        return ""
    if len(set(value)) == 1:
        return f"[{value[0]}] * {len(value)}"
    words: list[str] = []
    for _, places in groupby(enumerate(value), lambda pair: pair[1] - pair[0]):
        run = [token for _, token in places]
        words += [f"{run[0]} … {run[-1]}"] if len(run) >= LONG else map(str, run)
    return f"[{', '.join(words)}]" if len(words) < len(value) else ""
