"""What an index of engines must say, from the batches that it received; checks name their rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvcheck.fleet.engine import letter_of, start_of
from kvcheck.play.lives import BrokenRuleError
from kvspec.events import AllBlocksCleared, BlockRemoved, BlockStored, EventHash
from kvspec.fleet import (
    Batch,
    EngineState,
    FleetKey,
    GroupPrefix,
    Heard,
    IndexCapabilities,
    MediumCleared,
)

Rules = tuple[str, ...]


def rules(*numbers: int) -> Rules:
    return tuple(f"KV-FLEET-{number}" for number in numbers)


@dataclass
class Line:
    """One engine, as the batches received show it.

    `reason`: the rules that the last call follows from, the likeliest first. `why`: the rule by
    which a key is there or not; that of others is `origin`. `starts`: those of the engine that its
    keys are of; several, if an engine restarts and no batch says so.
    """

    number: int = -1
    time_s: float = float("-inf")
    is_whole: bool = True
    keys: Counter[FleetKey] = field(default_factory=Counter)
    waiting: dict[int, Batch] = field(default_factory=dict)
    reason: Rules = ("KV-FLEET-4",)
    why: dict[FleetKey, str] = field(default_factory=dict)
    origin: str = "KV-FLEET-4"
    starts: set[int] = field(default_factory=set)

    def begin(self, origin: str, keys: Mapping[FleetKey, int] | None = None) -> None:
        """Replace all keys."""
        self.keys, self.origin = Counter(keys or {}), origin
        self.why.clear()
        self.starts.clear()

    @property
    def state(self) -> EngineState:
        return EngineState(self.number, self.time_s, dict(self.keys), self.is_whole)


class Shadow:
    """Every engine that was heard of. `tried`: how often each rule was put to the test."""

    def __init__(self, capabilities: IndexCapabilities, *, is_set: bool, max_waiting: int) -> None:
        self.capabilities, self.is_set, self.max_waiting = capabilities, is_set, max_waiting
        self.lines: dict[str, Line] = {}
        self.tried: Counter[str] = Counter()

    def judge(self, named: Rules, holds: bool, problem: str) -> None:
        """Count a test of the first rule named; raise unless it holds."""
        self.tried[named[0]] += 1
        if not holds:
            raise BrokenRuleError(named[0], problem, *named[1:])

    # What calls change, and their results.

    def hear(self, who: str, batch: Batch) -> tuple[Heard, Rules]:
        """Take in a batch; return what `hear` returns, and the rules that say so."""
        line = self.lines.setdefault(who, Line())
        if batch.number <= line.number:
            if batch.time_s <= line.time_s:
                line.reason = rules(2, 5)
                return Heard.KNOWN, line.reason
            line = self.lines[who] = Line(origin="KV-FLEET-5")
            line.waiting[batch.number] = batch
            self._go_on(line)
            line.reason = rules(5, 2)
            return Heard.RESTARTED, line.reason
        if batch.time_s < line.time_s or batch.number in line.waiting:
            line.reason = rules(2, 5)
            return Heard.KNOWN, line.reason
        if batch.number == line.number + 1:
            line.waiting[batch.number] = batch
            self._go_on(line)
            return Heard.APPLIED, rules(1, 3)
        line.reason = rules(3, 1)
        if len(line.waiting) >= self.max_waiting:
            return Heard.FULL, line.reason
        line.waiting[batch.number] = batch
        return Heard.WAITING, line.reason

    def restore(self, who: str, state: EngineState) -> bool:
        line = self.lines.setdefault(who, Line())
        is_newer = (state.time_s, state.number) >= (line.time_s, line.number)
        if is_newer:
            line.number, line.time_s, line.is_whole = state.number, state.time_s, state.is_whole
            line.begin("KV-FLEET-6", state.keys)
            if state.number >= 0:
                line.starts.add(start_of(state.time_s))
            self._go_on(line)
        line.reason = rules(6, 1)
        return is_newer

    def skip(self, who: str) -> bool:
        line = self.lines[who]
        has_waiting = bool(line.waiting)
        if has_waiting:
            line.number, line.is_whole = min(line.waiting) - 1, False
            line.begin("KV-FLEET-7")
            self._go_on(line)
        line.reason = rules(7)
        return has_waiting

    def _go_on(self, line: Line) -> None:
        """Apply what waits and is due, and drop what was left over from before a restart."""
        num_applied, line.reason = 0, ()
        while True:
            kept = {n: each for n, each in line.waiting.items() if n > line.number}
            line.waiting = {n: each for n, each in kept.items() if each.time_s >= line.time_s}
            if len(line.waiting) < len(kept):
                line.reason = rules(5)
            batch = line.waiting.pop(line.number + 1, None)
            if batch is None:
                break
            self._fold(line, batch)
            line.number, line.time_s = batch.number, batch.time_s
            line.starts.add(start_of(batch.time_s))
            num_applied += 1
        line.reason += rules(1, 3) if num_applied > 1 else rules(4)

    def _fold(self, line: Line, batch: Batch) -> None:
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                line.begin("KV-FLEET-4")
                line.starts.add(start_of(batch.time_s))
                line.is_whole = True
            elif isinstance(event, MediumCleared):
                self.tried["KV-FLEET-12"] += 1
                line.why.update(dict.fromkeys(line.keys, "KV-FLEET-12"))
                line.keys = Counter({k: n for k, n in line.keys.items() if k[0] != event.medium})
            else:
                for block_hash in event.block_hashes:
                    self._count(line, event, (event.medium, event.group, block_hash))
        line.keys += Counter()  # drops what is 0

    def _count(self, line: Line, event: BlockStored | BlockRemoved, key: FleetKey) -> None:
        has = line.keys[key]
        line.why[key] = "KV-FLEET-4"
        if isinstance(event, BlockRemoved):
            line.keys[key] = max(0, has - 1)
        elif event.is_report or self.is_set:
            line.keys[key] = max(1, has)
        else:
            line.keys[key] = has + 1

    def is_true(self, who: str, truth: Mapping[FleetKey, int]) -> None:
        """Judge the rules, not the index: what follows from the batches is what the engine had."""
        line = self.lines[who]
        is_so = all(number <= truth.get(key, 0) for key, number in line.keys.items())
        is_so &= not line.is_whole or line.keys == truth
        if not is_so:
            problem = f"{who} has {shown(truth)}: more follows from its batches"
            raise BrokenRuleError(*rules(7), problem, *rules(4))

    # What the index says of itself.

    def saw_state(self, who: str, state: EngineState) -> None:
        line, wanted = self.lines[who], self.lines[who].state
        at, said = (wanted.number, wanted.time_s), (state.number, state.time_s)
        problem = f"{who}: the last batch and its time are {at}, and were said to be {said}"
        self.judge(line.reason, at == said, problem)
        problem = f"{who} has {shown(wanted.keys)}, and was said to have {shown(state.keys)}"
        wrong = {key for key, _ in {*wanted.keys.items()} ^ {*state.keys.items()}}
        named = tuple(line.why.get(key, line.origin) for key in sorted(wrong, key=str))
        is_same = line.reason[0] in rules(2, 3, 9)  # nothing changed
        named = (*line.reason, *named) if is_same else (*named, *line.reason)
        self.judge(named, not wrong, problem)
        problem = f"{who}: is_whole is {wanted.is_whole}, and was said to be {state.is_whole}"
        self.judge((*rules(7), *line.reason), state.is_whole == wanted.is_whole, problem)

    def saw_missing(self, who: str, missing: tuple[int, int] | None) -> None:
        line = self.lines[who]
        wanted = (line.number + 1, min(line.waiting)) if line.waiting else None
        problem = f"{who}: {wanted} are missing, and {missing} were said to be"
        self.judge((*rules(3), *line.reason), missing == wanted, problem)

    def saw_prefixes(
        self,
        hashes: Sequence[EventHash],
        place: tuple[str, int],
        found: Mapping[str, int],
        holes: Mapping[str, set[str]],
    ) -> None:
        """Judge prefixes of a text; `place`: medium and group, `holes`: if it may say less."""
        text = "".join(map(letter_of, hashes))
        for who in sorted({*self.lines, *found}):
            line = self.lines.get(who, Line())
            length = 0
            while length < len(hashes) and line.keys[*place, hashes[length]]:
                length += 1
            said = found.get(who, 0)
            may_be_less = bool(holes.get(who, set()) & set(text))
            is_so = said <= length if may_be_less else said == length
            most = "at most " if may_be_less else ""
            problem = f"{who} has {most}{length} blocks of {text}, and {said} were said"
            end = hashes[min(said, length, len(hashes) - 1)]
            named: Rules = (line.why.get((*place, end), line.origin),)
            seen = "state" in self.capabilities.calls
            named = (*rules(8), *named) if seen else (*named, *line.reason, *rules(8))
            self.judge(named, is_so, problem)
            is_so = (who in found) == bool(said)
            self.judge(rules(8), is_so, f"{who} has none of {text}, and was not left out")

    def saw_hits(
        self, groups: Sequence[GroupPrefix], medium: str, found: Mapping[str, int]
    ) -> None:
        wanted = {who: self._hit(line, groups, medium) for who, line in self.lines.items()}
        wanted = {who: length for who, length in wanted.items() if length}
        problem = f"hits are {wanted}, and were said to be {dict(found)}"
        self.judge(rules(17), dict(found) == wanted, problem)

    def _hit(self, line: Line, groups: Sequence[GroupPrefix], medium: str) -> int:
        """Return the longest length at which every group has what it needs."""
        most = min(len(one.hashes) * one.block_size_tokens for one in groups)
        lengths = range(most, 0, -1)
        return next((n for n in lengths if all(_able(line, one, medium, n) for one in groups)), 0)


def _able(line: Line, one: GroupPrefix, medium: str, length: int) -> bool:
    end, rest = divmod(length, one.block_size_tokens)
    needed = list(one.hashes[:end])
    if one.num_last_blocks is not None:
        needed = needed[max(0, end - one.num_last_blocks) :]
    return not rest and all(line.keys[medium, one.group, each] for each in needed)


def key_text(key: FleetKey) -> str:
    """Return a key as events have it: `a`, or `a/1@CPU` of group 1 on the CPU."""
    medium, group, block_hash = key
    return letter_of(block_hash) + f"/{group}" * (group != 0) + f"@{medium}" * (medium != "GPU")


def shown(keys: Mapping[FleetKey, int]) -> str:
    """Return keys and their copies as text: `a b/1×2`."""
    words = [key_text(key) + f"×{n}" * (n != 1) for key, n in sorted(keys.items(), key=str)]
    return " ".join(words) or "nothing"
