"""Operations of every group on its block lists (KV-GRP-*); a subclass adds what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvref.block_pool import BlockPool
from kvref.events import EventLog
from kvref.hashing import hash_of_block, make_key
from kvref.request import ReferenceRequest
from kvspec.blocks import NULL_BLOCK
from kvspec.domains import exact
from kvspec.snapshot import MambaState, RequestState
from kvspec.specs import LayerSpec


@dataclass(frozen=True)
class GroupContext:
    """The part of the configuration that a group uses.

    `block_size_tokens`: tokens a block covers, including context parallelism (KV-FULL-5).
    `drops_eagle_block`: hits of this group drop their last block. `is_zeroed`: its new blocks are
    queued for zeroing.
    """

    index: int
    spec: LayerSpec
    block_size_tokens: int
    hash_block_size_tokens: int
    alignment_tokens: int
    drops_eagle_block: bool
    max_model_len_tokens: int
    max_num_batched_tokens: int
    retention_interval_tokens: int | None
    null_prefix_is_hit: bool
    is_zeroed: bool = False
    keeps_leading_nulls: bool = True
    counts_common_prefix: bool = True
    has_partial_tails: bool = False
    eagle_looks_beyond: bool = False
    replays_before_drop: bool = False
    drafts_hold_states: bool = True
    checkpoints_return: bool = False
    some_group_drops: bool = False
    num_last_tokens: int = 1
    replay_block_tokens: int = 0


@dataclass(frozen=True)
class Demand:
    """The demand of one allocation on every group.

    - `num_slots_tokens`: tokens that must have slots; `num_main_tokens`: the same without lookahead
      and without the limit of the longest sequence.
    - `num_local_tokens` computed or hit here, `num_external_tokens` brought by another store now.
    - `skip_at_tokens`: the number of computed tokens that windows are computed from.
    - `apply_admission_cap`: count windowed groups with the most they hold at once.
    - `num_known_tokens`: of the main ones, those that are not drafts; `prefill_end_tokens`: where
      the last chunk of the prompt ends, both if hits may end inside a block; `priority`: its own.
    """

    num_slots_tokens: int
    num_main_tokens: int
    num_local_tokens: int
    num_external_tokens: int
    skip_at_tokens: int
    num_encoder_tokens: int = 0
    apply_admission_cap: bool = False
    num_known_tokens: int = 0
    prefill_end_tokens: int = 0
    priority: int = 0

    @property
    def num_computed_tokens(self) -> int:
        """Local and external tokens together."""
        return self.num_local_tokens + self.num_external_tokens


@dataclass(frozen=True)
class LookUp:
    """A look-up in all groups of `members` at once.

    The hit is a multiple of `alignment_tokens`, at most `max_length_tokens`, and drops its last
    block with `drop_last_block`.
    """

    hashes: Sequence[bytes]
    max_length_tokens: int
    members: Sequence[int]
    drop_last_block: bool
    alignment_tokens: int


def cdiv(a: int, b: int) -> int:
    """Divide and round up."""
    return -(-a // b)


def replay_boundary(request: ReferenceRequest, alignment_tokens: int) -> int:
    """Return where a replay of the prompt hits at most; it recomputes its end (KV-RET-4)."""
    length = max(request.num_prompt_tokens - request.num_last_tokens, 0)
    return length // alignment_tokens * alignment_tokens


class Group:
    """The block lists of one group.

    - `block_lists[r]`: the blocks of request r, in token order (KV-GRP-1).
    - `num_cached[r]`: the number of its leading blocks passed to the cache; no entry before the
      request takes hits or has a full block cached.
    - `new_block_ids`: blocks queued for zeroing.
    - `pending_copies`: (source, destination) of copies not yet taken (KV-INSIDE-4).

    Invariants: nulls_come_first, cached_counts_fit_the_lists, keys_are_well_formed,
    cached_blocks_belong_to_their_group, keys_of_one_place, a_list_only_grows_or_turns_null,
    states_stay_or_move_to_the_end.
    """

    def __init__(self, context: GroupContext, pool: BlockPool, events: EventLog) -> None:
        self.index = context.index
        self.spec = context.spec
        self.block_size = context.block_size_tokens
        self.hashes_per_block = max(1, self.block_size // context.hash_block_size_tokens)
        self.drops_eagle_block = context.drops_eagle_block
        self.context = context
        self.pool = pool
        self.events = events
        self.block_lists: dict[str, list[int]] = {}
        self.num_cached: dict[str, int] = {}
        self.new_block_ids: list[int] = []
        self.pending_copies: list[tuple[int, int]] = []

    hits_end_inside = False
    """Whether a hit may end inside a block of this group (KV-INSIDE-1)."""
    is_full = False
    """True for full attention: every shorter prefix of a hit is also a hit."""
    is_mamba = False
    """States: a look-up neither looks further nor drops (KV-COORD-8)."""

    has_null_gaps = False
    """Whether a list may have a block before a null one (align-mode Mamba)."""

    covers_sequence = True
    """Whether the blocks hold all tokens of the request; those of cross attention do not."""

    is_cacheable = True
    """Whether the group takes part in prefix caching (KV-COORD-14)."""

    # The methods that depend on the attention type.

    def num_skipped_tokens(self, num_computed_tokens: int) -> int:
        """Count the leading tokens that no later token attends to: s(c) (KV-FULL-1, KV-CIRC-2)."""
        return 0

    def num_unread_tokens(self, num_computed_tokens: int) -> int:
        """Return how many skipped tokens may be null in a hit: all but retained ones (KV-SW-9)."""
        return self.num_skipped_tokens(num_computed_tokens)

    def first_read_index(self, request: ReferenceRequest) -> int:
        """Return the entry with the first token that the next one reads (KV-REQ-9)."""
        return self.num_unread_tokens(request.num_computed_tokens) // self.block_size

    def longest_hit(self, asked: LookUp) -> list[list[int]]:
        """Return the longest hit, a list per member; by default none (KV-CROSS-3, KV-COORD-14)."""
        return [[] for _ in asked.members]

    def longest_hit_within(self, asked: LookUp) -> tuple[list[list[int]], int]:
        """Return the longest hit and its length in tokens, which may end inside a block."""
        lists = self.longest_hit(asked)
        return lists, len(lists[0]) * self.block_size

    def num_common_prefix_blocks(self, request_id: str) -> int:
        """Count leading blocks that all requests share; only full attention has any."""
        return 0

    def max_admission_blocks(self) -> int | None:
        """Return the most blocks a request holds at once, if fewer than all it ever had."""
        return None

    def is_worth_caching(self, block_index: int, request: ReferenceRequest) -> bool:
        """Return whether a later look-up could use this block; windowed groups exclude some."""
        return True

    # The methods common to all types.

    def retained_places(self, request: ReferenceRequest) -> list[int]:
        """Return the ends of hits that retention keeps, besides the replay boundary (KV-RET-7)."""
        alignment = self.context.alignment_tokens
        places: list[int] = []
        junction = exact(request.junction_tokens)
        if junction > 0:
            places.append(junction)
            if self.drops_eagle_block:
                places.append(junction - self.block_size)
        if self.context.replays_before_drop:  # KV-POL-20
            block = self.context.replay_block_tokens or alignment
            places.append(max(replay_boundary(request, block) - block, 0))
            places.append(max(request.num_prompt_tokens // block * block - block, 0))
        return [place // alignment * alignment for place in places]

    def has_boundary(self, block: int, request: ReferenceRequest, num_tokens: int) -> bool:
        """Return whether a hit of `num_tokens` tokens may end inside this block (KV-INSIDE-18)."""
        return False

    def blocks_of(self, request_id: str) -> tuple[int, ...]:
        """Return the request's block list; empty if it holds nothing."""
        return tuple(self.block_lists.get(request_id, ()))

    def has_entry(self, request_id: str) -> bool:
        """Return whether the request took hits here or had a full block cached (KV-GRP-1)."""
        return request_id in self.num_cached

    def find_in_all(self, asked: LookUp, block_index: int) -> list[int] | None:
        """Return the cached block of every member group, or None: a hit needs the block in all."""
        return self.find_hash(
            asked, hash_of_block(asked.hashes, block_index, self.hashes_per_block)
        )

    def find_hash(self, asked: LookUp, block_hash: bytes) -> list[int] | None:
        """Return the block with this hash for every member group, or None if one lacks it."""
        found = [self.pool.find(make_key(block_hash, member)) for member in asked.members]
        blocks = [block for block in found if block is not None]
        return blocks if len(blocks) == len(found) else None

    def num_blocks_needed(self, request_id: str, hits: Sequence[int], demand: Demand) -> int:
        """Free blocks it takes to give the request the slots it asks for."""
        required = cdiv(demand.num_slots_tokens, self.block_size)
        cap = self.max_admission_blocks()
        if demand.apply_admission_cap and cap is not None:
            required = min(required, cap)
        held = len(self.blocks_of(request_id))
        if self.has_entry(request_id):  # KV-GRP-3
            return max(required - held, 0)
        skipped = self.num_skipped_tokens(demand.skip_at_tokens) // self.block_size
        new = max(required - max(skipped, len(hits) + held), 0)
        return new + self.num_revived(hits[max(0, skipped - held) :])  # KV-GRP-4

    def num_revived(self, hits: Sequence[int]) -> int:
        """Count the hits in the free queue: taking them also uses up free blocks."""
        return sum(1 for block in hits if self.pool.is_free(block))

    def take_hits(self, request_id: str, hits: Sequence[int], demand: Demand) -> None:
        """Start the request's list with its hits; skipped ones become null (KV-GRP-5)."""
        skipped = self.num_skipped_tokens(demand.skip_at_tokens) // self.block_size
        taken = list(hits[skipped:])
        self.pool.use(taken, demand.priority)
        self.pool.touch(taken)
        self.block_lists[request_id] = [NULL_BLOCK] * skipped + taken
        self.num_cached[request_id] = skipped + len(taken)

    def allocate_external(self, request_id: str, demand: Demand) -> None:
        """Take blocks for tokens that another store brings, if the window has any (KV-GRP-6)."""
        if self.num_skipped_tokens(demand.skip_at_tokens) < demand.num_computed_tokens:
            self.extend(request_id, cdiv(demand.num_computed_tokens, self.block_size))

    def allocate_new(self, request_id: str, demand: Demand) -> list[int]:
        """Take the blocks still missing for the slots asked for (KV-GRP-7)."""
        return self.extend(request_id, cdiv(demand.num_slots_tokens, self.block_size))

    def extend(self, request_id: str, num_blocks: int) -> list[int]:
        """Make the list `num_blocks` long, if it is shorter; the blocks taken."""
        missing = num_blocks - len(self.blocks_of(request_id))
        if missing <= 0:
            return []
        taken = self.pool.allocate(missing)
        self.block_lists.setdefault(request_id, []).extend(taken)
        if self.context.is_zeroed:  # KV-GRP-10
            self.new_block_ids.extend(taken)
        return taken

    def cache_blocks(self, request: ReferenceRequest, num_tokens: int) -> None:
        """Register the full blocks among the first tokens that were not yet (KV-GRP-11)."""
        first = self.num_cached.get(request.request_id, 0)
        told = self.first_told(request.request_id, first)
        end = min(num_tokens, request.num_hashed_tokens) // self.block_size
        if told >= end:
            return
        blocks = self.blocks_of(request.request_id)
        stored: list[int] = []
        hashes: list[bytes] = []
        for index in range(first, end):
            if blocks[index] == NULL_BLOCK or not self.is_worth_caching(index, request):
                continue
            block_hash = hash_of_block(request.block_hashes, index, self.hashes_per_block)
            key = make_key(block_hash, self.index)
            self.pool.begin(blocks[index], request.input.priority)
            self.pool.register(blocks[index], key, (index + 1) * self.block_size)
            stored.append(index)
            hashes.append(block_hash)
        self.num_cached[request.request_id] = max(first, end)
        parent = None
        if told > 0:
            parent = hash_of_block(request.block_hashes, told - 1, self.hashes_per_block)
        self.events.stored(
            request,
            group=self.index,
            spec=self.spec,
            block_size_tokens=self.block_size,
            first_block=told,
            end_block=end,
            stored_blocks=stored,
            hashes=hashes,
            parent_hash=parent,
        )

    def first_told(self, request_id: str, num_cached: int) -> int:
        """Return the first block of a Stored event's range (KV-EVT-2)."""
        return num_cached

    def cache_partial_block(
        self, request: ReferenceRequest, num_tokens: int, entry: int | None = None
    ) -> bool:
        """Add a key for the first `num_tokens` tokens, which end in a block (KV-PART-1).

        `entry`: where that block is listed, if not where they end (KV-INSIDE-12).
        """
        entry = cdiv(num_tokens, self.block_size) - 1 if entry is None else entry
        block = self.blocks_of(request.request_id)[entry]
        if block == NULL_BLOCK:
            return False
        hash_size = self.block_size // self.hashes_per_block
        number = num_tokens // hash_size - 1
        block_hash = request.block_hashes[number]
        self.pool.begin(block, request.input.priority)
        if self.pool.register_partial(block, make_key(block_hash, self.index), num_tokens):
            self.events.stored(  # KV-PART-4
                request,
                group=self.index,
                spec=self.spec,
                block_size_tokens=hash_size,
                first_block=number,
                end_block=number + 1,
                stored_blocks=[number],
                hashes=[block_hash],
                parent_hash=request.block_hashes[number - 1] if number > 0 else None,
            )
        return True

    def new_step_starts(self) -> None:
        """Note the start of a step; only Mamba groups keep something until then."""

    def keys_of_step(self) -> frozenset[bytes]:
        """Return keys usable from the next step on; only states have them (KV-MAMBA-2)."""
        return frozenset()

    def mamba_state(self, request_id: str) -> MambaState | None:
        """Return the state of a request besides its blocks; only mode align has one."""
        return None

    def remove_skipped_blocks(self, request_id: str, num_computed_tokens: int) -> None:
        """Replace blocks wholly before s(c) by null; release them, last first (KV-GRP-2)."""
        skipped = self.num_skipped_tokens(num_computed_tokens) // self.block_size
        self.remove_blocks(request_id, 0, skipped)

    def remove_blocks(self, request_id: str, first: int, end: int) -> None:
        """Replace blocks `first` … `end - 1` by null; release them, last first."""
        blocks = self.block_lists.get(request_id, [])
        removed: list[int] = []
        for index in reversed(range(first, min(end, len(blocks)))):
            if blocks[index] == NULL_BLOCK:
                if self.has_null_gaps:
                    continue
                break  # everything before was removed earlier
            removed.append(blocks[index])
            blocks[index] = NULL_BLOCK
        self.pool.release(removed)

    def remove_gap(self, request_id: str, num_computed_tokens: int, num_prompt_tokens: int) -> None:
        """Release blocks between prompt and window; only R-SWA has such a gap (KV-RSWA-1)."""

    def pop(self, request_id: str) -> list[int]:
        """Forget the request; its blocks keep their references."""
        self.num_cached.pop(request_id, None)
        return self.block_lists.pop(request_id, [])

    def take_copies(self) -> list[tuple[int, int]]:
        """Return the copies requested since the last call (KV-INSIDE-4)."""
        taken = self.pending_copies
        self.pending_copies = []
        return taken

    def take_new_block_ids(self) -> list[int]:
        """Return and clear the blocks queued for zeroing."""
        taken = self.new_block_ids
        self.new_block_ids = []
        return taken

    # Restoring.

    def restore_request(self, request_id: str, state: RequestState) -> None:
        """Set the request's lists and counts from a snapshot."""
        if state.block_ids[self.index]:
            self.block_lists[request_id] = list(state.block_ids[self.index])
        num_cached = state.num_cached_blocks[self.index]
        if num_cached is not None:
            self.num_cached[request_id] = num_cached

    def restore_step(self, keys: frozenset[bytes]) -> None:
        """Set the keys of `keys_of_step`."""
