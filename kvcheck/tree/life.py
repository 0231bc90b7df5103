"""An engine's life with a tree, as moves that can be drawn, played again and shrunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import cast

from kvcheck.play import lives
from kvcheck.tree.device import Running
from kvcheck.tree.illegal import illegal_calls
from kvcheck.tree.mirror import anywhere, on_device
from kvcheck.tree.seen import Before, needed_slots, room_of, shown
from kvcheck.tree.shadow import Shadow
from kvcheck.tree.structure import Stored
from kvspec.tree import (
    MirroredTree,
    Part,
    SessionTree,
    TreeCapabilities,
    TreeConfig,
    TreeImplementation,
    TreeNode,
)


@dataclass(frozen=True)
class Move:
    """One move of the engine, by its word in `MOVES`; what does not apply is passed over."""

    word: str
    who: str = ""
    tokens: tuple[int, ...] = ()
    numbers: tuple[int, ...] = (1, 0, 0)
    salt: str = ""
    session: str = ""


@dataclass(frozen=True)
class Life:
    config: TreeConfig
    moves: tuple[Move, ...]


class Player(lives.Player):
    """Plays a life on a new tree."""

    shadow: Shadow

    def __init__(self, subject: TreeImplementation, life: Life) -> None:
        super().__init__()
        self.life, self.config = life, life.config
        self.can: TreeCapabilities = subject.tree_capabilities
        self.tree = subject.make_tree(life.config)
        self.shadow = Shadow(life.config, self.can)
        self.requests = self.shadow.requests
        self.before = Before()

    def play(self) -> None:
        """Make all moves, then let everything end. Raises BrokenRuleError."""
        self.before = self.seen()
        for move in self.life.moves:
            MOVES[move.word](self, move)
        self.calm()

    def seen(self) -> Before:
        counts = {part: self.tree.counts(part) for part in self.shadow.parts}
        nodes = self.tree.nodes() if self.can.has_nodes else ()
        return Before(counts, on_device(nodes) if self.config.num_host_slots else nodes, nodes)

    def after(self, rule: str, who: str = "") -> None:
        """Look at all that can be seen, and judge it after a call about `who` and `rule`."""
        shadow = self.shadow
        shadow.tried[rule] += self.can.has_rows  # else only what the accounts decide counts
        shadow.device.copy(self.tree.take_copies(), self.requests.values())
        for name, request in self.requests.items():
            if request.is_running and self.can.has_rows:
                row = self.tree.row(name)
                if name != who:
                    shadow.unchanged(name, request.row, row)
                request.row = row
        if self.config.num_host_slots:
            shadow.mirror.begin(cast(MirroredTree, self.tree).take_transfers())
        now = self.seen()
        if self.config.num_host_slots:
            shadow.mirror.fit(now.mirrored, rule)
            if rule not in ("KV-TREE-7", "KV-TREE-8", "KV-TREE-32"):
                shadow.mirror.evicted(self.before.mirrored, now.mirrored)
        if self.can.has_nodes:
            shadow.nodes_fit(now.nodes, rule)
            shadow.changed(self.before.nodes, now.nodes, rule)
        if self.can.has_rows:
            shadow.rows_fit(now.nodes, rule)
        shadow.counts_fit(now.counts, now.nodes, rule)
        self.before = now

    # Moves of requests that wait.

    def arrive(self, move: Move) -> None:
        if move.who in self.requests:
            return
        self.requests[move.who] = Running(move.salt, list(move.tokens))
        self.tree.arrive(move.who, list(move.tokens), salt=move.salt)
        self.note(f"arrive {move.who} {list(move.tokens)}{move.salt and f' salt={move.salt}'}")
        if move.session:
            self.requests[move.who].session = move.session
            cast(SessionTree, self.tree).join(move.who, move.session)
            self.note(f"join {move.who} {move.session}")
        self.after("KV-TREE-20", move.who)

    def match(self, move: Move) -> None:
        """Look a request up, and pass it over."""
        request = self.waiting(move)
        if request is None:
            return
        before, num_tokens = self.before, self.tree.match(move.who)
        self.note(f"match {move.who}", num_tokens)
        self.shadow.matched(request, num_tokens, anywhere(before.mirrored))
        self.after("KV-TREE-20", move.who)
        self.shadow.took_nothing("KV-TREE-20", before.counts, self.before.counts)
        self.shadow.used(request, num_tokens)

    def admit(self, move: Move) -> None:
        request = self.waiting(move)
        if request is None:
            return
        before, number = self.before, move.numbers[0]
        num_cached = self.tree.admit(move.who, number)
        self.note(f"admit {move.who} {number}", "refused" if num_cached is None else num_cached)
        if num_cached is None:
            self.after("KV-TREE-21", move.who)
            self.shadow.took_nothing("KV-TREE-21", before.counts, self.before.counts)
            needed = needed_slots(self.config, 0, min(number, len(request.tokens)), is_new=True)
            has_room = all(number <= before.room(part) for part, number in needed.items())
            problem = f"{move.who} was refused, and needs {shown(needed)} of {room_of(before)}"
            is_so = not (has_room and self.can.admits_any_that_fit)
            self.shadow.judge("KV-TREE-22", is_so, problem)
            self.shadow.has_sure_ages &= self.can.admits_any_that_fit
            return
        request.is_running, request.has_run, request.num_computed = True, False, num_cached
        request.num_allocated = min(num_cached + number, len(request.tokens))
        if self.can.has_rows:
            request.row = self.tree.row(move.who)
            request.num_allocated = self.cut(request)
        self.shadow.matched(
            request, num_cached, self.hit(request, before, num_cached, number), is_admitted=True
        )
        self.shadow.admitted(move.who, num_cached)
        self.after("KV-TREE-16", move.who)
        self.shadow.used(request, num_cached, is_hit=True)

    def hit(
        self, request: Running, before: Before, num_cached: int, number: int
    ) -> tuple[TreeNode, ...]:
        """Return the nodes that a hit is of: without room to load, those on the device alone."""
        text = request.tokens[:-1]
        nodes = before.nodes, anywhere(before.mirrored)
        device, whole = (len(Stored(self.config, n).slots_of(request.salt, text)) for n in nodes)
        if not self.config.num_host_slots or device == whole:
            return before.nodes
        end = min(whole + number, len(request.tokens))
        needed = -(-end // self.config.page_size_tokens) * self.config.page_size_tokens - device
        is_so = num_cached == whole or before.counts[Part.FULL].num_free < needed
        problem = f"{num_cached} tokens are a hit, {whole} with the host's, and {needed} fit"
        self.shadow.judge("KV-TREE-40", is_so, problem, "KV-TREE-16", "KV-TREE-39")
        return before.nodes if num_cached <= device else nodes[1]

    def cut(self, request: Running) -> int:
        """Return where an admitted part of a prompt ends: an engine may take a shorter one."""
        length = len(request.row.slots)
        return length if request.num_computed < length else request.num_allocated

    def serve(self, move: Move) -> None:
        """Let a request live from its arrival to its end, if there is room."""
        if move.who not in self.requests:
            self.arrive(move)
            self.admit(replace(move, numbers=(len(move.tokens), 0, 0)))
            self.finish(move)
            self.abort(move)

    # Moves of requests that run.

    def extend(self, move: Move) -> None:
        """Allocate the next tokens of a prompt, or one more that was generated."""
        request = self.running(move)
        if request is None:
            return
        length = request.num_computed
        if request.num_allocated != length:
            return  # an engine does not allocate twice in a step
        left = len(request.tokens) - length
        number = min(max(1, move.numbers[0]), left)
        if not left:
            token, number = move.tokens[0], 1
            request.tokens.append(token)
            self.tree.append(move.who, [token])
            self.note(f"append {move.who} [{token}]")
        before, needed = self.before, needed_slots(self.config, length, length + number)
        has_room = self.tree.extend(move.who, number)
        self.note(f"extend {move.who} {number}", has_room)
        if has_room:
            request.has_run, request.num_allocated = False, length + number
        self.after("KV-TREE-36" if not has_room else "KV-TREE-31", move.who)
        self.shadow.extended(move.who)
        is_so = has_room or any(number > before.room(part) for part, number in needed.items())
        is_so |= not self.can.admits_any_that_fit
        problem = f"{move.who} may not grow, and needs {shown(needed)} of {room_of(before)}"
        self.shadow.judge("KV-TREE-36", is_so, problem)

    def run(self, move: Move) -> None:
        self.tree.run()
        self.note("run")
        self.shadow.device.copy(self.tree.take_copies(), self.requests.values())
        if self.can.has_rows:
            self.shadow.run()
        self.after("KV-TREE-27")

    def checkpoint(self, move: Move) -> None:
        request = self.running(move)
        if request is None or not request.has_run:
            return
        was = request.row.num_protected
        self.tree.checkpoint(move.who)
        self.note(f"checkpoint {move.who}")
        self.after("KV-TREE-7", move.who)
        self.shadow.wrote(request, was, request.row.num_protected)
        self.mirrored(request, was)

    def mirrored(self, request: Running, was: int) -> None:
        """Judge copies after a checkpoint, if it stored something behind `was` tokens."""
        end = request.num_computed // self.config.page_size_tokens * self.config.page_size_tokens
        if self.config.num_host_slots and end > was and self.can.stores_at_once:
            self.shadow.mirror.stored(self.before.mirrored, request.salt, request.tokens[:end])

    def complete(self, move: Move) -> None:
        """Let the oldest stores be done, or all."""
        stores = sorted(self.shadow.mirror.stores)
        for number in stores[: move.numbers[0] or None]:
            self.shadow.mirror.complete(number, self.shadow.device.full)
            cast(MirroredTree, self.tree).complete(number)
            self.note(f"complete {number}")
            self.after("KV-TREE-38")

    def finish(self, move: Move) -> None:
        """End a request; one that has not run since its last allocation runs first."""
        request = self.running(move)
        if request is None:
            return
        if not request.has_run:
            self.run(move)
        del self.requests[move.who]
        self.tree.finish(move.who)
        self.note(f"finish {move.who}")
        self.after("KV-TREE-8", move.who)
        self.shadow.wrote(request, request.row.num_protected, request.num_computed)
        self.mirrored(request, request.row.num_protected)
        self.shadow.ages.keep(request.salt, request.tokens[: request.num_computed], request.session)

    def abort(self, move: Move) -> None:
        if self.requests.pop(move.who, None) is None:
            return
        self.tree.abort(move.who)
        self.note(f"abort {move.who}")
        self.after("KV-TREE-8", move.who)

    def retract(self, move: Move) -> None:
        request = self.running(move)
        if request is not None:
            request.is_running = False
            self.tree.retract(move.who)
            self.note(f"retract {move.who}")
            self.after("KV-TREE-35", move.who)

    # Moves of the tree.

    def evict(self, move: Move) -> None:
        if not self.can.has_evict:
            return
        wanted = dict(zip(Part, move.numbers, strict=True))
        asked = [wanted[part] * (part in self.shadow.parts) for part in Part]
        left = self.shadow.left_by(asked, self.before.nodes)
        before, freed = self.before, self.tree.evict(*asked)
        self.note(f"evict {asked}", freed)
        got = dict(
            zip(Part, (freed.num_slots, freed.num_window_slots, freed.num_states), strict=True)
        )
        self.after("KV-TREE-29")
        for part, number in zip(Part, asked, strict=True):
            if part in self.shadow.parts:
                counts = before.counts[part], self.before.counts[part]
                self.shadow.evicted(part, number, got[part], counts)
        self.shadow.in_order(left, self.before.nodes)

    def reset(self, move: Move) -> None:
        is_idle = not any(request.is_running for request in self.requests.values())
        is_idle &= not self.shadow.mirror.locked and not self.shadow.kept(Part.STATE)
        if not (self.can.has_reset and is_idle):
            return
        self.tree.reset()
        self.note("reset")
        self.shadow.forget()
        self.after("KV-TREE-32")
        for part in self.shadow.parts:
            is_so = self.before.counts[part].num_free == self.shadow.sizes[part]
            self.shadow.judge("KV-TREE-32", is_so, f"{part}: {self.before.counts[part]}")

    def close(self, move: Move) -> None:
        """Close a session, if the subject has them."""
        if self.can.has_sessions:
            session = move.session or "s"
            cast(SessionTree, self.tree).close_session(session)
            self.note(f"close_session {session}")
            self.shadow.ages.close(session)
            for request in self.requests.values():
                request.session = "" if request.session == session else request.session
            self.after("KV-TREE-37")

    def wrong(self, move: Move) -> None:
        """Make an illegal call, if the subject says that it checks them."""
        if not self.can.checks_calls:
            return
        calls = illegal_calls(self.tree, self.requests)
        rule, name, call = calls[move.numbers[0] % len(calls)]
        self.refused(rule, name, call)
        self.after("KV-TREE-33")

    # The end.

    def calm(self) -> None:
        """End all that runs, admit all that waits one by one, and evict everything."""
        for name in [name for name, each in self.requests.items() if each.is_running]:
            self.finish(Move("finish", name))
        for name in list(self.requests):
            self.settle()
            length = len(self.requests[name].tokens)
            needed = needed_slots(self.config, 0, length, is_new=True)
            if all(number <= self.shadow.sizes[part] for part, number in needed.items()):
                self.admit(Move("admit", name, numbers=(length, 0, 0)))
                is_so = self.requests[name].is_running or not self.can.admits_any_that_fit
                self.shadow.judge("KV-TREE-22", is_so, f"{name} waits for ever")
                self.run(Move("run"))
            self.abort(Move("abort", name))
        self.settle()
        if self.config.num_host_slots:
            self.hit_the_host()
        for number in (1, 1, 1, 1, 10**6) if self.can.has_evict else ():
            self.evict(Move("evict", numbers=(number, number // 2, number // 2)))
        for part in self.shadow.parts:
            counts = self.before.counts[part]
            is_so = counts.num_free + counts.num_evictable == self.shadow.sizes[part]
            self.shadow.judge("KV-TREE-13", is_so, f"when all is over {part} has {counts}")

    def hit_the_host(self) -> None:
        """Evict everything, and let requests hit what the host alone has."""
        self.evict(Move("evict", numbers=(10**6, 0, 0)))
        for node in self.before.mirrored[-2:]:
            self.serve(Move("serve", "again", (*node.tokens, 1), salt=node.salt))
            self.settle()

    def settle(self) -> None:
        """Let all transfers be done."""
        self.complete(Move("complete", numbers=(0,)))
        if self.shadow.mirror.loads:
            self.run(Move("run"))

    def waiting(self, move: Move) -> Running | None:
        request = self.requests.get(move.who)
        return None if request is None or request.is_running else request

    def running(self, move: Move) -> Running | None:
        request = self.requests.get(move.who)
        return request if request is not None and request.is_running else None


MOVES: Mapping[str, Callable[[Player, Move], None]] = MappingProxyType(
    {
        move.__name__: move
        for move in (
            *(Player.arrive, Player.serve, Player.match, Player.admit, Player.extend, Player.run),
            *(Player.checkpoint, Player.finish, Player.abort, Player.retract, Player.evict),
            *(Player.reset, Player.wrong, Player.close, Player.complete),
        )
    }
)
