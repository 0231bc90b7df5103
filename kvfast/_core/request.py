"""A request: its tokens and the hashes of its full blocks (KV-REQ-*).

Both lie in flat arrays that grow by being replaced, so views that others hold stay valid. Hash k:
`digest_words[k·words : (k+1)·words]`, in words of 64 bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from kvspec.domains import exact, is_int
from kvspec.errors import BusyError, InvalidArgumentError, UnsupportedError
from kvspec.following import FollowedInput
from kvspec.request import RequestInput, RequestStatus, check_token_ids, token_list

from . import hot, objects, token_copy
from .arrays import int_view
from .extra_keys import has_extra_keys, runs, tagged
from .hashing import Hasher, HashJob, encode_extra_keys
from .turn import Turn
from .views import BlockHashes, TokenIds

COUNT_BITS = 53
RUNNING, WAITING = RequestStatus.RUNNING, RequestStatus.WAITING
KEPT_MESSAGE_BYTES = 16384  # A larger buffer is not kept for the next call.
UNLOCKED_TOKENS = 1024  # From this number on, some microseconds, other threads may run meanwhile.


class FastRequest:
    """A request (`kvspec.request.Request`).

    `hash_block_size_tokens` is 0 when caching is off: then there are no hashes. `row` is where a
    manager notes the request's place; it checks whether that is still valid.

    Its two hot fields (see `hot`) begin at `fields[field_at]`: in the array of `holder`, or, if
    that is None, after its tokens. `turn`: that of the manager it is registered with. `is_used`: a
    call uses or changes it now. `is_followed`: the engine keeps its tokens (see `following`).
    `preemptions`, `junction`, `in_flight`: -1 while the assigned value is no count (then it is in
    `odd`). `state`: the assigned status. `is_made`: whether `__init__` ran.
    """

    def __init__(
        self, request_input: RequestInput | FollowedInput, hasher: Hasher, hash_block_size: int
    ) -> None:
        name = request_input.request_id
        if self.is_ready() or type(name) is not str or hasher is None:
            raise InvalidArgumentError("request", name, "one that make_request makes")
        self.hasher = hasher
        self.hasher.check_made()
        self.input: RequestInput = request_input  # type: ignore[assignment]  # no content if followed
        self.request_id = name
        self.skips_reading = request_input.skip_reading_cache
        self.priority = request_input.priority
        self.hash_block_size_tokens = hash_block_size
        self.preemptions = self.junction = self.in_flight = 0
        self.odd: dict[str, int] | None = None
        self.state: RequestStatus = WAITING
        self.running = RUNNING
        self.holder: object = None
        self.turn: Turn | None = None
        self.is_used = False
        self.field_at = 0
        self.row = -1
        self.num_tokens = self.num_hashes = self.num_prompt_tokens = 0
        self.is_followed = False
        self.has_extra_keys = False
        self.room_tokens = self.room_hashes = 0
        if isinstance(request_input, FollowedInput):  # `following.make_followed` continues
            self.is_followed = True
            self.make_room(0)
        else:
            self.has_extra_keys = has_extra_keys(request_input)
            self.grow_to(self.copy_tokens(request_input.prompt_token_ids, "prompt_token_ids"))
            self.num_prompt_tokens = self.num_tokens
        self.make_room_for_hashes(1)  # views are never without memory
        self.is_made = True

    def is_ready(self) -> bool:
        """Return whether `__init__` ran: after `__new__` alone there is no memory."""
        try:
            return self.is_made
        except AttributeError:  # uncompiled
            return False

    def check_made(self) -> None:
        """Raise for a request that no `make_request` made (KV-ERR-2)."""
        if not self.is_ready():
            raise InvalidArgumentError("request", None, "made by make_request")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        """Refuse: a copy would share the tokens but not their number (KV-MGR-20)."""
        raise UnsupportedError("copying or pickling a request", "kvfast")

    # Set by the scheduler: any object can be assigned; the next call that reads it checks it.

    @property
    def num_computed_tokens(self) -> int:
        """Tokens whose KV is in the cache (KV-REQ-3)."""
        self.check_made()
        return self.told("num_computed_tokens", self.fields[self.field_at + hot.COMPUTED])

    @num_computed_tokens.setter
    def num_computed_tokens(self, value: int) -> None:
        computed = self.noted("num_computed_tokens", value)
        self.fields[self.field_at + hot.COMPUTED] = computed

    @property
    def num_preemptions(self) -> int:
        """Number of times the request was preempted (KV-STAT-2)."""
        return self.told("num_preemptions", self.preemptions)

    @num_preemptions.setter
    def num_preemptions(self, value: int) -> None:
        self.preemptions = self.noted("num_preemptions", value)
        self.set_status(self.state)

    @property
    def junction_tokens(self) -> int:
        """End of a longer prefix that some groups had cached at its look-up (KV-RET-7)."""
        return self.told("junction_tokens", self.junction)

    @junction_tokens.setter
    def junction_tokens(self, value: int) -> None:
        self.junction = self.noted("junction_tokens", value)
        self.set_status(self.state)

    @property
    def num_in_flight_tokens(self) -> int:
        """Computed tokens whose output was not processed (KV-MGR-21)."""
        return self.told("num_in_flight_tokens", self.in_flight)

    @num_in_flight_tokens.setter
    def num_in_flight_tokens(self, value: int) -> None:
        self.in_flight = self.noted("num_in_flight_tokens", value)
        self.set_status(self.state)

    def noted(self, name: str, value: int) -> int:
        """Return the assigned value, or -1 if it is no count; then it is kept for display."""
        self.hold_off()
        count = count_of(value)
        if count < 0:
            self.odd = {**(self.odd or {}), name: value}
        return count

    def told(self, name: str, count: int) -> int:
        """Return the assigned value, count or not."""
        return self.odd[name] if count < 0 and self.odd else count

    @property
    def status(self) -> RequestStatus:
        """Status of the request in its scheduler."""
        return self.state

    @status.setter
    def status(self, value: RequestStatus) -> None:
        self.hold_off()
        if type(value) is not RequestStatus and issubclass(type(value), str):
            value = str.__str__(value)  # type: ignore[assignment]  # what it stores
        self.set_status(value)

    def hold_off(self) -> None:
        """Raise BusyError while a call uses the request, or its manager."""
        self.check_made()
        if self.is_used:
            raise BusyError("request", self.request_id)
        if self.turn is not None and not self.turn.is_spoilt():
            self.turn.take()
            self.turn.give_back()

    def set_status(self, value: RequestStatus) -> None:
        """Note the status and whether it is RUNNING, with legal counts."""
        self.state = value
        is_running = value is self.running and self.has_legal_counts()
        self.fields[self.field_at + hot.RUNS] = 1 if is_running else 0

    def look_again(self) -> None:
        """Have the next step look at its block list, which a single call made longer."""
        self.fields[self.field_at + hot.RUNS] = min(self.fields[self.field_at + hot.RUNS], 1)

    def has_legal_counts(self) -> bool:
        """Return whether preemptions, junction and tokens in flight are counts."""
        return self.preemptions >= 0 and self.junction >= 0 and self.in_flight >= 0

    def computed_now(self) -> int:
        """Return the computed tokens; -1 while the assigned value is no count."""
        return self.fields[self.field_at + hot.COMPUTED]

    def set_computed(self, num_tokens: int) -> None:
        """Set the computed tokens to a count."""
        self.fields[self.field_at + hot.COMPUTED] = num_tokens

    def hold(self, holder: object, turn: Turn | None, fields: memoryview[int], at: int) -> None:
        """Move its hot fields to this array, with the turn of the array's reader."""
        computed = self.fields[self.field_at + hot.COMPUTED]
        self.fields[self.field_at + hot.RUNS] = 0  # readers of these use it from now on
        self.holder = holder
        self.turn = turn
        self.fields: memoryview[int] = fields
        self.field_at = at
        fields[at + hot.COMPUTED] = computed
        self.set_status(self.state)

    def let_go(self) -> None:
        """Let its hot fields be its own."""
        self.hold(None, None, self.tokens, self.room_tokens)

    @property
    def token_ids(self) -> Sequence[int]:
        """All tokens, as a view that grows with the request; its slices are lists."""
        return () if self.is_followed else TokenIds(self)

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """The hashes, as a view that grows with the request; its slices are lists (KV-HASH-4)."""
        return BlockHashes(self)

    def append(self, token_ids: Sequence[int]) -> None:
        """Append tokens and hash the blocks they complete (KV-REQ-2)."""
        self.append_in(token_ids, None)

    def append_in(self, token_ids: Sequence[int], taken: Turn | None) -> None:
        """Append in a call that has this turn."""
        turn = self.turn
        if turn is taken or turn is None or turn.is_spoilt():
            self.append_now(token_ids)
        else:
            turn.take()
            try:
                self.append_now(token_ids)
            finally:
                turn.give_back()

    def append_now(self, token_ids: Sequence[int]) -> None:
        """Append alone: long hashing lets other threads run."""
        self.check_made()
        if self.is_used:
            raise BusyError("request", self.request_id)
        if self.is_followed:
            raise InvalidArgumentError("request", self.request_id, "one with tokens of its own")
        self.is_used = True
        try:
            self.grow_to(self.num_tokens + self.copy_tokens(token_ids, "token_ids"))
        finally:
            self.is_used = False

    def reserve(self, count: int) -> None:
        """See to it that appending `count` tokens finds room for them and their hashes."""
        if self.is_used:
            raise BusyError("request", self.request_id)
        self.make_room(count)
        size = self.hash_block_size_tokens
        if size > 0:
            self.make_room_for_hashes((self.num_tokens + count) // size)

    def append_longs(self, values: memoryview[int], start: int, count: int) -> None:
        """Append `count` tokens, which are legal, from `values[start]` on (KV-REQ-2)."""
        self.make_room(count)
        for i in range(count):
            self.tokens[self.num_tokens + i] = values[start + i]
        self.grow_to(self.num_tokens + count)

    def grow_to(self, num_tokens: int) -> None:
        """Count the tokens up to here, which are written, and hash the blocks they complete."""
        size = self.hash_block_size_tokens
        hashed = num_tokens - self.hasher.ahead
        if size > 0 and hashed >= (self.num_hashes + 1) * size:
            self.hash_until(hashed // size)
        self.num_tokens = num_tokens

    def copy_tokens(self, token_ids: Sequence[int], field: str) -> int:
        """Write tokens after the last one, where they don't count yet; returns their number."""
        is_list = type(token_ids) is list
        view = None if is_list else int_view(token_ids)
        if view is not None:
            return self.copy_view(view, field)
        values: list[int] = token_ids if is_list else token_list(token_ids, field=field)  # type: ignore[assignment]  # a list
        count = len(values)
        self.make_room(count)
        if token_copy.put_list(self.tokens, self.num_tokens, values, count) != count:
            check_token_ids(values, field=field)
            raise InvalidArgumentError(field, values, "a sequence that is left as it is")
        return count

    def copy_view(self, view: memoryview[int], field: str) -> int:
        """Run `copy_tokens` for an array of 32 or 64 bits."""
        count = len(view)
        self.make_room(count)
        if view.itemsize == 4:
            copied = token_copy.put_ints(self.tokens, self.num_tokens, view)
        else:
            copied = token_copy.put_longs(self.tokens, self.num_tokens, view)
        if copied != count:
            check_token_ids(view.tolist(), field=field)
            raise InvalidArgumentError(field, view, "an array that is left as it is")
        return count

    def make_room(self, count: int) -> None:
        """See to it that `count` more tokens fit, and that there is memory."""
        needed = self.num_tokens + count
        if needed <= self.room_tokens and self.room_tokens > 0:
            return
        room = needed + needed // 4 + 32
        tokens = objects.longs(room + hot.NUM_OWN)
        if self.num_tokens:
            tokens[: self.num_tokens] = self.tokens[: self.num_tokens]
        had_some = self.room_tokens > 0
        self.tokens: memoryview[int] = tokens
        self.room_tokens = room
        if not had_some:
            self.fields = self.tokens
            self.field_at = room
            self.fields[room + hot.COMPUTED] = self.fields[room + hot.RUNS] = 0
        elif self.holder is None:
            self.let_go()

    def make_room_for_hashes(self, needed: int) -> None:
        """See to it that `needed` hashes fit."""
        if needed <= self.room_hashes:
            return
        room = needed + needed // 4 + 2
        memory = objects.word_array(self.hasher.words_per_digest * room)
        words = objects.words_of(memory)
        used = self.num_hashes * self.hasher.size
        if used:
            made = objects.bytes_at(self.digest_words)
            objects.copy_bytes(objects.bytes_at(words), 0, made, 0, used)
        self.digest_memory = memory
        self.digest_words: memoryview[int] = words
        self.room_hashes = room

    def hash_until(self, end: int) -> None:
        """Hash the blocks up to `end`, whose tokens exist (KV-HASH-4)."""
        self.make_room_for_hashes(end)
        if self.has_extra_keys:
            size = self.hash_block_size_tokens
            done = self.num_hashes
            for first, until, keys in runs(self.input, size, done, end, self.hasher.ahead):
                if first != done or until <= first or until > end:  # items of a separate class
                    raise InvalidArgumentError("multimodal", (first, until), "items that stay")
                spelled = tagged(self.input, keys) if self.hasher.tags else keys
                self.hash_run(first, until, memoryview(encode_extra_keys(spelled)))
                done = until
        else:
            self.hash_run(self.num_hashes, end, self.hasher.no_extra)
        self.num_hashes = end

    def hash_run(self, first: int, end: int, extra: memoryview[int]) -> None:
        """Hash blocks with the same extra keys."""
        size = self.hash_block_size_tokens
        message = self.hasher.take_message(self.hasher.message_bytes(size, len(extra)))
        tokens = objects.longs_of(self.tokens)
        digests = objects.bytes_at(self.digest_words)
        keys = objects.read_bytes_of(extra)
        data = objects.bytes_of(message.data)
        if (end - first) * size < UNLOCKED_TOKENS:
            self.hasher.hash_blocks(tokens, first, end, size, digests, keys, len(extra), data)
        else:
            job = HashJob()
            job.hasher = self.hasher
            job.prepare(tokens, first, end, size, digests, keys, len(extra), data)
            job.call()
        if message.size_bytes <= KEPT_MESSAGE_BYTES:
            self.hasher.messages.append(message)

    def tokens_between(self, start: int, stop: int) -> list[int]:
        """Return the tokens `start` … `stop - 1`, which must exist."""
        if self.is_followed or start < 0 or stop > self.num_tokens:
            raise InvalidArgumentError("tokens", (start, stop), f"in 0 … {self.num_tokens}")
        return [self.tokens[i] for i in range(start, stop)]

    def hash_at(self, number: int) -> bytes:
        """Return hash `number`, which must exist."""
        if number < 0 or number >= self.num_hashes:
            raise InvalidArgumentError("hash", number, f"below {self.num_hashes}")
        digests = objects.bytes_at(self.digest_words)
        return objects.pieces_of(digests, self.hasher.size, number, number + 1)[0]


def make_request(
    request_input: RequestInput, hasher: Hasher, hash_block_size_tokens: int
) -> FastRequest:
    """Make a request with its prompt's hashes; block size 0: without hashes (KV-HASH-4)."""
    if hasher.is_given:
        raise InvalidArgumentError("manager", hasher.function, "one that hashes")
    if not isinstance(request_input, RequestInput):
        raise InvalidArgumentError("request", request_input, "a RequestInput")
    return FastRequest(request_input, hasher, hash_block_size_tokens)


def count_of(value: object) -> int:
    """Return the value if it is a count (KV-ERR-6), else -1."""
    if type(value) is not int:
        value = exact(value) if is_int(value) else -1
    try:
        count: int = value
    except OverflowError:  # compiled, `count` has 64 bits
        return -1
    return count if count >> COUNT_BITS == 0 else -1
