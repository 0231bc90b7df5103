"""Convert texts and tokens to ids of runs: equal runs have equal ids, in every file.

Without a tokenizer four bytes of UTF-8 count as a token. Equal beginnings of texts then are equal
beginnings of prompts, up to whole tokens; the number of tokens is an estimate.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Iterable
from typing import TypeAlias

from kvcheck.tools.replay.trace import TraceRecord
from kvspec.errors import InvalidArgumentError

RUN_LENGTH = 16
"""Tokens of a run: the default block size of engines."""

ASSUMED_OUTPUT_TOKENS = 256
"""Length of an output of which nothing is known; `vllm bench serve` assumes the same."""

Tokenizer: TypeAlias = Callable[[str], "array[int]"]

_STAND_IN_BYTES = 4
_ROLE = b"\xff"  # in no text of UTF-8


def stand_in(text: str) -> array[int]:
    """Return a token for every four bytes of UTF-8."""
    data = text.encode("utf-8", errors="surrogatepass")
    return _words(data + bytes(-len(data) % _STAND_IN_BYTES))


def role_token(role: str) -> int:
    """Return the token of a role, which replaces a chat template's words before a message."""
    return _words(_ROLE + hashlib.sha256(role.encode(errors="surrogatepass")).digest()[:3])[0]


def tokens_of(numbers: Iterable[int]) -> array[int]:
    """Return tokens as an engine logs them. OverflowError for one of 2^32 or more."""
    return array("I", numbers)


def tokenizer_of(path: str) -> Tokenizer:
    """Load a `tokenizer.json` with the library `tokenizers`; it adds no special tokens."""
    try:
        from tokenizers import Tokenizer as Library
    except ImportError as error:
        problem = (
            "omitted, unless the package tokenizers is installed: pip install 'kvspec[tokenizer]'"
        )
        raise InvalidArgumentError("tokenizer", path, problem) from error
    try:
        library = Library.from_file(path)
    except Exception as error:  # the library raises no narrower one
        allowed = f"the path of a tokenizer.json ({error})"
        raise InvalidArgumentError("tokenizer", path, allowed) from error
    return lambda text: tokens_of(library.encode(text, add_special_tokens=False).ids)


class Prompt:
    """A prompt that grows, and the ids of its runs; each is made once."""

    def __init__(self) -> None:
        self._open: array[int] = array("I")  # tokens after the last whole run
        self._ids: list[int] = []

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self._ids) * RUN_LENGTH + len(self._open)

    def add(self, tokens: array[int]) -> None:
        """Append tokens."""
        waiting = self._open + tokens
        whole = len(waiting) - len(waiting) % RUN_LENGTH
        for start in range(0, whole, RUN_LENGTH):
            self._ids.append(_run_id(waiting[start : start + RUN_LENGTH]))
        self._open = waiting[whole:]

    def record(
        self, line: int, part: int, output_length: int, *, timestamp_ms: int = 0
    ) -> TraceRecord:
        """Return a request with all tokens added so far."""
        last = (_run_id(self._open),) if self._open else ()
        ids = (*self._ids, *last)
        return TraceRecord(line, timestamp_ms, self.length, output_length, ids, RUN_LENGTH, part)


def _run_id(tokens: array[int]) -> int:
    """Return 63 bits of BLAKE2b of the tokens, four bytes each, low byte first."""
    return hashed(_low_first(tokens).tobytes())


def hashed(data: bytes) -> int:
    """Return 63 bits of BLAKE2b, which fit an id."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def _words(data: bytes) -> array[int]:
    words = array("I")
    words.frombytes(data)
    return _low_first(words)


def _low_first(words: array[int]) -> array[int]:
    if sys.byteorder == "big":
        words = words[:]
        words.byteswap()
    return words
