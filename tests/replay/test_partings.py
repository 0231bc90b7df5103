"""Where prompts part, and other templates: equal to comparing every pair, symbol by symbol."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcheck.cli import main
from kvcheck.tools.replay import partings as subject
from kvcheck.tools.replay.partings import partings, prompts_of
from kvcheck.tools.replay.trace import Spelling, TraceRecord
from tests.replay import page

Symbols = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """Prompts in symbols, `per_token` to a token, or one for `run` tokens, the last run cut."""

    prompts: tuple[Symbols, ...]
    block: int
    per_token: int = 1
    run: int = 1
    cut: int = 0

    def tokens(self, num_symbols: int) -> int:
        return num_symbols // self.per_token * self.run

    def length(self, prompt: Symbols) -> int:
        return -(-len(prompt) // self.per_token) * self.run - self.cut

    def found(self, *, num_blocks: int | None = None) -> subject.Partings:
        records = []
        for line, prompt in enumerate(self.prompts, 1):
            ids = prompt if self.per_token == 1 else tuple(array("I", bytes(prompt)))
            records.append(TraceRecord(line, 0, self.length(prompt), 1, ids, self.run))
        spelling = Spelling(lambda data: data.decode("latin-1"), 1) if self.per_token > 1 else None
        return partings(prompts_of(records, lambda: spelling), self.block, num_blocks, 99)

    def computed(self, prompts: Sequence[Symbols]) -> int:
        """Count the tokens that no earlier prompt has in the same whole blocks before."""
        size, total = self.block // self.run * self.per_token, 0
        for number, prompt in enumerate(prompts):
            own, hit = self.length(prompt), 0
            for other in prompts[:number]:
                whole = min(own - 1, self.length(other)) // self.block
                hit = max(hit, min(whole, alike(prompt, other) // size) * self.block)
            total += own - hit
        return total


def alike(one: Symbols, other: Symbols) -> int:
    shorter = min(len(one), len(other))
    return next((n for n in range(shorter) if one[n] != other[n]), shorter)


def parts_at(case: Case, number: int) -> int | None:
    """Return the most that a prompt shares with an earlier one, if it differs from one there."""
    prompt, earlier = case.prompts[number], case.prompts[:number]
    most = max((alike(prompt, other) for other in earlier), default=0)
    parts = any(alike(prompt, o) == most < min(len(prompt), len(o)) for o in earlier)
    return most if parts else None


def expected(case: Case) -> list[tuple[int | None, ...]]:
    places: dict[Symbols, list[tuple[int, Symbols]]] = {}
    size = case.block // case.run * case.per_token
    for number, prompt in enumerate(case.prompts):
        if (at := parts_at(case, number)) is not None:
            places.setdefault(prompt[: at // size * size], []).append((at, prompt))
    found = []
    for members in places.values():
        at, first = min(members, key=lambda member: member[0])
        passing = [p for p in case.prompts if p[:at] == first[:at] and len(p) > at]
        lost = sum(case.tokens(each % size) for each, _ in members)
        filled = (0,) * (-at % size)
        window = common(passing, at, size)
        changes = [lambda p: p[:at] + filled + p[at:], lambda p: last(p, at, window, case.run)]  # noqa: B023
        row = [case.tokens(at), len(members), len(passing), lost]
        found.append((*row, *(saved(case, passing, change) for change in changes)))
    return sorted(found, key=str)


def saved(
    case: Case, passing: Sequence[Symbols], change: Callable[[Symbols], Symbols]
) -> int | None:
    changed = [change(prompt) if prompt in passing else prompt for prompt in case.prompts]
    if tuple(changed) == case.prompts:
        return None
    return case.computed(case.prompts) - case.computed(changed)


def common(passing: Sequence[Symbols], at: int, size: int) -> Symbols | None:
    """Return the block that most have behind a place, of equal ones the first."""
    rows = [[p[n : n + size] for n in range(at + 1, len(p) - size + 1)] for p in passing]
    windows = [window for row in rows for window in row]
    most = max((sum(w in row for row in rows) for w in windows), default=0)
    return next((w for w in windows if sum(w in row for row in rows) == most > 1), None)


def last(prompt: Symbols, at: int, window: Symbols | None, run: int) -> Symbols:
    end = len(prompt) - (run > 1)
    for n in range(at + 1, end):
        if window is not None and prompt[n : n + len(window)] == window:
            return prompt[:at] + prompt[n:end] + prompt[at:n] + prompt[end:]
    return prompt


@st.composite
def cases(draw: st.DrawFn) -> Case:
    per_token, run = draw(st.sampled_from([(1, 1), (4, 1), (1, 2)]))
    block = draw(st.sampled_from([1, 2, 3] if run == 1 else [2, 4, 6]))
    piece = st.lists(st.integers(1, 2), max_size=5)
    pieces = draw(st.lists(piece, min_size=3, max_size=3))
    prompts = []
    for _ in range(draw(st.integers(1, 7))):
        prompt = [1, *(n for p in draw(st.permutations([*pieces, draw(piece)])) for n in p)]
        prompts.append((*prompt, *[3] * (-len(prompt) % per_token)))
    return Case(tuple(prompts), block, per_token, run, draw(st.integers(0, run - 1)))


@given(cases())
@settings(max_examples=400)
def test_places_and_templates_are_those_of_every_pair(case: Case) -> None:
    found = case.found()
    rows = [
        (p.at_tokens, p.requests, p.passing, p.in_block_tokens, p.filled_tokens, p.last_tokens)
        for p in found.partings
    ]
    assert sorted(rows, key=str) == expected(case)
    assert [row[1] for row in rows] == sorted((row[1] for row in rows), reverse=True)
    assert found.tokens - found.hit_tokens == case.computed(case.prompts)
    parting = [n for n in range(len(case.prompts)) if parts_at(case, n) is not None]
    assert found.parting == len(parting)
    assert found.continuing == len(case.prompts) - 1 - len(parting)


SHARED, FILLED, LAST = subject.shared_bytes, subject.filled, subject.put_last
MISTAKES = {
    "shared_bytes": lambda one, other, width: max(0, SHARED(one, other, width) - width),
    "filled": lambda prompt, at, *rest: FILLED(prompt, at, *rest)[:-1] if at else prompt,
    "put_last": lambda prompt, at, *rest: LAST(prompt, at + rest[-1].width, *rest),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_place_that_is_off_by_one_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, name, MISTAKES[name])
    with pytest.raises((AssertionError, ExceptionGroup)):
        test_places_and_templates_are_those_of_every_pair()


def test_the_page_shows_what_the_command_prints() -> None:
    assert page.text() == page.PAGE.read_text(encoding="utf-8")


def test_a_tokenizer_gives_positions_and_texts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tokenizers")
    words = {"type": "WordLevel", "vocab": {"?": 0, "be": 1, "brief": 2, "a": 3}, "unk_token": "?"}
    (tmp_path / "t.json").write_text(
        json.dumps({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": words})
    )
    chats = [[("system", "be brief"), ("user", f"{word} brief be brief")] for word in ("a", "be")]
    lines = [{"messages": [{"role": r, "content": c} for r, c in chat]} for chat in chats]
    trace = tmp_path / "chats.jsonl"
    trace.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    command = ["prompts", str(trace), "--block-size", "2", "--tokenizer", str(tmp_path / "t.json")]
    assert main([*command, "--json", "-"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["partings"]
    assert (found["at_tokens"], found["in_block_tokens"]) == (4, 0)
    assert found["before"] == "<system>be brief<user>"
    assert found["ways"] == [f"{word} brief be brief<assistant>" for word in ("a", "be")]
    assert found["last_tokens"] == 4
