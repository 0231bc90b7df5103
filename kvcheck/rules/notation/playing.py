"""Play an example on an implementation, line by line."""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import kvspec.errors as errors_of_the_contract
from kvcheck.play.left_out import LeftOut
from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import ANSWERS, HOLDS, NotationError, equal, raises, travels, wrong
from kvcheck.rules.notation.answers import compare, narrowed, plain, written
from kvcheck.rules.notation.story import (
    Line,
    Story,
    is_of_ids,
    is_pool,
    needs_ids,
    starts_anew,
    sums,
    sums_in,
)
from kvcheck.rules.notation.values import OPEN, Name, Reader, parted
from kvcheck.rules.notation.verbs import ANSWERS_WITH_BLOCKS, QUESTIONS, Verbs
from kvspec.errors import KVSpecError, RemoteError, UnsupportedError

PLAIN = re.compile(r"(?:new|append|free) \w+(?: [^=]*)?")
"""A line about a request of tokens alone that needs no feature."""


class Play(Verbs):
    """One run of an example, on managers of `bench`.

    `num_judged`: results, sums not counted; `skipped`: why the last unsupported line could not be
    played; `filled_in`: the result of the last line that ended with `-> ?`.
    """

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.num_judged = 0
        self.filled_in: str | None = None
        self.is_plain = False
        self.skipped: LeftOut | None = None

    def line(self, text: str) -> None:
        if sums_in(text):
            claimed, found = sums(text) or (0, 1)
            equal(found, claimed, text)
            return
        reader = Reader(text)
        if is_pool(text):
            begin = self.planning.begin if text.startswith("plan") else self.begin
            with self._ends(text) as ends:
                ends(lambda: begin(reader))
            return
        verb = reader.take()
        words = reader.values()
        if is_of_ids(text) and not self.on.exact:
            self.skipped = LeftOut("block ids")
            return
        with self._ends(text) as ends:
            ends(lambda: self.call(verb, words))
        self.num_judged += self.manager is not None and self.manager.guard is not None

    @contextmanager
    def _ends(self, text: str) -> Any:
        """Judge how a call ends by the words behind `->`."""
        answer = answer_of(text)
        self.is_plain = PLAIN.fullmatch(text) is not None
        self.asked = list(parted(answer[0])[1]) if answer else []

        def ends(call: Callable[[], Any]) -> None:
            if answer == [[OPEN]]:
                self.filled_in = written(call)
                return
            if answer == [[Name("unchanged")]]:
                before = self.visible()
                self._asked(call)
                equal(self.visible(), before, "the state after it")
                self.num_judged += 1
                return
            error = _error_of(answer)
            if error is not None and answer is not None:
                _, members = parted(answer[0][1:])
                given = {name: plain(self.resolve(value)) for name, value in members.items()}
                begun = {name: given.pop(name) for name, value in members.items() if _is_cut(value)}
                with raises(error, unchanged=self.visible, **given) as caught:
                    self._asked(call, error)
                for name, words in () if self.bench.is_remote else begun.items():
                    equal(narrowed(getattr(caught.value, name), words), words, f"its {name}")
                self.num_judged += 1
                return
            got = self._asked(call)
            if answer is None:
                if got is None and text.split()[0] in ("admit", "run"):
                    raise wrong("the answer", "blocks", None)
                return
            compare(
                self.manager,
                got,
                answer,
                of_blocks=text.split()[0] in ANSWERS_WITH_BLOCKS,
                resolve=self.resolve,
                equal=lambda found, wanted: equal(found, wanted, "the answer"),
            )
            self.num_judged += 1

        try:
            yield ends
        except LeftOut as left:
            if text.split()[0] not in QUESTIONS:
                raise
            self.skipped = left

    def visible(self) -> object:
        """Return what no refused call may change: the manager's state, or a plan's layers."""
        if self.manager is None:
            return self.planning.visible(), self.chunks.visible(), self.trees.visible()
        tier = self.beside.tier
        return self.manager.visible(), None if tier is None else tier.snapshot()

    def _asked(self, call: Callable[[], Any], wanted: type[BaseException] | None = None) -> Any:
        """Make a call; leave the line out if the subject declares that it lacks what it needs.

        Such as slots for drafts, which no argument names. `wanted`: the expected error. A plain
        line needs nothing that could be declared.
        """
        try:
            return call()
        except UnsupportedError as error:
            declared = self.bench.subject.capabilities.features
            if wanted is UnsupportedError or error.capability in declared or self.is_plain:
                raise
            raise LeftOut(error.capability) from None
        except RemoteError as error:
            travels(error)
            raise


def answer_of(text: str) -> list[list[Any]] | None:
    """Return the words behind `->`, cut at `;`; None if there are none."""
    reader = Reader(text)
    while reader.peek()[0] and reader.peek()[1] != "->":
        reader.place += 1
    if not reader.peek()[0]:
        return None
    reader.take("->")
    items = [reader.values()]
    while reader.peek()[1] == ";":
        reader.take(";")
        items.append(reader.values())
    return items


def _is_cut(value: Any) -> bool:
    return isinstance(value, str) and "…" in value


def _error_of(answer: Sequence[Sequence[Any]] | None) -> type[BaseException] | None:
    if not answer or not answer[0] or not isinstance(answer[0][0], Name):
        return None
    word = answer[0][0].word
    found = getattr(errors_of_the_contract, word, getattr(builtins, word, None))
    is_error = isinstance(found, type) and issubclass(found, BaseException)
    return found if is_error else None


def played(story: Story, bench: Bench) -> LeftOut | None:
    """Play an example, once for each row of its table.

    A line that needs what the subject lacks is left out, with those behind it up to the next
    `pool`. So are those behind a result that level safety leaves free, once it differs. Returns why
    a part was left out. Raises the violation of a wrong result, with `path:line` and the line in
    its notes; LeftOut if nothing could be judged.
    """
    if needs_ids(story) and not bench.exact:
        raise LeftOut("block ids")
    text = "\n".join(line.text for line in story.lines)
    if bench.watches and "check_invariants=false" in text:
        raise LeftOut("a smaller pool, to be watched")
    if "num_external_computed_tokens" in text:
        bench = replace(bench, guards=False)  # when a load arrives, the calls don't say
    reason, num_judged = None, 0
    for row, lines in story.played_lines():
        play, is_left_out = Play(bench), False
        for line in lines:
            if is_left_out and not starts_anew(line.text):
                continue
            try:
                play.line(line.text)
                is_left_out = False
            except NotationError as error:
                raise NotationError(f"{story.path}: {error.reason}", line.number) from error
            except LeftOut as left:  # what this manager lacks, the next one may have
                reason, is_left_out = left, True
            except Exception as found:
                if bench.watches and _is_free(found):
                    reason, is_left_out = LeftOut("answers that level safety leaves free"), True
                    continue
                found.add_note(place_of(story, line, row))
                raise
        num_judged += play.num_judged
        reason = reason or play.skipped
    if reason is not None and not num_judged:
        raise reason
    return reason


def _is_free(found: Exception) -> bool:
    """Check for a result of a line that level safety does not judge."""
    by_the_text = getattr(found, "invariant", "") in (ANSWERS, HOLDS)
    return by_the_text or isinstance(found, IndexError)  # of a list that has become another


def place_of(story: Story, line: Line, row: str) -> str:
    """Return a line's place and text, and the row of the table that it was played for."""
    return f"{story.path}:{line.number}: {line.text}" + (f"   ({row})" if row else "")


def state_before(story: Story, bench: Bench, place: str) -> str:
    """Play an example up to a place (`place_of`) and draw the state there; "" if that fails."""
    for row, lines in story.played_lines():
        play = Play(bench)
        try:
            for line in lines:
                if place_of(story, line, row) == place:
                    return play.drawn()
                play.line(line.text)
        except (LeftOut, KVSpecError):
            continue
    return ""
