"""States of Mamba layers: where they are, and what a step does with them."""

from __future__ import annotations

from collections.abc import Sequence

from kvspec.specs import LayerSpec
from tests.device.contents import WrongContentError
from tests.device.contents_moves import Moves, One


def entry(spec: LayerSpec, num_computed: int) -> int:
    return -(-num_computed // spec.block_size) - 1


def states_of(spec: LayerSpec, start: int, main: int, end: int) -> list[tuple[int, int]]:
    """Return the states that a step from `start` to `end` tokens keeps: (entry, tokens).

    Tokens behind `main` are drafts: their states are behind the running one, one each (KV-MAMBA-4).
    """
    running = entry(spec, main)
    size = spec.block_size
    first = running if spec.is_aligned else start // size
    kept = [(index, min((index + 1) * size, main)) for index in range(first, running + 1)]
    return kept + [(running + number, main + number) for number in range(1, end - main + 1)]


class States(Moves):
    """Moves and steps of states.

    `state.0` is another one after every token; `state.1` stays as it was after the first, so it is
    right only if it was carried from block to block.
    """

    def compute_states(self, group: int, spec: LayerSpec, granted: list[tuple[One, int]]) -> None:
        carried, before, after = list[tuple[int, int]](), [], []
        for one, num in granted:
            known, end = self.prints_of(one), one.request.num_computed_tokens
            blocks = self.manager.get_blocks(one.request).groups[group]
            old = 0
            if end > num:
                old = blocks[entry(spec, end - num)]
                before.append((known[end - num - 1], known[0], old))
            for index, tokens in states_of(spec, end - num, min(end, one.request.num_tokens), end):
                if index >= len(blocks) or not blocks[index]:
                    raise WrongContentError(f"no block for the state after {tokens} tokens")
                if not old:
                    self.contents.write_states(group, "state.1", known[:1], [blocks[index]])
                elif old != blocks[index]:
                    carried.append((old, blocks[index]))
                after.append((known[tokens - 1], known[0], one.handle, index, blocks[index]))
        for number in (0, 1):
            prints, last = [state[number] for state in before], [state[2] for state in before]
            self.contents.check_states("the last state", group, f"state.{number}", prints, last)
        self.carry(group, carried)
        self.contents.write_states(
            group, "state.0", [state[0] for state in after], [state[4] for state in after]
        )
        table = self.tables.table(group).tolist()
        places = [table[handle][index] for _, _, handle, index, _ in after]
        for number in (0, 1):
            prints = [state[number] for state in after]
            self.contents.check_states("a state", group, f"state.{number}", prints, places)

    def carry(self, group: int, pairs: Sequence[tuple[int, int]]) -> None:
        self.pages.copy_blocks([old for old, _ in pairs], [new for _, new in pairs], group=group)
        self.counts["states carried"] += len(pairs)

    def settle(self, one: One, num_accepted: int) -> None:
        """Put the states after accepted drafts where those of computed tokens are.

        The state at a boundary that drafts passed first: the last state may go where it was.
        """
        main = one.request.num_tokens
        for group, spec in enumerate(self.case.specs):
            if not spec.is_state or not num_accepted:
                continue
            blocks = self.manager.get_blocks(one.request).groups[group]
            running, size, end = entry(spec, main), spec.block_size, main + num_accepted
            boundaries = range((main // size + 1) * size, end, size)
            for tokens in (*boundaries, end):
                source, place = blocks[running + tokens - main], blocks[entry(spec, tokens)]
                if source != place:
                    self.carry(group, [(source, place)])
                self.counts["states of drafts"] += 1
