"""Requests whose tokens and hashes the engine keeps (KV-REQ-6 … KV-REQ-8, KV-BATCH-14)."""

from __future__ import annotations

from collections.abc import Sequence

from kvspec.batched import Ints
from kvspec.checks import batch as contract
from kvspec.config import ManagerConfig
from kvspec.errors import BusyError, InvalidArgumentError
from kvspec.following import FollowedInput, checked_counts, checked_hashes

from . import objects
from .entries import Entries
from .hashing import Hasher
from .request import FastRequest
from .turn import Turn


def make_followed(given: FollowedInput, hasher: Hasher, hash_block_size_tokens: int) -> FastRequest:
    """Make a request whose tokens and hashes the engine keeps (KV-REQ-6)."""
    if not hasher.is_given:
        raise InvalidArgumentError("manager", hasher.function, "one that is given hashes")
    if not isinstance(given, FollowedInput):
        raise InvalidArgumentError("request", given, "a FollowedInput")
    request = FastRequest(given, hasher, hash_block_size_tokens)
    follow(request, given.num_tokens, given.hashes, given.num_prompt_tokens)
    return request


def follow_in(
    request: FastRequest,
    num_tokens: int,
    hashes: Sequence[bytes],
    num_prompt_tokens: int | None,
    taken: Turn,
) -> None:
    """Run `follow` in a call with this turn; the request may belong to another one's."""
    turn = request.turn
    if turn is taken or turn is None or turn.is_spoilt():
        follow(request, num_tokens, hashes, num_prompt_tokens)
    else:
        turn.take()
        try:
            follow(request, num_tokens, hashes, num_prompt_tokens)
        finally:
            turn.give_back()


def follow(
    request: FastRequest,
    num_tokens: int,
    hashes: Sequence[bytes],
    num_prompt_tokens: int | None,
) -> None:
    """Set the number of tokens, and append the hashes of newly full blocks."""
    tokens, prompt = checked_counts(num_tokens, num_prompt_tokens, request.num_prompt_tokens)
    num_missing = max(num_full(request, tokens) - request.num_hashes, 0)
    size = request.hasher.size
    new: list[bytes] = hashes if type(hashes) is list else []
    if len(new) != num_missing or not are_hashes(new, size):
        new = checked_hashes(hashes, num_missing, size)
    request.make_room_for_hashes(num_full(request, tokens))
    follow_to(request, tokens, prompt, new, 0)


def num_full(request: FastRequest, num_tokens: int) -> int:
    """Count the hashes of this many tokens; usually as many as before, without a division."""
    size = request.hash_block_size_tokens
    hashed = num_tokens - request.hasher.ahead
    beyond = hashed - request.num_hashes * size
    if 0 <= beyond < size or size == 0:
        return request.num_hashes
    return max(hashed, 0) // size


def follow_to(
    request: FastRequest, num_tokens: int, num_prompt_tokens: int, hashes: list[bytes], at: int
) -> int:
    """Take the missing hashes from `hashes[at]` on, or drop surplus ones; return where they end.

    There is room for them, and they are of the right length.
    """
    full = num_full(request, num_tokens)
    if full > request.num_hashes:
        size = request.hasher.size
        made = objects.bytes_at(request.digest_words)
        for number in range(request.num_hashes, full):
            data = hashes[at]
            for i in range(size):
                made[number * size + i] = data[i]
            at += 1
    request.num_hashes = full
    request.num_tokens = num_tokens
    request.num_prompt_tokens = num_prompt_tokens
    return at


# Many at once.


def read_follow(
    entries: Entries,
    config: ManagerConfig,
    num_tokens: Ints | int,
    hashes: Sequence[bytes],
    num_prompt_tokens: Ints | int | None,
) -> tuple[list[bytes], list[int] | None]:
    """Read the hashes, and the prompts if they change, once all is legal and has room.

    The tokens are then `counts` of the entries.
    """
    new: list[bytes] = list(hashes) if type(hashes) is list else []
    is_plain = num_prompt_tokens is None and (type(hashes) is list or hashes == ())
    if is_plain and entries.set_counts(0, num_tokens, 1) and may_follow(entries, new):
        return new, None
    requests = [entries.request_at(i) for i in range(entries.size)]
    told = contract.follows_of(requests, num_tokens, num_prompt_tokens, hashes, config)
    entries.set_counts(0, [each.num_tokens for each in told], 1)
    for i in range(entries.size):
        make_room(entries.request_at(i), entries.counts[i])
    new = [block_hash for each in told for block_hash in each.hashes]
    return new, [each.num_prompt_tokens for each in told]


def may_follow(entries: Entries, new: list[bytes]) -> bool:
    """Return whether counts and hashes are legal; if so, make room for the hashes."""
    wanted = size = 0
    for i in range(entries.size):
        request = entries.request_at(i)
        if entries.counts[i] < request.num_prompt_tokens:
            return False
        size = request.hasher.size
        wanted += max(num_full(request, entries.counts[i]) - request.num_hashes, 0)
        if wanted > len(new):  # there may be no room for them at all
            return False
        make_room(request, entries.counts[i])
    return wanted == len(new) and are_hashes(new, size)


def are_hashes(given: list[bytes], size: int) -> bool:
    """Return whether all are of the right length."""
    num_right = 0
    for each in given:
        if type(each) is bytes and len(each) == size:
            num_right += 1
    return num_right == len(given)


def make_room(request: FastRequest, num_tokens: int) -> None:
    """Make room for the hashes of this many tokens."""
    if request.is_used:
        raise BusyError("request", request.request_id)
    full = num_full(request, num_tokens)
    if full > request.room_hashes:
        request.make_room_for_hashes(full)


def follow_all(entries: Entries, hashes: list[bytes], prompts: list[int] | None) -> None:
    """Apply what `read_follow` returned."""
    at = 0
    for i in range(entries.size):
        request = entries.request_at(i)
        prompt = request.num_prompt_tokens if prompts is None else prompts[i]
        at = follow_to(request, entries.counts[i], prompt, hashes, at)
