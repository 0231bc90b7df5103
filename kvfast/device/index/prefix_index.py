"""Find how much of each waiting prompt is cached, for thousands of prompts at once (KV-DEV-19).

A policy that orders its queue by hits asks for all of it in every step. Requests for that need not
be made: the index hashes prompts as they are and looks them up in its own table of the cached keys.

    index = PrefixIndex(implementation, manager, device="cuda", crossover=Crossover(24))
    index.update(manager.take_events())  # after each step
    hits = index.lookup(tokens, starts)  # int32 [P] on the device
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch

from kvfast._implementation import FastImplementation
from kvfast.device.base.arguments import check_device, check_type
from kvfast.device.base.backend import Backend, chosen, form_of
from kvfast.device.base.memory import on_device
from kvfast.device.hashing.prompts import check_starts, check_tokens, hash_words, prompts_on
from kvfast.device.index.keys import Keys
from kvfast.device.index.table import IndexTable
from kvspec.batched import Ints
from kvspec.config import ManagerConfig
from kvspec.domains import int_at_least
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.events import Event
from kvspec.interface import Implementation, KVCacheManager
from kvspec.request import RequestInput


@dataclass(frozen=True)
class Crossover:
    """The size from which the device is faster than the host, as measured (KV-DEV-20).

    `num_prompts`: the number of prompts of equal length it takes, at least 1. None, the default
    without a measurement: the host does everything. `python -m bench.device.hashing` measures it.
    """

    num_prompts: int | None = None

    def __post_init__(self) -> None:
        int_at_least("num_prompts", self.num_prompts, 1, optional=True, error=InvalidArgumentError)

    def chooses_device(self, num_blocks: torch.Tensor) -> bool:
        """Return whether the device should hash prompts of `num_blocks` blocks, int64 [P] on the
        host.

        Its time is that of the longest chain, the host's that of all blocks. So there must be as
        much work as `num_prompts` chains of the longest one's length.
        """
        check_type("num_blocks", num_blocks, torch.Tensor)
        if self.num_prompts is None or not len(num_blocks):
            return False
        longest = int(num_blocks.max())
        return longest > 0 and int(num_blocks.sum()) >= self.num_prompts * longest


class PrefixIndex:
    """The cached keys of one manager, on the host and on a device (KV-DEV-19).

    - `implementation`, `manager`: of kvfast, with prefix caching, the hash function sha256_cbor and
      one group, of full attention of any kind. Else UnsupportedError.
    - `device`: where hits are returned, and computed if the device is chosen. `backend`: None
      (Triton on CUDA devices, else torch), "torch" or "triton".
    - `crossover`: None if it was not measured: the host does everything.

    It starts with the keys cached now; queued events must have been taken before. It returns what
    look-ups would, and decides nothing: a hit counts when the manager has returned it. The device
    is current; its work runs on its current stream. Not thread-safe.
    """

    def __init__(
        self,
        implementation: Implementation,
        manager: KVCacheManager,
        *,
        device: torch.device | str = "cpu",
        backend: Backend | None = None,
        crossover: Crossover | None = None,
    ) -> None:
        if not isinstance(implementation, FastImplementation):
            raise InvalidArgumentError("implementation", implementation, "that of kvfast")
        implementation.make_requests(manager, ())  # InvalidArgumentError for a foreign manager
        crossover = Crossover() if crossover is None else crossover
        check_type("crossover", crossover, Crossover)
        self.device = check_device("device", device)
        self.backend = chosen(backend, self.device)
        self.implementation, self.manager, self.crossover = implementation, manager, crossover
        config = manager.config
        _check_config(config)
        self._span_tokens = config.hash_block_size_tokens or 1
        self._num_dropped = int(config.use_eagle or config.kv_cache.groups[0].is_eagle_group)
        is_set = config.policy.removed_event_per == "last_copy"  # KV-POL-3
        self._keys = Keys(config.kv_cache.num_blocks, counts_copies=not is_set)
        self._table: IndexTable | None = None
        self.read()

    @property
    def num_keys(self) -> int:
        """Number of different cached keys."""
        return len(self._keys.counts)

    def read(self) -> None:
        """Start again with the keys cached now, O(pool): for example after events were lost.

        Without `enable_events` this replaces `update`. Queued events must have been taken before,
        or they would count twice.
        """
        self._keys.read(self.manager.snapshot())

    def update(self, events: Iterable[Event]) -> None:
        """Apply the result of `take_events`, each event once and in order.

        InvalidArgumentError (`events[3]`) for one that can't follow the earlier ones: then nothing
        has changed. Copies nothing: the next look-up on the device does.
        """
        self._keys.update(events)

    def lookup(self, tokens: torch.Tensor, starts: Ints) -> torch.Tensor:
        """Return the hit length of each prompt in tokens, int32 [P] on the device.

        - `tokens`: int32 or int64, all prompts one after another, without extra keys. Those on a
          device are hashed there; for those in host memory `crossover` decides where.
        - `starts`: P + 1 ints, where each prompt begins in `tokens`, and the end of the last one.

        It is what `get_computed_blocks` would return for requests with these tokens, and changes no
        statistics.
        """
        given = check_tokens("tokens", tokens, self.device)
        found = check_starts("starts", starts, len(given))
        counts = (found.diff() - 1) // self._span_tokens  # the last token is never a hit
        if given.device.type == "cpu" and not self.crossover.chooses_device(counts):
            return on_device(self._on_host(given, found), self.device)
        return self._on_device(given, found, counts)

    def _on_host(self, tokens: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        inputs = [
            RequestInput("prompt", tokens[begin:end]) for begin, end in pairwise(starts.tolist())
        ]
        requests = self.implementation.make_requests(self.manager, inputs)
        hits = []
        for request in requests:
            most = (request.num_tokens - 1) // self._span_tokens
            run = 0
            while run < most and request.block_hashes[run] in self._keys.counts:
                run += 1
            hits.append(max(0, run - self._num_dropped) * self._span_tokens)
        return torch.tensor(hits, dtype=torch.int32)

    def _on_device(
        self, tokens: torch.Tensor, starts: torch.Tensor, counts: torch.Tensor
    ) -> torch.Tensor:
        table = self._send_changes()
        prompts = prompts_on(self.device, tokens, starts, counts, self.manager.none_hash)
        hashes = hash_words(prompts, self._span_tokens, self.backend)
        found: torch.Tensor = form_of(__package__, self.backend).lookup(
            table, prompts, hashes, self._num_dropped, self._span_tokens
        )
        return found

    def _send_changes(self) -> IndexTable:
        """Send all changes since its last use to the table; a full one is replaced."""
        changes = self._keys.take_changes()
        if self._table is None or changes.is_anew:
            self._table = IndexTable.empty(self._keys.max_entries, self.device)
        self._table.apply(changes, self.backend)
        return self._table


def _check_config(config: ManagerConfig) -> None:
    """Check the requirements on the manager."""
    specs = config.managed_specs
    needs = {
        "a prefix index without prefix caching": config.enable_caching,
        "a prefix index under hash look-ahead": config.hash_lookahead_tokens == 0,
        f"a prefix index of {config.hash_function} hashes": config.hash_function == "sha256_cbor",
        "a prefix index of several groups": len(specs) == 1,
        "a prefix index of anything but full attention": all(
            spec.is_full_attention for spec in specs
        ),
    }
    for what, is_so in needs.items():
        if not is_so:
            raise UnsupportedError(what, "kvfast.device")
