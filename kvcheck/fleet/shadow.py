"""What an index of engines must say, from the batches that it received; checks name their rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvcheck.fleet.engine import letter_of, start_of
from kvcheck.play import lives
from kvspec.events import AllBlocksCleared, EventHash
from kvspec.fleet import (
    Batch,
    EngineState,
    FleetKey,
    GroupPrefix,
    Heard,
    IndexCapabilities,
    MediumCleared,
    PrefixIndex,
)

Rules = tuple[str, ...]


def rules(*numbers: int) -> Rules:
    return tuple(f"KV-FLEET-{number}" for number in numbers)


SAID_BY: Mapping[Heard, Rules] = {
    Heard.KNOWN: rules(2, 5),
    Heard.RESTARTED: rules(5, 2),
    Heard.WAITING: rules(3, 1),
    Heard.FULL: rules(3, 1),
    Heard.APPLIED: rules(1, 3),
}
"""The rules that a result of `hear` follows from, the likeliest first."""


@dataclass
class Line:
    """The rules by which an engine has what it has.

    `reason`: those that the last call follows from, the likeliest first. `why`: the rule by which a
    key is there or not; that of others is `origin`. `start`: the engine's start that its keys began
    with, behind batch `since`. `batches`: those that arrived, by number.
    """

    origin: str = "KV-FLEET-4"
    since: int = -1
    start: int | None = None
    reason: Rules = ("KV-FLEET-4",)
    why: dict[FleetKey, str] = field(default_factory=dict)
    batches: dict[int, Batch] = field(default_factory=dict)

    def begin(self, origin: str, since: int, start: int | None = None) -> None:
        """Replace all keys by those after batch `since`, and what later ones say."""
        self.origin, self.since, self.start = origin, since, start
        self.why.clear()
        for number in sorted(self.batches):
            if number > since:
                self.explain(self.batches[number])

    def explain(self, batch: Batch, keys: Iterable[FleetKey] = ()) -> None:
        """Note the rules of a batch's events; `keys`: those that are there before it."""
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.origin = "KV-FLEET-4"
                self.why.clear()
            elif isinstance(event, MediumCleared):
                self.why.update(dict.fromkeys((*keys, *self.why), "KV-FLEET-12"))
            else:
                place = event.medium, event.group
                named = ((*place, block_hash) for block_hash in event.block_hashes)
                self.why.update(dict.fromkeys(named, "KV-FLEET-4"))

    def starts_until(self, number: int) -> set[int]:
        """Return the starts that the keys are of: several, if an engine restarts unseen."""
        later = [batch for n, batch in self.batches.items() if self.since < n <= number]
        first = set() if self.start is None else {self.start}
        return first | {start_of(batch.time_s) for batch in later}


class Shadow(lives.Shadow):
    """Every engine that was heard of, beside a `model`: an index that is right."""

    def __init__(self, capabilities: IndexCapabilities, model: PrefixIndex) -> None:
        super().__init__()
        self.capabilities, self.model = capabilities, model
        self.lines: dict[str, Line] = {}

    # What calls change, and their results.

    def hear(self, who: str, batch: Batch) -> tuple[Heard, Rules]:
        """Take in a batch; return what `hear` returns, and the rules that say so."""
        line, is_known = self.lines.setdefault(who, Line()), who in self.model.engines
        keys = self.model.state(who).keys if is_known else ()
        some_wait = is_known and self.model.missing(who) is not None
        heard = self.model.hear(who, batch)
        if heard == Heard.RESTARTED:
            line = self.lines[who] = Line("KV-FLEET-5")
        line.reason = SAID_BY[heard]
        if heard == Heard.APPLIED:
            line.reason = rules(1, 3, 5) if some_wait else rules(4)
        if heard not in (Heard.KNOWN, Heard.FULL):
            line.batches[batch.number] = batch
            line.explain(batch, keys)
            cleared = [event for event in batch.events if isinstance(event, MediumCleared)]
            self.tried["KV-FLEET-12"] += len(cleared)
        return heard, SAID_BY[heard]

    def restore(self, who: str, state: EngineState) -> bool:
        line = self.lines.setdefault(who, Line())
        is_newer = self.model.restore(who, state)
        if is_newer:
            start = start_of(state.time_s) if state.number >= 0 else None
            line.begin("KV-FLEET-6", state.number, start)
        line.reason = rules(6, 1)
        return is_newer

    def skip(self, who: str) -> bool:
        line, missing = self.lines[who], self.model.missing(who)
        if missing is not None:
            line.begin("KV-FLEET-7", missing[1] - 1)
        line.reason = rules(7)
        return self.model.skip(who)

    def forget(self, who: str) -> None:
        self.lines.pop(who, None)
        self.model.forget(who)

    def is_true(self, who: str, truth: Mapping[FleetKey, int]) -> None:
        """Judge the model: what follows from the batches is what the engine had."""
        state = self.model.state(who)
        is_so = all(number <= truth.get(key, 0) for key, number in state.keys.items())
        is_so &= not state.is_whole or state.keys == truth
        if not is_so:
            problem = f"{who} has {shown(truth)}: more follows from its batches"
            raise lives.BrokenRuleError(*rules(7), problem, *rules(4))

    # What the index says of itself.

    def saw_state(self, who: str, state: EngineState) -> None:
        line, wanted = self.lines[who], self.model.state(who)
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

    def saw_last(self, who: str, last: tuple[int, float]) -> None:
        wanted = self.model.last(who)
        problem = f"the last batch of {who} is {wanted}, not {last}"
        self.judge(self.lines[who].reason, last == wanted, problem)

    def saw_missing(self, who: str, missing: tuple[int, int] | None) -> None:
        wanted = self.model.missing(who)
        problem = f"{who}: {wanted} are missing, and {missing} were said to be"
        self.judge((*rules(3), *self.lines[who].reason), missing == wanted, problem)

    def saw_prefixes(
        self,
        hashes: Sequence[EventHash],
        place: tuple[str, int],
        found: Mapping[str, int],
        holes: Mapping[str, set[str]],
    ) -> None:
        """Judge prefixes of a text; `place`: medium and group, `holes`: if it may say less."""
        text = "".join(map(letter_of, hashes))
        medium, group = place
        wanted = self.model.prefixes(hashes, group=group, medium=medium)
        for who in sorted({*self.lines, *found}):
            line, length = self.lines.get(who, Line()), wanted.get(who, 0)
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
        wanted = self.model.hits(groups, medium=medium)
        problem = f"hits are {dict(wanted)}, and were said to be {dict(found)}"
        self.judge(rules(17), found == wanted, problem)


def key_text(key: FleetKey) -> str:
    """Return a key as events have it: `a`, or `a/1@CPU` of group 1 on the CPU."""
    medium, group, block_hash = key
    return letter_of(block_hash) + f"/{group}" * (group != 0) + f"@{medium}" * (medium != "GPU")


def shown(keys: Mapping[FleetKey, int]) -> str:
    """Return keys and their copies as text: `a b/1×2`."""
    words = [key_text(key) + f"×{n}" * (n != 1) for key, n in sorted(keys.items(), key=str)]
    return " ".join(words) or "nothing"
