"""Profiles: TOML files in which an implementation declares its choices (KV-POL-1).

    name = "my-engine"
    version = "2.3"
    description = "What my engine does where the rules leave a choice."

    [policy]
    unhashed_freed_to = "back"

`spec/rules/policies.md` describes the format and every choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path

from kvspec.codec import decode_policy, encode_policy
from kvspec.errors import FormatError
from kvspec.files.jsonlines import read_bounded
from kvspec.files.objects import Where, text
from kvspec.files.shapes import FORMS, Form, Shape, as_it_is
from kvspec.files.toml import parse_toml
from kvspec.policy import Policy

MOST_BYTES = 2**14
"""No profile is longer; the time of a TOML reader for thousands of dots grows with their square."""

RECORDS_PROFILE = "vllm-0.24"
"""The profile of records that do not name their policy."""


@dataclass(frozen=True)
class Profile:
    """One implementation's choices: who made them, in which version, and why in a sentence."""

    name: str
    version: str
    description: str
    policy: Policy = field(default_factory=Policy)


def read_profile(path: Path) -> Profile:
    """Read the profile in a TOML file.

    Raises FormatError, which names file and key, for a file that can't be read or isn't TOML, for
    an unknown or missing key and for a wrong value. A choice that is left out has the rules'
    default.
    """
    where = Where(str(path))
    document = parse_toml(read_bounded(path, most_bytes=MOST_BYTES), where)
    return _PROFILE.read(document, where)


def shipped_profiles() -> tuple[str, ...]:
    """Return the names of the profiles in the package."""
    return tuple(sorted(path.stem for path in _shipped_folder().glob("*.toml")))


def find_profile(name_or_file: str) -> Profile:
    """Return a shipped profile by its name, or the one in a file.

    Raises FormatError if there is neither.
    """
    if name_or_file in shipped_profiles():
        return read_profile(_shipped_folder() / f"{name_or_file}.toml")
    path = Path(name_or_file)
    if not path.exists():
        shipped = ", ".join(shipped_profiles())
        raise FormatError(
            name_or_file, None, None, f"neither a shipped profile ({shipped}) nor a file"
        )
    return read_profile(path)


def _shipped_folder() -> Path:
    return Path(str(files("kvspec").joinpath("data", "profiles")))


def _not_empty(value: object, where: Where) -> str:
    """Check a text of at least one character."""
    found = text(value, where)
    if not found:
        raise where.error("is empty")
    return found


_NAME = Form(_not_empty, as_it_is)
_PROFILE = Shape(
    Profile,
    forms={**FORMS, "name": _NAME, "version": _NAME, Policy: Form(decode_policy, encode_policy)},
)
