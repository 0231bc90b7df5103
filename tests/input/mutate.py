"""Valid input made invalid: bytes, values, wrappings. The same seed makes the same input."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import cbor2
import zstandard

Mutation: TypeAlias = Callable[[bytes, random.Random], bytes]

BOMB_BYTES = 2**31
"""Bytes that a packed input of a few kilobytes unpacks to: more than a child may have."""

HOSTILE = (
    *("0", "-1", "1", "1.5", "-0.0", "1e308", "1e400", "NaN", "true", "null", '""', '"x"'),
    *("9007199254740992", "9223372036854775808", "18446744073709551616", "100000000"),
    *("1" + "0" * 400, "9" * 5_000, "[]", "{}", "[0]", "[[]]", '{"type": 0}', "[null, 1]"),
    *('"\\ud800"', '"' + "x" * 5_000 + '"', '"\\u0000"', "[" * 200 + "]" * 200, '{"a":' * 90 + "0"),
    "[" + "0, " * 2_000 + "0]",
)
"""Texts that may stand where a value stands; some of them are no JSON."""


class Name(str):
    """A name that is another each time, so that an object can have it twice."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


def places(value: Any) -> list[tuple[Any, Any]]:
    """Return each list or object within a value, with one of its indices or names."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        outer = waiting.pop()
        keys = list(outer) if isinstance(outer, dict) else range(min(len(outer), 4))
        for key in keys:
            found.append((outer, key))
            if isinstance(outer[key], dict | list):
                waiting.append(outer[key])
    return found


def change(value: Any, rng: random.Random, hostile: Callable[[], Any]) -> None:
    """Drop, double, rename, exchange or replace one place."""
    found = places(value)
    if not found:
        return
    outer, key = rng.choice(found)
    kind = rng.randrange(6)
    if kind == 0:
        del outer[key]
    elif kind == 1 and isinstance(outer, dict):
        outer[Name(key)] = outer[key]
    elif kind == 1:
        outer.insert(key, outer[key])
    elif kind == 2 and isinstance(outer, dict):
        outer[f"{key}x"] = outer.pop(key)
    elif kind == 3:
        other, at = rng.choice(found)
        outer[key] = json.loads(json.dumps(other.get(at) if isinstance(other, dict) else None))
    else:
        outer[key] = hostile()


def in_json(text: bytes, rng: random.Random) -> bytes:
    value = json.loads(text)
    texts: list[str] = []

    def hostile() -> str:
        texts.append(rng.choice(HOSTILE))
        return f"@{len(texts) - 1}@"

    if isinstance(value, dict | list):
        for _ in range(rng.choice((1, 1, 1, 2, 4))):
            change(value, rng, hostile)
    changed = json.dumps(value)
    for number, hostile_text in enumerate(texts):
        changed = changed.replace(f'"@{number}@"', hostile_text)
    return changed.encode("utf-8", "surrogatepass")


def in_document(data: bytes, rng: random.Random) -> bytes:
    return in_json(data, rng)


def in_lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    kind = rng.randrange(8)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(rng.randrange(len(lines)), lines[at])
    elif kind == 2:
        lines.append(lines.pop(at))
    else:
        lines[at] = in_json(lines[at], rng)
    return b"\n".join(lines) + b"\n" * rng.randrange(3)


def in_frames(data: bytes, rng: random.Random) -> bytes:
    frames, at = [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        frames.append(data[at + 4 : at + 4 + size])
        at += 4 + size
    number = rng.randrange(len(frames))
    value = cbor2.loads(frames[number])
    big: tuple[Any, ...] = (2**64, 10**5_000, -1, 1.5, float("nan"), b"x", [], {}, {1: 2}, None)
    change(value, rng, lambda: rng.choice(big))
    plain = {str(name): item for name, item in value.items()}
    frames[number] = cbor2.dumps(plain, value_sharing=rng.random() < 0.2)
    return b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)


def in_toml(data: bytes, rng: random.Random) -> bytes:
    """Change one value of a profile, or its name."""
    lines = data.decode().splitlines()
    at = rng.randrange(len(lines))
    name = lines[at].partition("=")[0] or "x"
    odd = (
        "0x" + "f" * 9_000,
        "2020-99-99",
        "{a = 1}",
        "'''",
        "1e9999",
        "inf",
        "[[",
        "a" + ".a" * 9,
    )
    if rng.random() < 0.2:
        name = "a" + ".a" * rng.choice((1, 100, 4_000, 100_000))
    lines[at] = f"{name} = {rng.choice((*HOSTILE, *odd))}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def in_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, remove, insert or cut off bytes, or change the encoding."""
    kind = rng.randrange(7)
    at = rng.randrange(len(data) + 1)
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + bytes(rng.randrange(256) for _ in range(rng.randrange(1, 9))) + data[at:]
    if kind == 2:
        return data[:at] + data[at + rng.randrange(1, 99) :]
    if kind == 3:
        return data[:at] + data[: rng.randrange(2_000)] + data[at:]
    if kind == 4:
        codec = rng.choice(("utf-16", "utf-32", "utf-8-sig"))
        return data.decode("utf-8", "replace").encode(codec)
    spoilt = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 30))):
        if spoilt:
            spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
    return bytes(spoilt)


def packed(data: bytes, rng: random.Random) -> bytes:
    """Compress, and most often damage the result; sometimes return a bomb."""
    if rng.random() < 0.03:
        return bomb(rng.choice((b" ", b"[", b"[],", b"{}\n", b"9", b"\n", b"\xff")))
    content = gzip.compress(data) if rng.random() < 0.5 else zstd().compress(data)
    return in_bytes(content, rng) if rng.random() < 0.8 else content + content


def bomb(filling: bytes) -> bytes:
    """Return a few kilobytes that unpack to BOMB_BYTES of this."""
    packer = zstd().compressobj()
    piece = filling * (2**24 // len(filling))
    parts = [packer.compress(piece) for _ in range(BOMB_BYTES // len(piece))]
    return b"".join((*parts, packer.flush()))


def zstd() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(level=1)


KINDS: Mapping[str, tuple[Mutation, ...]] = {
    "lines": (in_lines, in_lines, in_lines, in_bytes, packed),
    "document": (in_document, in_document, in_document, in_bytes),
    "messages": (in_lines, in_lines, in_lines, in_bytes),
    "frames": (in_frames, in_frames, in_frames, in_bytes),
    "toml": (in_toml, in_toml, in_bytes),
}
"""The changes of input of each kind."""
