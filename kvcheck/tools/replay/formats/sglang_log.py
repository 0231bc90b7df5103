"""The log of SGLang's server with --log-requests --log-requests-format json, at level 3.

A request is logged when it comes, with its tokens, and again when it has ended, with its output:
requests wait here for their outputs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from kvcheck.tools.replay.formats.conversation import TextReader
from kvcheck.tools.replay.formats.input import Fields, parsed, text_lines
from kvcheck.tools.replay.formats.text import Prompt, tokens_of
from kvcheck.tools.replay.trace import TraceRecord

RECEIVED, FINISHED = "request.received", "request.finished"
_FORM = (
    "sglang-log is what SGLang's server logs with --log-requests --log-requests-level 3"
    " --log-requests-format json"
)
_MOST_WAITING = 4_096
"""Most requests that wait for their outputs; beyond it the first one is yielded without."""


@dataclass(slots=True)
class _Waiting:
    """A request whose output may still follow: then its tokens, or their number."""

    line: int
    at_ms: int
    prompt: Prompt
    most: int | None
    generated: int | array[int] | None = None


class SGLangLogReader(TextReader):
    """Reads tokens where they are logged, and texts of requests that came as texts."""

    name = "sglang-log"
    has_times = True
    _began: datetime | None = None
    _last_ms = _batches = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on outputs that are not known, and on what was left out."""
        found = [*super().notes]
        if self._batches:
            found.append(f"requests left out, that came several in one: {self._batches:,}")
        return tuple(found)

    def records(self, chunks: Iterable[bytes], file: str) -> Iterator[TraceRecord]:
        """Yield requests in order of arrival; lines that are no JSON are not theirs."""
        waiting: dict[str, _Waiting] = {}
        for line, text in text_lines(chunks, file):
            if not text.lstrip().startswith(b"{"):
                continue
            fields = parsed(text, file, line, _FORM)
            event, name = fields.value.get("event"), fields.value.get("rid")
            if event == RECEIVED and not isinstance(name, str):
                self._batches += 1
            elif event == RECEIVED:
                waiting[str(name)] = self._received(fields)
            elif event == FINISHED and isinstance(name, str) and name in waiting:
                waiting[name].generated = _generated(_inner(fields, "out"))
            yield from self._ready(waiting, _MOST_WAITING)
        yield from self._ready(waiting, 0)

    def _received(self, fields: Fields) -> _Waiting:
        """Return a request with its tokens."""
        asked = _inner(fields, "obj")
        prompt = self._notes.prompt()
        if asked.value.get("input_ids") is None:
            prompt.add(self._notes.encode(asked.text("text")))
        else:
            try:
                prompt.add(tokens_of(asked.naturals("input_ids")))
            except OverflowError:
                raise asked.error("input_ids", "has a token of 2^32 or more") from None
        if not prompt.length:
            raise asked.error("input_ids", "must not be empty")
        limits = asked.value.get("sampling_params")
        most = limits.get("max_new_tokens") if isinstance(limits, dict) else None
        at_ms = self._milliseconds(fields)
        return _Waiting(fields.line, at_ms, prompt, most if type(most) is int else None)

    def _milliseconds(self, fields: Fields) -> int:
        """Return the time since the first request; one before an earlier one counts as that."""
        try:
            moment = datetime.fromisoformat(fields.text("timestamp"))
            self._began = self._began or moment
            passed = round((moment - self._began).total_seconds() * 1000)
        except (TypeError, ValueError) as error:
            raise fields.error("timestamp", f"is no time: {error}") from None
        self._last_ms = max(self._last_ms, passed)
        return self._last_ms

    def _ready(self, waiting: dict[str, _Waiting], most: int) -> Iterator[TraceRecord]:
        while waiting and (
            len(waiting) > most or next(iter(waiting.values())).generated is not None
        ):
            asked = waiting.pop(next(iter(waiting)))
            output = self._notes.output(asked.generated, most=asked.most)
            yield asked.prompt.record(asked.line, 0, output, timestamp_ms=asked.at_ms)


def _inner(fields: Fields, name: str) -> Fields:
    value = fields.get(name)
    if not isinstance(value, dict):
        raise fields.error(name, "must be an object")
    return Fields(value, fields.file, fields.line, fields.form, f"{name}.")


def _generated(out: Fields) -> int | array[int] | None:
    """Return the tokens of an output, or else their number, if it is logged."""
    try:
        if out.value.get("output_ids"):
            return tokens_of(out.naturals("output_ids"))
    except OverflowError:
        raise out.error("output_ids", "has a token of 2^32 or more") from None
    about = out.value.get("meta_info")
    found = about.get("completion_tokens") if isinstance(about, dict) else None
    return found if type(found) is int and found >= 0 else None
