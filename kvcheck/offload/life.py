"""An engine's life with a first tier, as moves that can be drawn, played again and shrunk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from kvcheck.offload.orders import letters
from kvcheck.offload.shadow import Shadow
from kvcheck.play import lives
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.offload import (
    Found,
    OffloadConfig,
    OffloadImplementation,
    TierTransfer,
    WholeOffloadManager,
)

TENANTS, PRIORITIES = ("x", "y", ""), (1, 0, 2)
"""Those of requests r0, r1, …, where there are quotas, or the order is that of priorities."""


@dataclass(frozen=True)
class Move:
    """One move of the engine, a method of `Player` by name; what does not apply is passed over."""

    word: str
    who: str = ""
    keys: tuple[bytes, ...] = ()
    number: int = 0
    is_good: bool = True


@dataclass(frozen=True)
class Life:
    """A tier of `num_chunks` places in front of `num_lower` others, and the moves.

    `options`: further members of `OffloadConfig`.
    """

    num_chunks: int
    num_lower: int
    moves: tuple[Move, ...]
    options: tuple[tuple[str, Any], ...] = ()


@dataclass
class Lower:
    """A lower tier: its keys, and those that it looks for until the next step."""

    keys: set[bytes] = field(default_factory=set)
    late: set[bytes] = field(default_factory=set)

    def lookup(self, key: bytes) -> Found:
        if key in self.late:
            return Found.RETRY
        return Found.HIT if key in self.keys else Found.MISS


@dataclass
class Prompt:
    """A request: the keys of its prompt, and its copies under way."""

    keys: tuple[bytes, ...]
    is_waiting: bool = True
    is_finished: bool = False
    loads: list[tuple[bytes, ...]] = field(default_factory=list)
    stores: list[tuple[bytes, ...]] = field(default_factory=list)


class Player(lives.Player):
    """Plays a life on a new manager."""

    shadow: Shadow

    def __init__(self, subject: OffloadImplementation, life: Life) -> None:
        super().__init__()
        self.life = life
        self.lower = tuple(Lower() for _ in range(life.num_lower))
        self.subject = subject
        self.config = OffloadConfig(life.num_chunks, self.lower, **dict(life.options))
        self.shadow = Shadow(self.config, subject.offload_capabilities)
        self.manager: WholeOffloadManager
        self.prompts: dict[str, Prompt] = {}
        self.moving: list[TierTransfer] = []
        self.asked: set[str] = set()
        self.answered: list[str] = []

    def play(self) -> None:
        """Make all moves, then let everything end. Raises BrokenRuleError."""
        self.begin()
        for move in self.life.moves:
            getattr(self, move.word)(move)
        self.calm()

    def begin(self) -> None:
        """Make the manager; options that the subject does not support together are left out."""
        try:
            made = self.subject.make_offload(self.config)
        except UnsupportedError:
            self.config = OffloadConfig(self.life.num_chunks, self.lower)
            self.shadow = Shadow(self.config, self.subject.offload_capabilities)
            made = self.subject.make_offload(self.config)
        self.manager = cast(WholeOffloadManager, made)  # of its CALLS those that it offers are made

    # One move.

    def arrive(self, move: Move) -> None:
        if move.who not in self.prompts:
            self.prompts[move.who] = Prompt(move.keys)
            number, given = int(move.who.removeprefix("r")), dict[str, Any]()
            if self.config.quotas:
                given["tenant"] = TENANTS[number % len(TENANTS)]
            if self.config.order == "priority":
                given["priority"] = PRIORITIES[number % len(PRIORITIES)]
            self.manager.new_request(move.who, **given)
            self.shadow.begins_request(move.who, **given)
            shown = "".join(f" {name}={value}" for name, value in given.items())
            self.note(f"new_request {move.who}{shown}")

    def ask(self, move: Move) -> None:
        """Look up a waiting request's keys up to the first miss; load them unless one is late.

        A request asks once in a step. Not good: the device has no room for it. It goes on waiting,
        and asks again.
        """
        prompt = self.prompts.get(move.who)
        if prompt is None or not prompt.is_waiting or move.who in self.asked:
            return
        self.asked.add(move.who)
        found: list[Found] = []
        for key in prompt.keys:
            below = [lower.lookup(key) for lower in self.lower]
            result = self.manager.lookup(key, move.who)
            self.note(f"lookup {_word(key)} {move.who}", result)
            self.shadow.looked_up(key, move.who, result, below)
            self.after()
            if result == Found.MISS:
                break
            found.append(result)
        if set(found) <= {Found.HIT}:
            prompt.is_waiting = not move.is_good
            self.answered.append(move.who)
        if not prompt.is_waiting:
            self.load(move.who, prompt, prompt.keys[: len(found)])

    def load(self, who: str, prompt: Prompt, keys: tuple[bytes, ...]) -> None:
        if not keys:
            return
        try:
            places = self.manager.prepare_load(keys, who)
        except InvalidArgumentError as error:
            raise lives.BrokenRuleError("KV-TIER-10", f"hits of one step: {error}") from None
        self.note(f"prepare_load {letters(*keys)} {who}", list(places))
        prompt.loads.append(keys)
        self.shadow.awaited.pop(who, None)
        self.shadow.loads(keys, places, who)
        self.after("KV-TIER-11")

    def loaded(self, move: Move) -> None:
        prompt = self.prompts.get(move.who)
        if prompt is not None and prompt.loads:
            keys = prompt.loads.pop(0)
            self.manager.complete_load(keys, move.who)
            self.note(f"complete_load {letters(*keys)} {move.who}")
            self.shadow.loaded(keys)
            self.after("KV-TIER-11")
            self.leave(move.who, prompt)

    def store(self, move: Move) -> None:
        prompt = self.prompts.get(move.who)
        if prompt is None or prompt.is_waiting or prompt.is_finished:
            return
        store = self.manager.prepare_store(move.keys, move.who)
        result = store and f"{letters(*store.keys)} {list(store.places)} -{letters(*store.evicted)}"
        self.note(f"prepare_store {letters(*move.keys)} {move.who}", result)
        self.shadow.stores(move.keys, store, move.who)
        if store is not None and store.keys:
            prompt.stores.append(store.keys)
        self.after(told=() if store is None else store.evicted)

    def stored(self, move: Move) -> None:
        prompt = self.prompts.get(move.who)
        if prompt is not None and prompt.stores:
            keys = prompt.stores.pop(0)
            self.manager.complete_store(keys, move.who, success=move.is_good)
            self.note(f"complete_store {letters(*keys)} {move.who} success={move.is_good}")
            self.shadow.stored(keys, success=move.is_good)
            self.after("KV-TIER-14", due=keys if move.is_good else ())
            self.leave(move.who, prompt)

    def touch(self, move: Move) -> None:
        if move.who in self.prompts and not self.prompts[move.who].is_finished:
            self.manager.touch(move.keys, move.who)
            self.note(f"touch {letters(*move.keys)} {move.who}")
            self.shadow.use(move.keys, move.who)
            self.after()

    def end_step(self, move: Move) -> None:
        transfers = self.manager.end_step()
        self.note("end_step", [str(_shown(each)) for each in transfers])
        for who in self.answered:
            self.shadow.awaited.pop(who, None)
        self.shadow.begins(transfers)
        self.moving += transfers
        self.answered.clear()
        self.asked.clear()
        for lower in self.lower:
            lower.late.clear()
        self.after(
            "KV-TIER-28" if self.config.ttl_steps else "KV-TIER-15",
            told=self.shadow.expired(),
        )

    def moved(self, move: Move) -> None:
        """End a transfer under way; one that fails loses its last keys, `number` of them or all."""
        if not self.moving:
            return
        transfer = self.moving.pop(move.number % len(self.moving))
        lower = self.lower[transfer.tier]
        failed = set(transfer.keys) - lower.keys if transfer.is_promotion else set[bytes]()
        if not move.is_good:
            failed |= set(transfer.keys[-1 - move.number % len(transfer.keys) :])
        kept = [key for key in transfer.keys if key not in failed]
        self.manager.finish_transfer(transfer.number, sorted(failed))
        self.note(f"finish_transfer {transfer.number} failed={letters(*sorted(failed))}")
        self.shadow.moved(transfer, failed)
        if not transfer.is_promotion:
            lower.keys |= set(kept)
        rule = "KV-TIER-21" if transfer.is_promotion else "KV-TIER-19"
        self.after(rule, due=kept if transfer.is_promotion else ())

    def gain(self, move: Move) -> None:
        """Let lower tiers have these keys: another engine stored them, or an earlier process."""
        for lower in self.lower:
            lower.keys |= set(move.keys)

    def lose(self, move: Move) -> None:
        for lower in self.lower:
            lower.keys -= set(move.keys)

    def late(self, move: Move) -> None:
        for lower in self.lower:
            lower.late |= set(move.keys) & lower.keys

    def finish(self, move: Move) -> None:
        """End a request, whatever it does; its copies under way end later."""
        prompt = self.prompts.get(move.who)
        if prompt is not None and not prompt.is_finished:
            prompt.is_finished, prompt.is_waiting = True, False
            self.manager.finish_request(move.who)
            self.note(f"finish_request {move.who}")
            self.shadow.awaited.pop(move.who, None)
            self.after()
            self.leave(move.who, prompt)

    def leave(self, who: str, prompt: Prompt) -> None:
        """Forget a finished request with its last copy."""
        if prompt.is_finished and not prompt.loads and not prompt.stores:
            del self.prompts[who]

    def reset(self, move: Move) -> None:
        is_idle = not any(prompt.loads or prompt.stores for prompt in self.prompts.values())
        if is_idle and not self.moving and not self.shadow.pending and not self.shadow.down:
            self.manager.reset()
            self.manager.take_events()
            self.note("reset")
            self.shadow.tried["KV-TIER-18"] += 1
            self.shadow.clear()
            self.after("KV-TIER-18")

    def flush(self, move: Move) -> None:
        self.manager.flush()
        self.note("flush")
        self.shadow.cleaned([key for key in self.shadow.used if key in self.shadow.dirty])
        self.after("KV-TIER-32")

    def forget(self, move: Move) -> None:
        """Evict the keys of which no copy is under way."""
        keys = [key for key in move.keys if not self.shadow.is_copied(key)]
        self.manager.forget(keys)
        self.note(f"forget {letters(*keys)}")
        told = [key for key in dict.fromkeys(keys) if key in self.shadow.ready]
        for key in told:
            self.shadow.leaves(key)
        self.after("KV-TIER-33", told=told)

    def wrong(self, move: Move) -> None:
        """Make an illegal call, if the subject says that it checks them: `number` says which."""
        prompt = self.prompts.get(move.who)
        if not self.shadow.capabilities.checks_calls or prompt is None or prompt.is_finished:
            return
        name, rule, call = self.wrong_call(move, prompt)
        if name:
            self.refused(rule, name, call)
            self.after()

    def wrong_call(self, move: Move, prompt: Prompt) -> tuple[str, str, Callable[[], object]]:
        """Return an illegal call as text, its rule, and the call; "" if there is none now."""
        manager, who = self.manager, move.who
        absent = [key for key in move.keys if key not in self.shadow.ready]
        unread = [key for key in move.keys if not any(key in keys for keys in prompt.loads)]
        unstored = [key for key in move.keys if not any(key in keys for keys in prompt.stores)]
        busy = list(filter(self.shadow.is_copied, (*self.shadow.ready, *self.shadow.pending)))
        can_forget = "forget" in self.shadow.capabilities.options
        store, load = manager.complete_store, manager.complete_load
        calls: tuple[tuple[object, str, str, Callable[[], object]], ...] = (
            (absent, "prepare_load", "KV-TIER-10", lambda: manager.prepare_load(absent, who)),
            (unread, "complete_load", "KV-TIER-11", lambda: load(unread, who)),
            (unstored, "complete_store", "KV-TIER-14", lambda: store(unstored, who)),
            (bool(busy), "reset", "KV-TIER-18", manager.reset),
            (True, "finish_transfer", "KV-TIER-21", lambda: manager.finish_transfer(10**6)),
            (True, "new_request", "KV-TIER-24", lambda: manager.new_request(who)),
            (busy, "forget", "KV-TIER-33", lambda: manager.forget(busy)),
        )[: 7 if can_forget else 6]
        is_there, name, rule, call = calls[move.number % len(calls)]
        keys = f" {letters(*is_there)}" if isinstance(is_there, list) else ""
        return (f"{name}{keys} {who}" if is_there else "", rule, call)

    def after(
        self, rule: str = "KV-TIER-15", *, told: Sequence[bytes] = (), due: Sequence[bytes] = ()
    ) -> None:
        """Judge what the manager says of itself after a call that `rule` is about."""
        events = self.manager.take_events()
        self.shadow.removed(events, told=told, rule=rule)
        self.shadow.counted(self.manager, rule)
        self.shadow.told(events, due)

    # The end: everything ends, and whoever waits is answered.

    def calm(self) -> None:
        """End all copies with success, and ask again step by step (KV-TIER-22, KV-TIER-23)."""
        self.end_step(Move("end_step"))
        keys = {key for prompt in self.prompts.values() for key in prompt.keys}
        for _ in range(2 * len(keys) + 4):
            for who in [who for who, prompt in self.prompts.items() if prompt.is_waiting]:
                self.ask(Move("ask", who))
            for who, prompt in list(self.prompts.items()):
                while prompt.loads or prompt.stores:
                    self.loaded(Move("loaded", who))
                    self.stored(Move("stored", who))
            self.end_step(Move("end_step"))
            while self.moving:
                self.moved(Move("moved"))
        waiting = [who for who, prompt in self.prompts.items() if prompt.is_waiting]
        alone = sum(not prompt.is_finished for prompt in self.prompts.values()) <= 1
        rule = "KV-TIER-22" if alone else "KV-TIER-23"
        passes = 2 * len(keys) + 4
        problem = f"{', '.join(waiting)}: no answer after {passes} look-ups of all keys"
        self.shadow.judge(rule, not waiting, problem)


def _word(key: bytes) -> str:
    return key.decode("latin-1")


def _shown(transfer: TierTransfer) -> str:
    way = "from" if transfer.is_promotion else "to"
    return f"{transfer.number}: {letters(*transfer.keys)} {way} tier {transfer.tier}"
