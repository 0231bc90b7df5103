"""HiCache of SGLang's tree on a CPU: its controller with copies that are only noted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kvspec.tree import Transfer


class HostCopies:
    """Stands in for the engine of HiCache's copies. `begun`: those that were not reported yet.

    `done`: stores that the device is said to have finished, by number.
    """

    def __init__(self, tree: Any) -> None:
        self.tree = tree
        self.begun: list[Transfer] = []
        self.number = 0
        self.done: set[int] = set()
        tree.load_back_threshold = 1
        controller = tree.cache_controller
        controller.l2_transfer_engine = self
        controller.write_fence_stream = controller.load_fence_stream = None

    def _note(self, transfers: Any, *, is_store: bool) -> int:
        self.number += 1
        slots, host_slots = (
            tuple(getattr(transfers[0], name).tolist())
            for name in ("device_indices", "host_indices")
        )
        self.begun.append(Transfer(self.number, is_store, slots, host_slots))
        return self.number

    def submit_device_to_host(self, transfers: Any, **_: Any) -> Any:
        number = self._note(transfers, is_store=True)
        return _completion(lambda: number in self.done)

    def submit_host_to_device(self, transfers: Any, *, on_layer_done: Any, **_: Any) -> Any:
        self._note(transfers, is_store=False)
        on_layer_done(0)
        return _completion(lambda: True)

    def taken(self) -> tuple[Transfer, ...]:
        """Begin the stores that wait for the end of the step, and return what was begun."""
        self.tree.cache_controller.start_writing()
        made, self.begun = tuple(self.begun), []
        return made

    def complete(self, number: int) -> None:
        self.done.add(number)
        self.tree.check_hicache_events()


def _completion(query: Any) -> Any:
    event = SimpleNamespace(query=query, synchronize=lambda: None, record=lambda *_: None)
    return SimpleNamespace(start_event=event, finish_event=event, timing_enabled=False)
