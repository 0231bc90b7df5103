"""KV-HASH: every expected value is a constant of the rule, or computed with hashlib and `cbor`."""

from __future__ import annotations

import hashlib

from kvcheck.rules.bench import Bench
from kvcheck.rules.digests import HASH_0, HASH_1, NONE_HASH, encode, hashes_of, sha256
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.specs import full, sliding

# Both sides of each length at which the encoding of an int grows, and the ends of the range.
BOUNDARIES = (0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1)


# The encoder that the expected values come from.


@example("KV-HASH-2")
def the_argument_of_the_first_hash_is_spelled_out(bench: Bench) -> None:
    """The example: an array of the parent, four tokens and null."""
    encoded = encode([bytes.fromhex(NONE_HASH), [1, 2, 3, 4], None])
    equal(encoded.hex(), "83" + "5820" + NONE_HASH + "8401020304" + "f6")
    equal(encode(65535).hex(), "19ffff")
    equal(encode(65536).hex(), "1a00010000")
    equal(encode(-3).hex(), "22")


# The chain.


@example("KV-HASH-1", "KV-HASH-2", "KV-HASH-7")
def the_hash_of_a_block_covers_its_parent_its_tokens_and_null(bench: Bench) -> None:
    equal(hashes_of(bench, range(1, 9)), [HASH_0, HASH_1])
    equal(sha256(bytes.fromhex(NONE_HASH), [1, 2, 3, 4]).hex(), HASH_0)
    equal(sha256(bytes.fromhex(HASH_0), [5, 6, 7, 8]).hex(), HASH_1)
    first, second, *_ = hashes_of(bench, [1, 2, 3, 4, 5, 6, 7, 9, 1, 1, 1, 1])
    equal(first, HASH_0)
    holds(second != HASH_1)


@cases(*BOUNDARIES)
@example("KV-HASH-2", "KV-REQ-1")
def tokens_are_encoded_in_their_shortest_form(bench: Bench, token: int) -> None:
    """A token at a length boundary enters the hash in 1, 2, 3, 5 or 9 bytes."""
    tokens = [token, 1, token, token]
    expected = sha256(bytes.fromhex(NONE_HASH), tokens).hex()
    equal(hashes_of(bench, tokens), [expected])


@cases(1, 23, 24, 255, 256, 65535, 65536)
@example("KV-HASH-2")
def the_array_of_tokens_has_the_shortest_length(bench: Bench, block_size: int) -> None:
    """Blocks of 24 and of 256 tokens need one and two more bytes for the array's length."""
    manager = bench.manager(6, block_size)
    tokens = [7] * block_size
    request = manager.request("r", tokens)
    equal(list(request.block_hashes), [sha256(bytes.fromhex(NONE_HASH), tokens)])


# NONE_HASH.


@example("KV-HASH-3")
def none_hash_is_the_hash_of_the_seed(bench: Bench) -> None:
    """The seed "0" is encoded as 61 30, and gives the value in the rule, whatever else is set."""
    equal(encode("0"), b"\x61\x30")
    for block_size in (4, 2):
        equal(bench.manager(9, block_size, hash_seed="0").none_hash.hex(), NONE_HASH)


@cases("", "a" * 24, "ключ", "\U0001f511")
@example("KV-HASH-3")
def any_text_is_a_seed(bench: Bench, seed: str) -> None:
    """The empty text counts as given, and texts beyond ASCII enter as UTF-8."""
    expected = hashlib.sha256(encode(seed)).digest()
    equal(bench.manager(hash_seed=seed).none_hash, expected)


@cases(("sha256_cbor", 32), ("sha256_cbor_64bit", 8), ("xxhash_cbor", 16))
@example("KV-HASH-3", choices=("none_hash_without_seed",))
def without_a_seed_every_manager_draws_its_own(bench: Bench, function: str, size: int) -> None:
    """Two managers without a seed have different parents, of the length of the hashes."""
    one, other = (
        bench.manager(hash_seed=None, hash_function=function, trusted_tenants=True)
        for _ in range(2)
    )
    holds(len(one.none_hash) == len(other.none_hash) == size)
    holds(one.none_hash != other.none_hash)
    equal(one.none_hash, one.none_hash)


# Which blocks have a hash, and which hash a block uses.


@cases((3, 0), (8, 2), (11, 2), (12, 3))
@example("KV-HASH-4")
def only_full_blocks_are_hashed(bench: Bench, num_tokens: int, num_hashes: int) -> None:
    """With 4 tokens per hash, 3 have none, 8 and 11 two, 12 three; also one token at a time."""
    found = hashes_of(bench, range(num_tokens))
    equal(len(found), num_hashes)
    manager = bench.manager(6)
    request = manager.request("r", [0])
    for token in range(1, num_tokens):
        manager.append(request, [token])
    equal([block_hash.hex() for block_hash in request.block_hashes], found)


@example("KV-HASH-4", "KV-COORD-1")
def without_caching_there_are_no_hashes(bench: Bench) -> None:
    """A request of a manager with caching off has no hashes, however long it is."""
    manager = bench.manager(enable_caching=False)
    equal(list(manager.request("r", range(100)).block_hashes), [])


@example("KV-HASH-5")
def a_block_of_eight_tokens_is_not_two_blocks_of_four(bench: Bench) -> None:
    """With 8 tokens per hash the value is that of eight tokens at once, not hash 1 of KV-HASH-1."""
    manager = bench.manager(6, 8)
    (block_hash,) = manager.request("r", range(1, 9)).block_hashes
    equal(block_hash.hex(), "1820e68bd0c9e035b0e61a7e00367421b4b441d9f5afb1146d3a588630ad14ca")


@example("KV-HASH-5", "KV-FULL-5")
def under_context_parallelism_the_span_is_hashed(bench: Bench) -> None:
    """A block of 2 slots on 2 ranks spans 4 tokens, and block i uses hash i."""
    manager = bench.manager(6, 2, dcp_world_size=2)
    request = manager.request("r", range(1, 10))
    equal([block_hash.hex() for block_hash in request.block_hashes], [HASH_0, HASH_1])
    manager.admit(request)
    keys = manager.snapshot().block_keys
    found = [key[:-4].hex() for block in manager.blocks(request) for key in keys[block]]
    equal(found, [HASH_0, HASH_1])


@example("KV-HASH-6", "KV-HASH-5")
def a_key_is_the_last_hash_inside_the_block_and_the_group(bench: Bench) -> None:
    """Groups of 4 and of 8 with 4 tokens per hash: block 0 of the second uses hash 1.

    One of 64 tokens, with a hash for each, uses hash 63.
    """
    manager = bench.manager(20, full(4), full(8), full(4, sliding_window=3), sliding(4, 30))
    request = manager.started("r", range(1, 10))
    equal([block_hash.hex() for block_hash in request.block_hashes], [HASH_0, HASH_1])
    keys = manager.snapshot().block_keys
    found = [[key.hex() for b in blocks for key in keys[b]] for blocks in manager.lists(request)]
    expected = [
        [HASH_0 + "00000000", HASH_1 + "00000000"],
        [HASH_1 + "00000001"],
        [HASH_0 + "00000002", HASH_1 + "00000002"],
        [HASH_0 + "00000003", HASH_1 + "00000003"],
    ]
    equal(found, expected)
    equal(len(manager.snapshot().lookup_order), 7)
    manager = bench.manager(70, full(1), full(64))
    request = manager.started("r", range(64))
    (found,) = [manager.snapshot().block_keys[block] for block in manager.lists(request)[1]]
    equal(len(found), 1 + bench.policy.full_partial_tails)
    equal(found[0].hex(), request.block_hashes[63].hex() + "00000001")


# The other functions.


@example("KV-HASH-11")
def the_64_bit_hashes_name_their_parent_as_an_int(bench: Bench) -> None:
    """The low 64 bits of the digest, over the parent as an unsigned int."""
    manager = bench.manager(hash_function="sha256_cbor_64bit", trusted_tenants=True)
    request = manager.request("r", range(1, 9))
    holds(manager.none_hash.hex() == "f8b55adff2e61c3e" == NONE_HASH[-16:])
    equal(int.from_bytes(manager.none_hash, "big"), 17921330210090130494)
    equal(
        [block_hash.hex() for block_hash in request.block_hashes],
        ["0b09a5c601439d9c", "0f3b310b01f9683b"],
    )
    argument = encode([17921330210090130494, [1, 2, 3, 4], None])
    equal(argument.hex(), "83" + "1bf8b55adff2e61c3e" + "8401020304" + "f6")
    equal(hashlib.sha256(argument).digest()[-8:].hex(), "0b09a5c601439d9c")
    manager.admit(request)
    equal(min(manager.snapshot().lookup_order).hex(), "0b09a5c601439d9c00000000")


@example("KV-HASH-12")
def xxhash_covers_the_same_encoding(bench: Bench) -> None:
    """XXH3-128 with seed 0, big-endian, over the parent as 16 bytes."""
    manager = bench.manager(hash_function="xxhash_cbor", trusted_tenants=True)
    request = manager.request("r", range(1, 9))
    equal(manager.none_hash.hex(), "1ebe36576dcb573f26b99533a20aaeca")
    hashes = [block_hash.hex() for block_hash in request.block_hashes]
    equal(hashes, ["0a8577df5ee3430515a8cc1f6e3ac52e", "d152782cb4d753bde718a811a3b75e23"])
