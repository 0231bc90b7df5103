"""Compare a result with the words behind `->`; only what the words mention counts."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from kvcheck.rules.managed import Managed
from kvcheck.rules.notation.values import Name, parted
from kvspec.blocks import KVCacheBlocks, PrefixHit
from kvspec.errors import KVSpecError

Resolve = Callable[[Any], Any]
"""Resolves a word: to the block id of an entry, a hash, or itself."""


def plain(value: Any) -> Any:
    """Return a value in words of the notation: bytes as hex, sequences as lists, enums by value."""
    if isinstance(value, KVCacheBlocks):
        return value.to_lists()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, bytes | memoryview):
        return bytes(value).hex()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, str) or is_dataclass(value):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return {plain(key): plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, Sequence) else value


def narrowed(got: Any, wanted: Any) -> Any:
    """Return of `got` what `wanted` mentions: the named members, a text without what `…` omits."""
    if isinstance(wanted, str) and "…" in wanted and isinstance(got, str):
        is_so = re.fullmatch(".*".join(map(re.escape, wanted.split("…"))), got, re.DOTALL)
        return wanted if is_so else got
    if isinstance(wanted, list) and is_dataclass(got):  # a range of stored blocks
        got = [plain(getattr(got, member.name)) for member in fields(got)]
    if isinstance(wanted, list) and isinstance(got, list) and len(got) == len(wanted):
        return [narrowed(each, want) for each, want in zip(got, wanted, strict=True)]
    if isinstance(wanted, dict):
        names = [name for name in wanted if name != "type"]
        found = {name: narrowed(plain(getattr(got, name, None)), wanted[name]) for name in names}
        return {"type": type(got).__name__, **found} if "type" in wanted else found
    return got


def worded(words: Sequence[Any], resolve: Resolve) -> Any:
    """Return the value of a result's words: a value, lists, or the members of an object."""
    bare, members = parted(words)
    if members or (len(bare) == 1 and isinstance(bare[0], Name) and bare[0].word[0].isupper()):
        kind = {"type": bare[0].word} if bare else {}
        return {**kind, **{name: resolved(value, resolve) for name, value in members.items()}}
    values = [resolved(value, resolve) for value in bare]
    return values[0] if len(values) == 1 else values


def resolved(value: Any, resolve: Resolve) -> Any:
    if isinstance(value, list):
        return [resolved(each, resolve) for each in value]
    found = resolve(value)
    return found.word if isinstance(found, Name) else plain(found)


def compare(
    manager: Managed | None,
    got: Any,
    items: Sequence[Sequence[Any]],
    *,
    of_blocks: bool,
    resolve: Resolve,
    equal: Callable[[Any, Any], None],
) -> None:
    """Compare a result. `items`: the words between `;`. `of_blocks`: lists of block ids."""
    if manager is not None and isinstance(got, PrefixHit):
        _compare_hit(manager, got, items[0], resolve, equal)
        return
    if got is None or items[0] in ([Name("refused")], [None]):
        equal(plain(got), None if items[0] in ([Name("refused")], [None]) else items[0])
        return
    if manager is not None and (isinstance(got, KVCacheBlocks) or of_blocks):
        wanted = [resolved(value, resolve) for value in items[0]]
        found = plain(got)
        nested = bool(found) and isinstance(found[0], list)
        manager.same(found, wanted if nested else wanted[0], "the answer")
        return
    if len(items) > 1 or _is_of_events(got, items):
        wanted = [worded(words, resolve) for words in items if words and words != [[]]]
        equal(narrowed(plain(got), wanted), wanted)
        return
    wanted = worded(items[0], resolve)
    found = plain(got)
    if _depth(found) > _depth(wanted) > 0:  # `[0 1]`: a list for each group, of one group
        wanted = [wanted]
    equal(narrowed(found, wanted), wanted)


def _depth(value: Any) -> int:
    if not isinstance(value, list):
        return 0
    return 1 + max(map(_depth, value), default=0)


def _is_of_events(got: Any, items: Sequence[Sequence[Any]]) -> bool:
    return (
        isinstance(got, tuple | list)
        and any(is_dataclass(each) for each in got)
        and items[0] != [[]]
    )


def _compare_hit(
    manager: Managed,
    got: PrefixHit,
    words: Sequence[Any],
    resolve: Resolve,
    equal: Callable[[Any, Any], None],
) -> None:
    """Judge `16 [- - 3 4] uncached_common_prefix_tokens=0`; each part may be left out.

    `at_most 4`: no more tokens, which is what every level asks.
    """
    bare, members = parted(words)
    if bare[:1] == [Name("at_most")]:
        equal(min(got.hit_length_tokens, bare[1]), got.hit_length_tokens)
        return
    if bare and isinstance(bare[0], int):
        equal(got.hit_length_tokens, bare.pop(0))
    if bare:
        manager.same(got.blocks, [resolved(value, resolve) for value in bare], "the hit's blocks")
    for name, value in members.items():
        equal(plain(getattr(got, name)), resolved(value, resolve))


def written(call: Callable[[], Any]) -> str:
    """Make a call and return its whole result as it is written behind `->`."""
    try:
        got = call()
    except KVSpecError as error:
        return " ".join([type(error).__name__, *_members(vars(error))])
    if isinstance(got, PrefixHit):
        return f"{got.hit_length_tokens} {_groups(got.blocks.to_lists())}"
    if isinstance(got, KVCacheBlocks):
        return _groups(got.to_lists())
    if isinstance(got, tuple) and got and is_dataclass(got[0]):
        return " ; ".join(map(_object, got))
    if is_dataclass(got):
        return _object(got)
    found = plain(got)
    return _groups(found) if _depth(found) > 1 else _word(found)


def _groups(lists: Any) -> str:
    return " ".join(map(_word, lists))


def _object(value: Any) -> str:
    members = {field.name: getattr(value, field.name) for field in fields(value)}
    return " ".join([type(value).__name__, *_members(members)])


def _members(members: Mapping[str, Any]) -> list[str]:
    return [f"{name}={_word(plain(value))}" for name, value in members.items()]


def _word(value: Any) -> str:
    if isinstance(value, list):
        return f"[{' '.join(_runs(value))}]"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value[:8]}…"' if len(value) in (32, 64, 72) else f'"{value}"'
    return str(value)


def _runs(values: Sequence[Any]) -> Iterator[str]:
    """Yield the words of a list, with four or more consecutive numbers as a range."""
    place = 0
    while place < len(values):
        end = place + 1
        if type(values[place]) is int:
            while end < len(values) and values[end] == values[place] + end - place:
                end += 1
        if end - place < 4:
            end = place + 1
            yield _word(values[place])
        else:
            yield f"{values[place]}..{values[end - 1]}"
        place = end
