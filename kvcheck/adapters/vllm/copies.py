"""What vLLM's scheduler gives, plans and learns, as lines of a record of copies (docs/hazards.md).

No import of vLLM: its values are read by the names of their members.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from math import lcm
from typing import Any

from kvcheck.adapters.vllm import transfers
from kvcheck.adapters.vllm.transfers import Transfer
from kvcheck.hazards.checker import Hazard, HazardChecker
from kvcheck.hazards.lines import Ended, Given, Line, Place, Pools, Run, object_of
from kvspec.specs import LayerSpec

MAIN = "main"


class CopyRecorder:
    """Issues and checks lines, from a scheduler's plans and the outputs of their steps.

    `specs`: of the groups, whose blocks hold `factor` times as many tokens; None for those that are
    left out, such as states. `is_whole`: every read, and each transfer that a connector of vLLM's
    orders, is a line. Else only what a request reads first and has not computed itself. Loads are
    those that the scheduler announces, unless the connector's orders can be read.
    """

    def __init__(
        self,
        manager: Any,
        specs: Sequence[LayerSpec | None],
        report: Callable[[Hazard], object],
        *,
        factor: int = 1,
        is_whole: bool = False,
        write: Callable[[str], object] | None = None,
    ) -> None:
        self.manager, self.specs, self.factor = manager, specs, factor
        self.report, self.write, self.is_whole = report, write, is_whole
        self.size = lcm(*(spec.block_size * factor for spec in specs if spec))
        self.checker = HazardChecker()
        self.num_lines, self.num_steps, self.owner = 0, 0, "store"
        self.last: tuple[str, ...] = ()
        self.steps: list[tuple[Any, dict[str, str]]] = []
        self.num_seen: dict[str, int] = {}
        self.taken_by: dict[int, str] = {}
        self.given: list[Given] = []
        self.fresh: set[int] = set()
        self.under_way: dict[str, Transfer] = {}
        self.streams: dict[str, str] = {}
        self.waiting: list[Transfer] = []
        self.announced: list[Transfer] = []
        self.issue(Pools({"gpu": self.size, "host": self.size}))
        self._watch(manager)
        self.watch_pool(manager.block_pool, "gpu")

    def issue(self, line: Line) -> None:
        self.num_lines += 1
        if self.write is not None:
            self.write(json.dumps(object_of(line)) + "\n")
        for hazard in self.checker.take(line, self.num_lines):
            self.report(hazard)

    def watch_pool(self, pool: Any, name: str) -> None:
        """Note which blocks of a pool are taken as new ones."""
        take = pool.get_new_blocks

        def taken(num_blocks: int) -> Any:
            blocks = take(num_blocks)
            ids = [block.block_id for block in blocks]
            self.given.append(Given(self.owner, self._whole(ids, name)))
            if name == "gpu":
                self.taken_by |= dict.fromkeys(ids, self.owner)
                self.fresh.update(ids)
            return blocks

        pool.get_new_blocks = taken

    def _watch(self, manager: Any) -> None:
        allocate = manager.allocate_slots

        def allocated(request: Any, new: int, hit: int = 0, hits: Any = None, **given: Any) -> Any:
            self.owner = request.request_id
            granted = allocate(request, new, hit, hits, **given)
            if granted is not None and hits is not None:
                ids = (block.block_id for group in hits.blocks for block in group)
                self.given.append(Given(self.owner, self._whole(ids), is_hit=True))
            num_loaded = given.get("num_external_computed_tokens", 0)
            if granted is not None and num_loaded:
                begin = request.num_computed_tokens + hit
                self._announced(begin, num_loaded, waits=given.get("delay_cache_blocks", False))
            self.owner = "store"
            return granted

        def giving(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
            def given_back(request: Any) -> Any:
                name, lists = request.request_id, manager.get_block_ids(request.request_id)
                answer = call(request)
                self._check_keys(name, lists)
                places = self._whole(chain.from_iterable(lists))
                self.given.append(Given(name, places, is_back=True))
                self.num_seen.pop(name, None)
                return answer

            return given_back

        manager.allocate_slots = allocated
        manager.free = giving(manager.free)
        manager.pop_blocks_for_free = giving(manager.pop_blocks_for_free)

    def _announced(self, begin: int, num_tokens: int, *, waits: bool) -> None:
        """Note a load that the scheduler asks for."""
        lists = self.manager.get_block_ids(self.owner)
        blocks = {place.block for place in self._slots(lists, begin, begin + num_tokens)}
        for one in transfers.received(self.owner, [sorted(blocks)]):
            name = f"{one.id}-{self.num_steps}"
            self.announced.append(Transfer(name, "", one.gpu, (), one.requests, is_sync=not waits))

    def _check_keys(self, name: str, lists: Sequence[Sequence[int]]) -> None:
        """Check that what a request leaves under a key was computed (KV-MGR-24).

        What it has hit is left to those who took the blocks: their step may be planned just now.
        """
        pool = self.manager.block_pool.blocks
        for block in chain.from_iterable(
            b for b, spec in zip(lists, self.specs, strict=True) if spec
        ):
            partly = getattr(pool[block], "block_hash_num_tokens", None) or 0
            if self.taken_by.get(block) != name or partly % self.size:
                continue
            place = Place("gpu", block, 0, self.size)
            is_there = block not in self.fresh and self.checker.is_filled(place)
            if pool[block].block_hash is not None and not is_there:
                what = f"{name} leaves a key of what no step has computed"
                self.report(Hazard("KV-MGR-24", place, what, None, name, (self.num_lines,)))
                return

    def watch_connector(self, connector: Any) -> None:
        """Note what is sent when a request has ended, and who takes blocks of the host's pool."""
        inner = getattr(connector, "scheduler_manager", None)
        if inner is not None:
            self.watch_pool(inner.cpu_block_pool, "host")
        own = connector.request_finished_all_groups

        def finished(request: Any, block_ids: Any) -> Any:
            answer = own(request, block_ids)
            if answer[0]:
                most = min(request.num_computed_tokens, request.num_tokens - 1)
                one = Transfer(f"send-{request.request_id}", "", (), is_store=True, waits=False)
                self._launch(one, self._slots(block_ids, 0, most))
            return answer

        connector.request_finished_all_groups = finished

    def planned(self, plan: Any) -> None:
        """Issue a step, and what its worker does before and after it."""
        self.num_steps += 1
        meta, flushed, ordered = plan.kv_connector_metadata, list[str](), self.announced
        if self.is_whole and transfers.is_known(meta):
            ordered = list(transfers.transfers_of(meta))
            flushed = transfers.flushed_by(meta, self.under_way)
            # OffloadingConnector's stores begin before the next step, or at once to be flushed.
            self.waiting += [one for one in ordered if one.is_store and one.id in flushed]
            for one in self.waiting:
                self._launch(one)
        for name in flushed:
            self._end(name)
        for line in self.given:  # not before: until here the old content was there to be stored
            if line.places:
                self.issue(line)
        self.given, self.fresh, self.waiting, self.announced = [], set(), [], []
        self._prepare(plan)
        sync = [one for one in ordered if one.is_sync]
        for one in sync:
            self._launch(one)
        self._step(plan, tuple(one.id for one in sync))
        for one in ordered:
            if one.is_store and hasattr(meta, "jobs_to_flush"):
                self.waiting += [one] * (one.id not in flushed)
            elif not one.is_sync:
                self._launch(one)

    def _prepare(self, plan: Any) -> None:
        """Zero blocks, and copy those that are to be written."""
        if zeroed := getattr(plan, "new_block_ids_to_zero", None):
            name = f"zero-{self.num_steps}"
            self._work(Run(name, MAIN, writes=self._whole(zeroed), is_zeroing=True))
        for number, copy in enumerate(getattr(plan, "kv_cache_block_copies", None) or ()):
            name = f"copy-{self.num_steps}-{number}"
            self._work(Run(name, MAIN, writes=self._whole([copy.dst_block_id])))

    def _step(self, plan: Any, after: tuple[str, ...]) -> None:
        """Issue the computing of each request, in the order of the plan."""
        cached, ids = plan.scheduled_cached_reqs, dict[str, str]()
        begins = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
        begins |= dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, num_tokens in plan.num_scheduled_tokens.items():
            begin, lists = begins[name], self.manager.get_block_ids(name)
            seen = 0 if self.is_whole else self.num_seen.get(name, 0)
            reads = tuple(self._slots(lists, seen, begin, is_read=True))
            writes = tuple(self._slots(lists, begin, begin + num_tokens))
            self.num_seen[name] = begin + num_tokens
            ids[name] = f"step-{self.num_steps}-{name}"
            self._work(Run(ids[name], MAIN, reads, writes, after=after))
        if ids:
            self.steps.append((plan, ids))

    def processed(self, plan: Any, output: Any) -> None:
        """Issue the ends that the host learns of: of the step, and of transfers.

        A request that is missing in the output, or whose logits are no numbers, has failed.
        """
        mine = [ids for each, ids in self.steps if each is plan]
        self.steps = [each for each in self.steps if each[0] is not plan]
        nans = getattr(output, "num_nans_in_logits", None) or {}
        for name, work in chain.from_iterable(ids.items() for ids in mine):
            self.issue(Ended(work, name in output.req_id_to_index and not nans.get(name)))
        told = output.kv_connector_output
        lost = getattr(told, "invalid_block_ids", None) or ()
        sync = [one.id for one in self.under_way.values() if one.is_sync]
        for name in (*sync, *transfers.ended_by(told, self.under_way)):
            self._end(name, lost)
        steps = chain.from_iterable(ids.values() for _, ids in self.steps)
        self.checker.forget(self.under_way.keys() | set(steps))

    def _work(self, run: Run) -> None:
        self.issue(run)
        if run.stream == MAIN:
            self.last = (run.id,)

    def _launch(self, one: Transfer, places: Iterable[Place] = ()) -> None:
        gpu, host = tuple(places) or self._whole(one.gpu), self._whole(one.host, "host")
        if one.is_store and one.requests:  # a store of OffloadingConnector takes its chunks
            self.issue(Given(one.id, host))
        reads, writes = (gpu, host) if one.is_store else (host, gpu)
        taken = set(self.streams.values())
        stream = one.stream or next(s for s in map("peer-{}".format, count()) if s not in taken)
        self.under_way[one.id], self.streams[one.id] = one, stream
        owner = one.requests[0] if len(one.requests) == 1 and not one.is_store else None
        is_known = not self.last or self.last[0] not in self.checker.works
        after = self.last if one.waits and not is_known else ()
        self._work(Run(one.id, stream, reads, writes, owner, after))

    def _end(self, name: str, lost: Iterable[int] = ()) -> None:
        """Note the end of a transfer, once; that of a block that was lost has failed."""
        one = self.under_way.pop(name, None)
        if one is not None:
            del self.streams[name]
            self.issue(Ended(name, set(lost).isdisjoint(one.gpu)))

    def _whole(self, blocks: Iterable[int], pool: str = "gpu") -> tuple[Place, ...]:
        """Return whole blocks; on the device without the null block."""
        ids = (block for block in dict.fromkeys(blocks) if block or pool == "host")
        return tuple(Place(pool, block, 0, self.size) for block in ids)

    def _slots(
        self, lists: Sequence[Sequence[int]], begin: int, end: int, *, is_read: bool = False
    ) -> Iterator[Place]:
        """Yield the slots of tokens `begin` … `end` - 1; of a read those that token `end` needs."""
        for blocks, spec in zip(lists, self.specs, strict=True):
            if spec is None:
                continue
            first, tokens = begin, spec.block_size * self.factor
            if is_read and spec.window_tokens:
                first = max(first, end - spec.window_tokens + 1)
            elif is_read and spec.chunk_tokens:
                first = max(first, end - end % spec.chunk_tokens)
            scale, last = self.size // tokens, min(-(-end // tokens), len(blocks))
            for index in range(first // tokens, last if first < end else 0):
                if blocks[index]:
                    low = max(first - index * tokens, 0) * scale
                    high = min(end - index * tokens, tokens) * scale
                    yield Place("gpu", blocks[index], low, high)
