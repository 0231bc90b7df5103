"""Words of an example about a first tier of chunks: `chunks 3`, `chunk lookup r a`, `below [a]`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kvcheck.offload.life import Lower
from kvcheck.play.left_out import LeftOut
from kvcheck.rules.bench import Bench
from kvcheck.rules.judging import NotationError
from kvcheck.rules.notation.setting import ROOMY
from kvcheck.rules.notation.values import Name
from kvcheck.rules.notation.words import call_named
from kvspec.offload import (
    CALLS,
    ORDERS,
    OffloadCapabilities,
    OffloadConfig,
    OffloadEvent,
    OffloadImplementation,
    OffloadManager,
    PreparedStore,
    TierTransfer,
)


class Chunks:
    """A first tier and the tiers below it. A key is a letter; a request begins when it is named."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.manager: OffloadManager | None = None
        self.lower: tuple[Lower, ...] = ()
        self.begun: set[str] = set()
        self.options = frozenset[str]()

    def do_chunks(self, num_chunks: Any = ROOMY, *, lower: int = 0, **members: Any) -> None:
        """Make a first tier of so many places, in front of `lower` others."""
        subject: Any = self.bench.subject
        if not isinstance(subject, OffloadImplementation):
            raise LeftOut("an offload manager")
        offered = subject.offload_capabilities
        self.options = offered.options
        given: dict[str, Any] = {name: _word(value) for name, value in members.items()}
        order = given.get("order", "lru")
        lacks = [name for name in given if name != "order" and name not in offered.options]
        lacks += ["lower tiers"] if lower and not offered.has_lower_tiers else []
        lacks += [order] if order in ORDERS[1:] and order not in offered.orders else []
        if lacks:
            raise LeftOut(", ".join(lacks))
        if "quotas" in given:
            given["quotas"] = {name.word: number for name, number in given["quotas"]}
        self.lower, self.begun = tuple(Lower() for _ in range(lower)), set()
        self.manager = subject.make_offload(OffloadConfig(num_chunks, self.lower, **given))

    def do_below(self, keys: Sequence[Name], *, late: Sequence[Name] = (), tier: int = 0) -> None:
        """Let a lower tier have exactly these keys; of `late` ones it does not know yet."""
        self.lower[tier].keys = set(map(_key, keys))
        self.lower[tier].late = set(map(_key, late))

    def do_chunk(self, call: Name, *values: Any, **members: Any) -> Any:
        """Make a call of the first tier by its own name, the request first."""
        if self.manager is None:
            raise NotationError("no first tier: it is made by `chunks`")
        if call.word in CALLS and call.word not in self.options:
            raise LeftOut(call.word)
        if call.word in ("end_step", "take_events", "counts", "reset", "finish_transfer", *CALLS):
            given = {name: _keys(value) for name, value in members.items()}
            values = tuple(_keys(value) for value in values)
            return _shown(call_named(self.manager, call.word, *values, **given))
        if not values or not isinstance(values[0], Name):
            raise NotationError(f"{call.word}: a request comes first")
        request, *keys = values
        members = {name: _word(value) for name, value in members.items()}
        if request.word not in self.begun and call.word != "new_request":
            self.manager.new_request(request.word)
        self.begun.add(request.word)
        found = [_keys(each) if isinstance(each, list) else _key(each) for each in keys]
        return _shown(call_named(self.manager, call.word, *found, request.word, **members))

    def visible(self) -> object:
        """Return what a refused call may not change."""
        return None if self.manager is None else self.manager.counts()


def undecided(lines: Sequence[str], offered: OffloadCapabilities) -> str:
    """Return a choice that an example about chunks depends on, and that is not offered; or ""."""
    text = "\n".join(line for line in lines if line.startswith(("chunk ", "chunks ")))
    if not offered.checks_calls and "InvalidArgumentError" in text:
        return "refusals of illegal calls"
    if not offered.has_counts and "chunk counts" in text:
        return "counts"
    if not offered.has_lowest_places and PLACES.search(text):
        return "the lowest place first"
    is_usual = "order=" not in text
    return "lru" if is_usual and "lru" not in offered.orders and "evicted=[" in text else ""


PLACES = re.compile(r"places=\[\d|^chunk (?:prepare_load|end_step)\b.*-> \[\S", re.MULTILINE)


def _word(value: Any) -> Any:
    return value.word if isinstance(value, Name) else value


def _key(value: Any) -> Any:
    return value.word.encode() if isinstance(value, Name) else value


def _keys(value: Any) -> Any:
    return list(map(_key, value)) if isinstance(value, list) else value


def _shown(result: Any) -> Any:
    """Return a result with keys as letters; a transfer as [number, way, tier, keys, places]."""
    if isinstance(result, PreparedStore):
        return PreparedStore(_letters(result.keys), result.places, _letters(result.evicted))
    if isinstance(result, TierTransfer):
        way = "from" if result.is_promotion else "to"
        return [result.number, way, result.tier, _letters(result.keys), list(result.places)]
    if isinstance(result, OffloadEvent):
        return ["removed" if result.is_removed else "stored", *_letters(result.keys)]
    return [_shown(each) for each in result] if isinstance(result, tuple) else result


def _letters(keys: Sequence[bytes]) -> Any:
    return [key.decode() for key in keys]
