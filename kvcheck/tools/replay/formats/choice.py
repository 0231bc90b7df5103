"""Recognise the format of a file by its beginning, and choose the reader."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from kvcheck.tools.replay.formats.input import Reader
from kvcheck.tools.replay.formats.messages import MessagesReader
from kvcheck.tools.replay.formats.mooncake import BailianReader, MooncakeReader
from kvcheck.tools.replay.formats.prompts import PromptsReader, ShareGPTReader
from kvcheck.tools.replay.formats.sglang_log import SGLangLogReader
from kvcheck.tools.replay.formats.text import Tokenizer
from kvcheck.tools.replay.formats.vllm_log import COLOUR, LINE, VLLMLogReader
from kvcheck.tools.replay.formats.weka import WekaReader

READERS: Mapping[str, Callable[[Tokenizer | None, int | None], Reader]] = {
    "mooncake": lambda _, run_length: MooncakeReader(run_length),
    "bailian": lambda *_: BailianReader(),
    "weka": lambda *_: WekaReader(),
    "sharegpt": ShareGPTReader,
    "messages": MessagesReader,
    "prompts": PromptsReader,
    "vllm-log": lambda _, run_length: VLLMLogReader(run_length),
    "sglang-log": SGLangLogReader,
}
"""In the order of spec/replay.md."""

FORMATS = tuple(READERS)

TEXT_FORMATS: tuple[str, ...] = ("sharegpt", "messages", "prompts", "sglang-log")
"""Those that a tokenizer is for."""

TOKEN_FORMATS: tuple[str, ...] = (*TEXT_FORMATS, "vllm-log")
"""Those whose tokens are known, and not only ids of runs of them."""

FINEST = 0
"""A length of runs: one token where the tokens are known, otherwise as the trace has them."""

START_BYTES = 2**16
"""The number of bytes read to recognise a file's format."""

_MEMBER = re.compile(rb'"(\w+)"\s*:')
"""A member of an object. Not inside of a string: the quotes there are escaped."""


def reader_of(
    name: str, tokenizer: Tokenizer | None = None, run_length: int | None = None
) -> Reader:
    """Return a new reader of the form, which is one of `FORMATS`.

    `run_length`: tokens of an id, for Mooncake's form; or `FINEST`.
    """
    if run_length == FINEST:
        run_length = 1 if name in TOKEN_FORMATS else None
    return READERS[name](tokenizer, run_length)


def recognised(start: bytes) -> str | None:
    """Return the format of a file with this beginning; None if it is ambiguous or unknown."""
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"["):
        return _of_members(set(_MEMBER.findall(text)))
    return "vllm-log" if LINE.search(COLOUR.sub(b"", text)) is not None else None


def _of_members(found: set[bytes]) -> str | None:
    """Return the first format that the names of members match, wherever they occur."""
    if {b"event", b"rid", b"obj"} <= found:
        return "sglang-log"
    if {b"block_size", b"requests"} <= found:
        return "weka"
    if b"chat_id" in found and b"input_length" in found:
        return "bailian"
    if b"input_length" in found or b"hash_ids" in found:
        return "mooncake"
    if b"conversations" in found:
        return "sharegpt"
    if found & {b"messages", b"conversation", b"body"}:
        return "messages"
    return "prompts" if b"prompt" in found else None
