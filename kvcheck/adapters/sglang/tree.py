"""SGLang's trees and its admission, with the calls of `kvspec.tree.PrefixTree`.

    kvspec check --tree kvcheck.adapters.sglang.trees:python_core

Each call is what SGLang's scheduler does, by its own functions and in its order:

- `match`: a pass of the queue loop that admits nobody: match, then what a request passed over
  gives back. `admit`: one that may admit this request, with so many tokens left of its budget.
- `extend`: for a prompt, a pass with the request as the unfinished one; for a generated token, a
  decode step's check of room and allocation.
- `run`: clears and copies of states as the model runner makes them, then a step's results.
- `checkpoint`: `checkpoint_kv_cache` after a chunk; a decoding request has none.
- `finish` and `retract`: `release_kv_cache` with and without a checkpoint. `abort`: a prompt is
  released without, a decoding request with one.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kvcheck.adapters.sglang.engine import Engine, Options
from kvspec.errors import InvalidArgumentError, UnsupportedError
from kvspec.tree import Evicted, Part, Row, StateCopy, Transfer, TreeConfig, TreeCounts, TreeNode


@dataclass
class Held:
    """A request: SGLang's own, and the batch of its last step.

    `is_allocated`: that step waits for `run`; `is_stored`: its chunk is in the tree.
    """

    req: Any
    batch: Any = None
    is_allocated: bool = False
    is_stored: bool = True

    @property
    def is_decoding(self) -> bool:
        return bool(self.req.kv.kv_allocated_len >= self.num_prompt) and not self.is_allocated

    @property
    def num_prompt(self) -> int:
        """Tokens that the request had when it was admitted."""
        return len(self.req.full_untruncated_fill_ids)


class SGLangTree:
    """See `kvspec.tree.PrefixTree` for what each call promises."""

    def __init__(self, config: TreeConfig, options: Options) -> None:
        self.engine = Engine(config, options)
        self.requests: dict[str, Held] = {}
        self.copies: list[StateCopy] = []
        if config.num_states:
            self._watch_copies(self.engine.rows.mamba_pool)

    def _watch_copies(self, pool: Any) -> None:
        """Note what the pool of states copies and clears."""
        copy, clear = pool.copy_from, pool.clear_slots

        def copy_from(sources: Any, targets: Any) -> None:
            copy(sources, targets)
            pairs = zip(sources.tolist(), targets.tolist(), strict=True)
            self.copies += [StateCopy(source, target) for source, target in pairs]

        def clear_slots(targets: Any) -> None:
            clear(targets)
            self.copies += [StateCopy(None, target) for target in targets.tolist()]

        pool.copy_from, pool.clear_slots = copy_from, clear_slots

    def arrive(
        self, request_id: str, tokens: Sequence[int], *, salt: str = "", priority: int = 0
    ) -> None:
        """Make a request of SGLang's; it waits."""
        m = self.engine.m
        with self.engine.active():
            parameters = m.sampling.SamplingParams(max_new_tokens=1, ignore_eos=True)
            parameters.normalize(None)
            session = m.sessions.Session(0, "s") if self.engine.options.in_session else None
            req = m.schedule_batch.Req(
                rid=request_id,
                origin_input_text="",
                origin_input_ids=array("q", tokens),
                sampling_params=parameters,
                cache_salt=salt or None,
                priority=priority,
                vocab_size=2**31,
                session=session,
            )
        self.requests[request_id] = Held(req)

    def join(self, request_id: str, session: str) -> None:
        req = self._waiting(request_id).req
        req.session_id = session
        req.session_generation = self.engine.tree.ensure_session_generation(session)

    def close_session(self, session: str) -> None:
        self.engine.tree.release_radix_session(session)

    def match(self, request_id: str) -> int:
        """Let the queue loop match the request and pass it over."""
        req = self._waiting(request_id).req
        if self.engine.rows.available_size() == 0:  # the loop would not come to it
            with self.engine.active():
                req.init_next_round_input(self.engine.tree, cow_mamba=False)
        else:
            self._schedule(waiting=[req], budget=None, max_requests=0)
        return int(req.prefix_len + req.host_hit_length)

    def admit(self, request_id: str, num_tokens: int) -> int | None:
        """Let the queue loop admit the request, with this budget."""
        held = self._waiting(request_id)
        batch = self._schedule(waiting=[held.req], budget=num_tokens)
        if batch is None:
            return None
        held.batch, held.is_allocated, held.is_stored = batch, True, False
        return int(held.req.prefix_len)

    def extend(self, request_id: str, num_tokens: int) -> bool:
        """Allocate a further chunk of a prompt, or a generated token."""
        held = self._running(request_id)
        with self.engine.active():
            held.is_stored = True  # a chunk is stored before the next step, or with a later one
            if held.is_decoding:
                if num_tokens != 1:
                    raise UnsupportedError("decode steps of several tokens", "sglang")
                return self._decode(held)
            held.req.prefix_len = held.req.extend_end
            if not self._has_room(held.req, num_tokens):
                return False
        batch = self._schedule(chunked=held.req, budget=num_tokens)
        if batch is not None:
            held.batch, held.is_allocated, held.is_stored = batch, True, False
        return batch is not None

    def _has_room(self, req: Any, num_tokens: int) -> bool:
        """Whether a whole chunk fits; SGLang would take a shorter one, or let it wait."""
        page, start = self.engine.page, req.prefix_len
        budget = self.engine.slots.create_prefill_budget(self.engine.tree)
        new = -(-(start + num_tokens) // page) * page - -(-start // page) * page
        return bool(
            new <= budget.remaining_total
            and budget.available_chunk_tokens(num_tokens) == num_tokens
            and budget.fit_chunk(
                extend_input_len=num_tokens, max_new_tokens=0, chunk_limit=num_tokens
            )
            == num_tokens
        )

    def _decode(self, held: Held) -> bool:
        batch = held.batch
        if not batch.check_decode_mem():
            return False
        batch.prepare_for_decode()
        held.is_allocated = True
        return True

    def _schedule(
        self, *, waiting: Sequence[Any] = (), chunked: Any = None, budget: int | None, **limit: int
    ) -> Any:
        """Make a pass of the queue loop; `max_requests`: admit no more than so many."""
        engine = self.engine
        scheduler, m = engine.scheduler, engine.m
        running = [
            held.req
            for held in self.requests.values()
            if held.req.kv.holds_kv and held.req is not chunked
        ]
        for req in running:
            req.sampling_params.max_new_tokens = len(req.output_ids)
        scheduler.waiting_queue = list(waiting)
        scheduler.chunked_req, scheduler.chunked_prefill_size = chunked, budget
        adder = m.policy.PrefillAdder
        scheduler.get_prefill_adder_class = lambda: (
            lambda *given, **named: adder(
                *given, **named | {f"prefill_{name}": value for name, value in limit.items()}
            )
        )
        with engine.active():
            batch, _ = scheduler._get_new_batch_prefill_raw(
                None, m.schedule_batch.ScheduleBatch(reqs=running)
            )
        return batch

    def append(self, request_id: str, tokens: Sequence[int]) -> None:
        self._running(request_id).req.output_ids.extend(tokens)

    def run(self) -> None:
        """Make the copies of all steps that were allocated, and take in their results."""
        stepped = [held for held in self.requests.values() if held.is_allocated]
        with self.engine.active():
            for held in stepped:
                self._copy_states(held.batch)
            for held in stepped:
                self._take_result(held)
                held.is_allocated = False
            if self.engine.host is not None:
                self.engine.tree.check_hicache_events()

    def _copy_states(self, batch: Any) -> None:
        """Clear and copy as `ModelRunner` does before a forward pass."""
        rows = self.engine.rows
        if batch.mamba_clear_indices is not None:
            rows.mamba_pool.clear_slots(batch.mamba_clear_indices)
        if batch.mamba_cow_src_indices is not None:
            rows.copy_mamba_state(batch.mamba_cow_src_indices, batch.mamba_cow_dst_indices)
        batch.mamba_clear_indices = batch.mamba_cow_src_indices = None

    def _take_result(self, held: Held) -> None:
        req, batch = held.req, held.batch
        req.inflight_middle_chunks = 0
        if self.engine.has_buffer:
            self._leave_state(held)
        if batch.forward_mode.is_decode():
            self.engine.results._handle_finish_state_updated_req(req, batch, None, 0, None)

    def _leave_state(self, held: Held) -> None:
        """Note the state that the forward pass has left at the grid."""
        req, batch = held.req, held.batch
        if not bool(batch.mamba_track_mask[0]):
            return
        end = int(batch.seq_lens_cpu[0])
        if not batch.forward_mode.is_decode():
            start = batch.prefix_lens[0]
            tracked, grid = batch.mamba_track_seqlens_cpu[0] - start, self.engine.grid
            end = start + tracked // grid * grid
        target = int(batch.mamba_track_indices[0])
        self.copies.append(StateCopy(int(req.kv.mamba_pool_idx), target, end))

    def checkpoint(self, request_id: str) -> None:
        held = self._running(request_id)
        if held.is_stored:
            return
        with self.engine.active():
            self.engine.m.common.checkpoint_kv_cache(held.req, self.engine.tree)
        held.is_stored = True

    def finish(self, request_id: str) -> None:
        self._release(request_id, self.engine.m.schedule_batch.FINISH_LENGTH(0), checkpoint=True)

    def abort(self, request_id: str) -> None:
        held = self._held(request_id)
        reason = self.engine.m.schedule_batch.FINISH_ABORT()
        if held.req.kv.holds_kv or held.req.kv.holds_mamba:
            self._release(request_id, reason, checkpoint=held.is_decoding)
        else:
            del self.requests[request_id]

    def _release(self, request_id: str, reason: Any, *, checkpoint: bool) -> None:
        req = self._held(request_id).req
        with self.engine.active():
            req.finished_reason = reason
            self.engine.m.common.release_kv_cache(req, self.engine.tree, checkpoint=checkpoint)
        del self.requests[request_id]

    def retract(self, request_id: str) -> None:
        held = self._running(request_id)
        engine = self.engine
        with engine.active():
            engine.m.schedule_batch.release_req(
                req=held.req,
                remaing_req_count=0,
                req_to_token_pool=engine.rows,
                token_to_kv_pool_allocator=engine.slots,
                tree_cache=engine.tree,
                hisparse_coordinator=None,
            )
        self.requests[request_id] = Held(held.req)

    def evict(self, num_slots: int, num_window_slots: int = 0, num_states: int = 0) -> Evicted:
        parameters = self.engine.m.base.EvictParams(num_slots, num_window_slots, num_states)
        with self.engine.active():
            gone = self.engine.tree.evict(parameters)
        return Evicted(gone.num_tokens_evicted, gone.swa_num_tokens_evicted, gone.mamba_num_evicted)

    def row(self, request_id: str) -> Row:
        kv = self._running(request_id).req.kv
        slots = self.engine.rows.req_to_token[kv.req_pool_idx, : kv.kv_allocated_len].tolist()
        window = tuple(self._peers(slots)) if self.engine.config.window_tokens else ()
        state = int(kv.mamba_pool_idx) if kv.holds_mamba else None
        buffer = [] if kv.mamba_ping_pong_track_buffer is None else kv.mamba_ping_pong_track_buffer
        spare = tuple(int(each) for each in buffer if each > 0)
        return Row(tuple(slots), window, state, kv.cache_protected_len, spare)

    def _peers(self, slots: Sequence[int]) -> list[int | None]:
        mapping = self.engine.slots.full_to_swa_index_mapping[list(slots)].tolist()
        return [peer if peer > 0 else None for peer in mapping]

    def counts(self, part: Part) -> TreeCounts:
        slots, kind = self.engine.slots, "full_"
        if part is Part.STATE:
            free, kind = self.engine.rows.mamba_allocator.available_size(), "mamba_"
        elif part is Part.WINDOW:
            free, kind = slots.swa_available_size(), "swa_"
        elif self.engine.config.window_tokens:
            free = slots.full_available_size()
        else:
            free = slots.available_size()
        if self.engine.options.core == "plain":
            kind = ""
        evictable, protected = (
            getattr(self.engine.tree, f"{kind}{name}_size")() for name in ("evictable", "protected")
        )
        own = sum(self._own(part, held.req.kv) for held in self.requests.values())
        return TreeCounts(free, evictable, protected, own)

    def _own(self, part: Part, kv: Any) -> int:
        """Count a request's own slots of a part: those of no node."""
        page = self.engine.page
        if part is Part.STATE:
            beside = kv.mamba_ping_pong_empty or ()
            return int(kv.holds_mamba) + sum(not is_empty for is_empty in beside)
        if not kv.holds_kv:
            return 0
        first = kv.cache_protected_len
        row = self.engine.rows.req_to_token[kv.req_pool_idx, first : kv.kv_allocated_len].tolist()
        if part is Part.WINDOW:
            row = [peer for peer in self._peers(row) if peer is not None]
        return len({slot // page for slot in row}) * page

    def take_copies(self) -> tuple[StateCopy, ...]:
        made, self.copies = tuple(self.copies), []
        return made

    def take_transfers(self) -> tuple[Transfer, ...]:
        with self.engine.active():
            return self.engine.copies.taken()

    def complete(self, number: int) -> None:
        with self.engine.active():
            self.engine.copies.complete(number)

    def nodes(self) -> tuple[TreeNode, ...]:
        """Walk the tree in Python; SGLang's in Rust shows no keys."""
        if self.engine.options.core == "rust":
            raise UnsupportedError("nodes", "sglang's Rust core")
        is_plain = self.engine.options.core == "plain"
        root = self.engine.tree.root_node if is_plain else self.engine.tree.tree_core.root_node
        return tuple(self._below(root, ()))

    def _below(self, node: Any, prefix: tuple[int, ...]) -> Iterator[TreeNode]:
        for child in node.children.values():
            tokens = (*prefix, *child.key.token_ids)
            kinds, salt = self.engine.m.components.ComponentType, child.key.cache_salt or ""
            if self.engine.options.core == "plain":
                yield TreeNode(salt, tokens, tuple(child.value.tolist()))
            else:
                full, window, state = (
                    None if (data := child.component_data[kind]) is None else data.value
                    for kind in (kinds.FULL, kinds.SWA, kinds.MAMBA)
                )
                copy = child.component_data[kinds.FULL].host_value
                yield TreeNode(
                    salt,
                    tokens,
                    () if full is None else tuple(full.tolist()),
                    None if window is None else tuple(window.tolist()),
                    None if state is None else int(state[0]),
                    None if copy is None else tuple(copy.tolist()),
                )
            yield from self._below(child, tokens)

    def reset(self) -> None:
        if any(held.req.kv.holds_kv for held in self.requests.values()):
            raise InvalidArgumentError("reset", "with running requests", "called when none runs")
        with self.engine.active():
            self.engine.tree.reset()
            self.engine.rows.clear()
            self.engine.slots.clear()

    def _held(self, request_id: str) -> Held:
        if request_id not in self.requests:
            raise InvalidArgumentError("request_id", request_id, "a request that has arrived")
        return self.requests[request_id]

    def _waiting(self, request_id: str) -> Held:
        held = self._held(request_id)
        if held.req.kv.holds_kv:
            raise InvalidArgumentError("request_id", request_id, "waiting")
        return held

    def _running(self, request_id: str) -> Held:
        held = self._held(request_id)
        if not held.req.kv.holds_kv:
            raise InvalidArgumentError("request_id", request_id, "running")
        return held
