"""The log of `vllm serve --enable-log-requests`, at level DEBUG.

Prompts are logged as tokens at DEBUG, parameters at INFO. With --enable-log-outputs it also says
which tokens were generated, later than the request: requests wait here for their outputs.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from kvcheck.tools.replay.formats.input import Fields, text_lines
from kvcheck.tools.replay.formats.text import (
    ASSUMED_OUTPUT_TOKENS,
    MOST_WAITING,
    Prompt,
    Waiting,
    tokens_of,
)
from kvcheck.tools.replay.trace import TraceError, TraceRecord

LINE = re.compile(rb"(?:DEBUG|INFO|WARNING|ERROR) (\d\d-\d\d \d\d:\d\d:\d\d) \[[^\]]*:\d+\] ")
"""The prefix of a message in vLLM's log, without colours; `group(1)` is the time."""

COLOUR = re.compile(rb"\x1b\[[\d;]*m")
_DETAILS = re.compile(rb"Request (\S+) details: prompt: ")
_RECEIVED = re.compile(rb"Received request (\S+): ")
_GENERATED = re.compile(
    rb"Generated response (\S+)(?: \(streaming (?:delta|complete)\))? details:"
    rb" output_token_ids: \[([\d, ]*)\]"
)
_TOKENS = re.compile(
    rb"prompt_token_ids: (?:\[([\d, ]*)\]|None)(?=, (?:prompt_embeds|lora_request))"
)
_MAX_TOKENS = re.compile(rb"\bmax_tokens=(\d+)")
_FORM = "vllm-log is what vllm serve logs with --enable-log-requests and VLLM_LOGGING_LEVEL=DEBUG"

_LEAP_YEAR = 2000
_HALF_A_YEAR = timedelta(days=180)


@dataclass(frozen=True)
class _Line:
    """One line of the log: its number, its time, and what is logged."""

    file: str
    number: int
    time: bytes
    text: bytes

    def error(self, problem: str) -> TraceError:
        """Return the error of this line."""
        return Fields({}, self.file, self.number, _FORM).error("", problem)


class VLLMLogReader:
    """Times are to a second."""

    name = "vllm-log"
    has_times = True

    def __init__(self, run_length: int | None = None) -> None:
        self._run_length = run_length
        self._waiting: dict[bytes, Waiting] = {}
        self._assumed = self._without = 0
        self._clock = _Clock()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the source of output lengths and on what no log contains."""
        found: list[str] = []
        if self._assumed:
            found.append(
                f"outputs not in the log: {self._assumed:,}, taken to be {ASSUMED_OUTPUT_TOKENS}"
                " tokens, or max_tokens if that is less; --enable-log-outputs logs them"
            )
        if self._without:
            found.append(f"requests left out, without tokens in the log: {self._without:,}")
        found.append("times are to a second; prompts are cut if --max-log-len was given")
        return tuple(found)

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield requests in order of arrival, each when its output is known, or the file ends."""
        last = num_received = num_prompts = 0
        for last, data in text_lines(chunks, file):
            text = COLOUR.sub(b"", data) if b"\x1b" in data else data
            head = LINE.search(text)
            if head is None:
                continue
            line = _Line(file, last, head.group(1), text[head.end() :])
            if (details := _DETAILS.match(line.text)) is not None:
                num_prompts += self._asked(details.group(1), line)
            elif (received := _RECEIVED.match(line.text)) is not None:
                num_received += 1
                num_prompts += self._received(received.group(1), line)
            elif (generated := _GENERATED.match(line.text)) is not None:
                self._generated(*generated.groups())
            yield from self._ready(MOST_WAITING)
        if num_received and not num_prompts:
            problem = "ends without the tokens of a request: the log was not made at level DEBUG"
            raise _Line(file, last, b"", b"").error(problem)
        yield from self._ready(0)

    def _asked(self, name: bytes, line: _Line) -> int:
        """Add a request with its tokens; returns 1, or 0 for one without."""
        at_ms = self._clock.read(line)
        found = _TOKENS.findall(line.text)  # a prompt's text may hold the same words before
        if not found:
            raise line.error("has no prompt_token_ids, or they are cut off")
        if not found[-1]:
            self._without += 1
            return 0
        prompt = Prompt(self._run_length)
        try:
            prompt.add(_numbers(found[-1]))
        except (OverflowError, ValueError) as error:
            raise line.error(f"has prompt_token_ids that are no tokens: {error}") from None
        self._waiting[name] = Waiting(line.number, at_ms, prompt)
        return 1

    def _received(self, name: bytes, line: _Line) -> int:
        """Read the parameters, with the tokens in logs of older versions."""
        found = 0
        if _TOKENS.search(line.text) is not None:
            found = self._asked(name, line)
        limits = _MAX_TOKENS.findall(line.text)
        if name in self._waiting and limits:
            self._waiting[name].most = int(limits[-1])
        return found

    def _generated(self, name: bytes, numbers: bytes) -> None:
        """Add the tokens of an output, all of them or the next ones."""
        asked = self._waiting.get(name)
        if asked is not None:
            known = asked.generated if isinstance(asked.generated, array) else tokens_of(())
            asked.generated = known + _numbers(numbers)

    def _ready(self, most_waiting: int) -> Iterator[TraceRecord]:
        while len(self._waiting) > most_waiting:
            asked = self._waiting.pop(next(iter(self._waiting)))
            output = asked.generated
            if output is None:
                self._assumed += 1
                output = min(ASSUMED_OUTPUT_TOKENS, asked.most or ASSUMED_OUTPUT_TOKENS)
            yield asked.record(output)


class _Clock:
    """Milliseconds since the first request."""

    def __init__(self) -> None:
        self._began: datetime | None = None
        self._later = timedelta()
        self._last_ms = 0

    def read(self, line: _Line) -> int:
        """Read the time of a line; several processes log, so it may go back a little."""
        try:
            text = f"{_LEAP_YEAR}-{line.time.decode()}"
            moment = datetime.strptime(text, "%Y-%m-%d %H:%M:%S") + self._later
        except ValueError as error:
            raise line.error(f"has no date and time: {error}") from None
        self._began = self._began or moment
        if self._began - moment > _HALF_A_YEAR:  # the log names no year, and a new one began
            self._later += timedelta(days=366)
            moment += timedelta(days=366)
        passed = round((moment - self._began).total_seconds() * 1000)
        self._last_ms = max(self._last_ms, passed)
        return self._last_ms


def _numbers(text: bytes) -> array[int]:
    return tokens_of(map(int, text.split(b","))) if text.strip() else tokens_of(())
