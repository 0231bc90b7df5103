"""Conversations as texts: every answer is a request, whose prompt is all messages before it.

A prompt is one token for each message's role, and the message's text; then one for the role of the
answer. Chat templates do the same, but add further words.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kvcheck.tools.replay.formats.input import Fields
from kvcheck.tools.replay.formats.text import (
    ASSUMED_OUTPUT_TOKENS,
    Prompt,
    Tokenizer,
    role_token,
    spell_stand_in,
    stand_in,
    tokens_of,
)
from kvcheck.tools.replay.trace import ESTIMATED, Spelling, TraceRecord

ANSWERS = frozenset({"assistant", "gpt", "chatgpt", "model", "bing", "bard"})
"""Roles whose messages were generated."""
ANSWER = "assistant"
"""The role of an answer that is not in the data."""


@dataclass(frozen=True)
class Message:
    """A message: its role and text."""

    role: str
    text: str


class TextNotes:
    """Say what is not exact where prompts are texts, by counts of what was read."""

    def __init__(self, tokenizer: Tokenizer | None, run_length: int | None) -> None:
        self._tokenizer, self._run_length = tokenizer, run_length
        self._estimated = 0
        self._with_roles = False
        self.assumed = self.known = self.unknown = 0
        self.prompts_said = self.cached_said = self.prompts_counted = 0
        self.first = 0

    def prompt(self) -> Prompt:
        """Return an empty prompt."""
        return Prompt(self._run_length)

    @property
    def spelling(self) -> Spelling | None:
        """Return how to read tokens as text; None if all of them were given as numbers."""
        if self._estimated:
            return Spelling(spell_stand_in, 1)
        spell = getattr(self._tokenizer, "spell", None)
        return None if spell is None else Spelling(spell, 4)

    def encode(self, text: str) -> array[int]:
        """Return the tokens of a text; without a tokenizer they are estimated."""
        if self._tokenizer is not None:
            return self._tokenizer(text)
        self._estimated += 1
        return stand_in(text)

    def role(self, role: str) -> array[int]:
        """Return the one token that represents what a chat template writes for a role."""
        self._with_roles = True
        return tokens_of([role_token(role)])

    def output(
        self, found: int | array[int] | None, *, most: int | None = None
    ) -> int | array[int]:
        """Return an output or its length; if unknown, an assumed length of at most `most`."""
        if found is not None:
            self.known += not isinstance(found, int)
            return found
        self.assumed += 1
        return ASSUMED_OUTPUT_TOKENS if most is None else min(most, ASSUMED_OUTPUT_TOKENS)

    def sentences(self, *, timed: bool) -> tuple[str, ...]:
        """Return the notes, those that change most first."""
        found: list[str] = []
        if self._estimated:
            found.append(f"{ESTIMATED}: 4 bytes of text count as a token; --tokenizer FILE counts")
        if self._with_roles:
            found.append("one token per message is counted for the chat template")
        if self.assumed:
            found.append(
                f"outputs not in the data: {self.assumed:,}, taken to be {ASSUMED_OUTPUT_TOKENS}"
                " tokens, or what the request allows if that is less"
            )
        if self.known and self._with_roles:
            found.append(
                f"answers in the data: {self.known:,}; cached as generated, they hit where a later"
                " prompt repeats them, as if its template wrote the same tokens"
            )
        if self.unknown:
            found.append(
                f"tokens of earlier answers that no request here generated: {self.unknown:,};"
                " they miss until a prompt has had them"
            )
        if self.prompts_said:
            share = self.cached_said / self.prompts_said
            cached = f", {share:.2%} of them cached" if self.cached_said else ""
            found.append(
                f"usage in the data: {self.prompts_said:,} tokens in prompts{cached}; the same"
                f" prompts have {self.prompts_counted:,} here"
            )
        if self.first:
            found.append(f"answers with nothing before them, which are no requests: {self.first:,}")
        if not timed:
            turns = ", turn after turn" if self._with_roles else ""
            found.append(f"no times in the data: requests come in the order of the file{turns}")
        return tuple(found)


class TextReader:
    """The base of readers of texts."""

    has_times = False

    def __init__(self, tokenizer: Tokenizer | None, run_length: int | None = None) -> None:
        self._notes = TextNotes(tokenizer, run_length)

    @property
    def notes(self) -> tuple[str, ...]:
        """See `TextNotes`."""
        return self._notes.sentences(timed=self.has_times)

    @property
    def spelling(self) -> Spelling | None:
        """See `TextNotes`."""
        return self._notes.spelling


class Places:
    """Numbers of requests within their line."""

    def __init__(self) -> None:
        self._line, self._part = 0, 0

    def next(self, line: int) -> tuple[int, int]:
        """Return line and part of the next request."""
        self._part = self._part + 1 if line == self._line else 0
        self._line = line
        return self._line, self._part


def requests(
    messages: Iterable[Message], line: int, places: Places, notes: TextNotes
) -> Iterator[TraceRecord]:
    """Yield a request for every answer, and one for messages after the last answer."""
    prompt = notes.prompt()
    is_answered = True
    for message in messages:
        text = notes.encode(message.text)
        is_answered = message.role in ANSWERS
        is_request = is_answered and prompt.length > 0
        notes.first += is_answered and not is_request
        prompt.add(notes.role(message.role))
        if is_request:
            yield prompt.record(*places.next(line), notes.output(text))
        prompt.add(text)
    if not is_answered:
        prompt.add(notes.role(ANSWER))
        yield prompt.record(*places.next(line), notes.output(None))


def content_text(fields: Fields, name: str) -> str:
    """Return a message's content: a text, or parts, with those without text as JSON."""
    value = fields.get(name)
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.error(name, "must be a text or a list of parts")
    return "".join(_part_text(part) for part in value)


def _part_text(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return json.dumps(part, sort_keys=True)
