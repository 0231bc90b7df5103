"""The log of SGLang's server with --log-requests --log-requests-format json, at level 3.

A request is logged when it comes, with its tokens, and again when it has ended, with its output:
requests wait here for their outputs.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from datetime import datetime

from kvcheck.tools.replay.formats.conversation import TextReader
from kvcheck.tools.replay.formats.input import Fields, parsed, text_lines
from kvcheck.tools.replay.formats.text import MOST_WAITING, Waiting
from kvcheck.tools.replay.trace import TraceRecord

RECEIVED, FINISHED = "request.received", "request.finished"
_FORM = (
    "sglang-log is what SGLang's server logs with --log-requests --log-requests-level 3"
    " --log-requests-format json"
)


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
        waiting: dict[str, Waiting] = {}
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
                waiting[name].generated = _generated(fields.inner("out"))
            yield from self._ready(waiting, MOST_WAITING)
        yield from self._ready(waiting, 0)

    def _received(self, fields: Fields) -> Waiting:
        """Return a request with its tokens."""
        asked = fields.inner("obj")
        prompt = self._notes.prompt()
        if asked.value.get("input_ids") is None:
            prompt.add(self._notes.encode(asked.text("text")))
        else:
            prompt.add(asked.tokens("input_ids"))
        if not prompt.length:
            raise asked.error("input_ids", "must not be empty")
        limits = asked.value.get("sampling_params")
        most = limits.get("max_new_tokens") if isinstance(limits, dict) else None
        at_ms = self._milliseconds(fields)
        return Waiting(fields.line, at_ms, prompt, most if type(most) is int else None)

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

    def _ready(self, waiting: dict[str, Waiting], most: int) -> Iterator[TraceRecord]:
        while waiting and (
            len(waiting) > most or next(iter(waiting.values())).generated is not None
        ):
            asked = waiting.pop(next(iter(waiting)))
            output = self._notes.output(asked.generated, most=asked.most)
            yield asked.record(output)


def _generated(out: Fields) -> int | array[int] | None:
    """Return the tokens of an output, or else their number, if it is logged."""
    if out.value.get("output_ids"):
        return out.tokens("output_ids")
    about = out.value.get("meta_info")
    found = about.get("completion_tokens") if isinstance(about, dict) else None
    return found if type(found) is int and found >= 0 else None
