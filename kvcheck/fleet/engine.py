"""An engine that publishes events, with what it has after each batch, and the events as text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType

from kvspec.events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored, Event, EventHash
from kvspec.fleet import Batch, EngineState, FleetKey, MediumCleared

TEXTS = ("abcdef", "abxyz", "mnop")
"""Prompts are beginnings of these: each letter is a block, and its hash covers those before it."""

PARENTS: Mapping[str, str] = MappingProxyType(
    {letter: text[place] for text in TEXTS for place, letter in enumerate(text[1:])}
)
"""The letter before each letter that begins no text."""

EVENT = re.compile(r"([+=-])(\w+)(?:/(-?\d+))?(?:@(\w+))?|\*(\w*)")
"""`+ab` stored, `=ab` reported, `-ab` removed; `/1` of group 1, `@CPU` on a medium; `*`, `*CPU`."""

TOKENS_PER_BLOCK = 4
START_S = 1000.0
"""Seconds from one start of an engine to the next: more than one lives."""


def events_of(
    text: str, hashed: Callable[[str], EventHash] = str.encode
) -> Iterator[Event | MediumCleared]:
    """Yield the events of a batch, `"+a +b/1 -a@CPU *"`. ValueError for a word that is none."""
    for word in text.split():
        match = EVENT.fullmatch(word)
        if match is None:
            raise ValueError(f"no event: {word}")
        sign, letters, group, medium, cleared = match.groups()
        if not sign:
            yield MediumCleared(cleared) if cleared else AllBlocksCleared()
            continue
        place = (medium or MEDIUM_GPU, int(group or 0))
        if sign == "-":
            yield BlockRemoved(tuple(map(hashed, letters)), *place)
        else:
            yield _stored(letters, place, hashed, is_report=sign == "=")


def _stored(
    letters: str, place: tuple[str, int], hashed: Callable[[str], EventHash], *, is_report: bool
) -> BlockStored:
    parent = PARENTS.get(letters[0])
    return BlockStored(
        block_hashes=tuple(map(hashed, letters)),
        parent_block_hash=None if parent is None else hashed(parent),
        token_ids=tuple(token for each in letters for token in tokens_of(each)),
        block_size_tokens=TOKENS_PER_BLOCK,
        lora_id=None,
        lora_name=None,
        medium=place[0],
        extra_keys=None,
        group=place[1],
        spec_kind="full_attention",
        sliding_window_tokens=None,
        is_report=is_report,
    )


def tokens_of(letter: str) -> Sequence[int]:
    """Return the tokens of a block: other ones for each letter."""
    return range(TOKENS_PER_BLOCK * ord(letter), TOKENS_PER_BLOCK * (ord(letter) + 1))


def letter_of(block_hash: EventHash) -> str:
    return chr(block_hash) if isinstance(block_hash, int) else block_hash.decode()


def start_of(time_s: float) -> int:
    """Return which of an engine's starts a batch is of, from its time."""
    return int(time_s // START_S)


class Engine:
    """An engine that stores and evicts; `truth[n]`: what it has after batch n of this start.

    `is_set`: it reports only the removal of the last copy (KV-POL-3). `old`: batches of earlier
    starts that may still be under way. `texts`: the events of each batch, by its number and time.
    `holes`: blocks of this start that were stored without the one before, or removed before those
    behind them.
    """

    def __init__(self, *, is_set: bool, hashed: Callable[[str], EventHash] = str.encode) -> None:
        self.is_set, self.hashed = is_set, hashed
        self.time_s = 0.0
        self.old: list[Batch] = []
        self.batches: list[Batch] = []
        self.texts: dict[tuple[int, float], str] = {}
        self.truth: list[dict[FleetKey, int]] = []
        self.keys: Counter[FleetKey] = Counter()
        self.holes: set[str] = set()

    def restart(self) -> None:
        """Begin anew, empty, with batch number 0 next."""
        self.old += self.batches[-2:]
        self.time_s = START_S * (start_of(self.time_s) + 1)
        self.batches, self.truth = [], []
        self.keys.clear()
        self.holes.clear()

    def step(self, text: str, later_s: float) -> Batch:
        """Make a batch of those events of the text that are possible now."""
        words = [word for each in text.split() for word in self._possible(each)]
        self.time_s += later_s
        events = tuple(events_of(" ".join(words), self.hashed))
        batch = Batch(len(self.batches), self.time_s, events)
        self.batches.append(batch)
        self.texts[batch.number, batch.time_s] = " ".join(words)
        self.truth.append(dict.fromkeys(self.keys, 1) if self.is_set else dict(self.keys))
        return batch

    def state(self, number: int) -> EngineState:
        """Return what it has after a batch of this start, or before the first: -1."""
        if number < 0:
            return EngineState(-1, float("-inf"), {})
        return EngineState(number, self.batches[number].time_s, self.truth[number])

    def _possible(self, word: str) -> Iterator[str]:
        """Apply an event, and yield it with those of its hashes that it can be about."""
        match = EVENT.fullmatch(word)
        if match is None:  # of a type that nobody knows
            return
        sign, letters, group, medium, cleared = match.groups()
        if not sign:
            if not cleared:
                self.holes.clear()
            left = {k: n for k, n in self.keys.items() if cleared and k[0] != cleared}
            self.keys = Counter(left)
            yield word
            return
        kept = ""
        for letter in letters:
            key = (medium or MEDIUM_GPU, int(group or 0), self.hashed(letter))
            if sign == "+":
                self.keys[key] += 1
            if not self.keys[key]:
                continue
            if sign == "-":
                self.keys[key] -= 1
                if self.keys[key] and self.is_set:
                    continue
            kept += letter
            there = {letter_of(each[2]) for each, number in self.keys.items() if number}
            if sign == "-" and any(PARENTS.get(each) == letter for each in there):
                self.holes.add(letter)
            if sign == "+" and letter in PARENTS and PARENTS[letter] not in there:
                self.holes.add(letter)
        self.keys += Counter()  # drops what is 0
        if kept:
            yield word.replace(letters, kept, 1)
