"""Convert texts and tokens to ids of runs: equal runs have equal ids, in every file.

Without a tokenizer four bytes of UTF-8 count as a token. Equal beginnings of texts then are equal
beginnings of prompts, up to whole tokens; the number of tokens is an estimate.
"""

from __future__ import annotations

import hashlib
import re
import sys
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

from kvcheck.tools.replay.trace import TraceRecord
from kvspec.errors import InvalidArgumentError

RUN_LENGTH = 16
"""Tokens of a run: the default block size of engines."""

ASSUMED_OUTPUT_TOKENS = 256
"""Length of an output of which nothing is known; `vllm bench serve` assumes the same."""

MOST_WAITING = 4_096
"""Most requests that wait for their outputs; beyond it the first one is yielded without."""

Tokenizer: TypeAlias = Callable[[str], "array[int]"]

ROLES = ("system", "developer", "tools", "user", "human", "assistant", "gpt", "tool")
"""Roles that are spelled by their names; for others there are empty brackets."""

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
        problem = "left out; it needs tokenizers: pip install 'kvspec[tokenizer]'"
        raise InvalidArgumentError("tokenizer", path, problem) from error
    try:
        library = Library.from_file(path)
    except Exception as error:  # the library raises no narrower one
        allowed = f"the path of a tokenizer.json ({error})"
        raise InvalidArgumentError("tokenizer", path, allowed) from error
    return LibraryTokenizer(library)


class LibraryTokenizer:
    """A tokenizer of the library `tokenizers`, without special tokens."""

    def __init__(self, library: Any) -> None:
        self._library = library
        if library.decoder is None and '"ByteLevel"' in library.to_str():
            from tokenizers.decoders import ByteLevel

            library.decoder = ByteLevel()  # its tokens stand for bytes

    def __call__(self, text: str) -> array[int]:
        return tokens_of(self._library.encode(text, add_special_tokens=False).ids)

    def spell(self, data: bytes) -> str:
        """Return the text of tokens, see `Spelling`."""
        roles = {role_token(role): f"<{role}>" for role in ROLES}
        found, tokens = "", _words(data)
        for is_role, group in groupby(tokens, roles.__contains__):
            part = list(group)
            if is_role:
                found += "".join(roles[each] for each in part)
            else:
                known = [each for each in part if each < self._library.get_vocab_size()]
                found += self._library.decode(known, skip_special_tokens=False)
        return found


def spell_stand_in(data: bytes) -> str:
    """Return the text of stand-in tokens, or of a part of them."""
    names = {role_token(role).to_bytes(4, "little"): role for role in ROLES}
    found = ""
    for part in re.split(rb"(\xff[\s\S]{3})", data):
        if part[:1] == _ROLE:
            found += f"<{names.get(part, '')}>"
        else:
            found += part.replace(b"\0", b"").decode(errors="ignore")
    return found


class Prompt:
    """A prompt that grows, and the ids of its runs; each is made once.

    The id of a run of one token is the token.
    """

    def __init__(self, run_length: int | None = None) -> None:
        self._run_length = run_length or RUN_LENGTH
        self._open: array[int] = array("I")  # tokens after the last whole run
        self._ids: list[int] = []

    @property
    def length(self) -> int:
        """Number of tokens."""
        return len(self._ids) * self._run_length + len(self._open)

    def add(self, tokens: array[int]) -> None:
        """Append tokens."""
        size = self._run_length
        if size == 1:
            self._ids.extend(tokens)
            return
        waiting = self._open + tokens
        whole = len(waiting) - len(waiting) % size
        for start in range(0, whole, size):
            self._ids.append(_run_id(waiting[start : start + size]))
        self._open = waiting[whole:]

    def record(
        self,
        line: int,
        part: int,
        output: int | array[int],
        *,
        timestamp_ms: int = 0,
    ) -> TraceRecord:
        """Return a request with all tokens added so far; `output`: its length, or its tokens."""
        size, open_runs = self._run_length, bool(self._open)
        known = None if isinstance(output, int) else self._open + output
        rest = self._open if known is None else known
        last = (
            rest
            if size == 1
            else [_run_id(rest[start : start + size]) for start in range(0, len(rest), size)]
        )
        return TraceRecord(
            line,
            timestamp_ms,
            self.length,
            output if isinstance(output, int) else len(output),
            (*self._ids, *last[:open_runs]),
            size,
            part,
            output_ids=None if known is None else tuple(last[open_runs:]),
        )


@dataclass(slots=True)
class Waiting:
    """A request of a log, whose output may follow: its tokens, or their number.

    `most`: the longest output that it allows, if that is known.
    """

    line: int
    at_ms: int
    prompt: Prompt
    most: int | None = None
    generated: int | array[int] | None = None

    def record(self, output: int | array[int]) -> TraceRecord:
        return self.prompt.record(self.line, 0, output, timestamp_ms=self.at_ms)


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
