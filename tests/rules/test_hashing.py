"""KV-HASH: every expected value is a constant of the rule, or computed with hashlib and `cbor`."""

from __future__ import annotations

import hashlib

import cbor2
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rules import cbor
from tests.rules.builders import MakeManager, MakeRequest, admit, full
from tests.rules.hashes import HASH_0, HASH_1, NONE_HASH, hashes_of, sha256

# Both sides of each length at which the encoding of an int grows, and the ends of the range.
BOUNDARIES = (0, 23, 24, 255, 256, 65535, 65536, 2**32 - 1, 2**32, 2**63 - 1)


# The encoder that the expected values come from.


@pytest.mark.rule("KV-HASH-2")
@pytest.mark.parametrize("value", [*BOUNDARIES, -1, -24, -25, -256, -257])
def test_ints_are_encoded_as_a_cbor_library_does(value: int) -> None:
    """The encoder of these tests agrees with cbor2 on both sides of every length boundary."""
    assert cbor.encode(value) == cbor2.dumps(value, canonical=True)


@pytest.mark.rule("KV-HASH-2")
@given(
    st.recursive(
        st.none() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=30),
        max_leaves=40,
    )
)
@settings(max_examples=50)
def test_values_are_encoded_as_a_cbor_library_does(value: cbor.Value) -> None:
    """The encoder of these tests agrees with cbor2 on any value a hash may cover."""
    assert cbor.encode(value) == cbor2.dumps(value, canonical=True)


@pytest.mark.rule("KV-HASH-2")
def test_the_argument_of_the_first_hash_is_spelled_out() -> None:
    """The example: an array of the parent, four tokens and null."""
    encoded = cbor.encode([bytes.fromhex(NONE_HASH), [1, 2, 3, 4], None])
    assert encoded.hex() == "83" + "5820" + NONE_HASH + "8401020304" + "f6"
    assert cbor.encode(65535).hex() == "19ffff"
    assert cbor.encode(65536).hex() == "1a00010000"
    assert cbor.encode(-3).hex() == "22"


# The chain.


@pytest.mark.rule("KV-HASH-1", "KV-HASH-2")
def test_hashes_are_chained(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """The hash of a block covers its parent, its tokens and null."""
    assert hashes_of(make_manager, make_request, range(1, 9)) == [HASH_0, HASH_1]
    assert sha256(bytes.fromhex(NONE_HASH), [1, 2, 3, 4]).hex() == HASH_0
    assert sha256(bytes.fromhex(HASH_0), [5, 6, 7, 8]).hex() == HASH_1


@pytest.mark.rule("KV-HASH-1")
def test_equal_tokens_after_another_prefix_hash_differently(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Tokens 5, 6, 7, 8 at the start of a request have another hash than after 1, 2, 3, 4."""
    assert hashes_of(make_manager, make_request, [5, 6, 7, 8]) == [
        "8adbee3f8484f7c03bc63994cf7b2d88778fc224cf94c373596081d0e60fd607"
    ]


@pytest.mark.rule("KV-HASH-2", "KV-REQ-1")
@pytest.mark.parametrize("token", BOUNDARIES)
def test_tokens_are_encoded_in_their_shortest_form(
    make_manager: MakeManager, make_request: MakeRequest, token: int
) -> None:
    """A token at a length boundary enters the hash in 1, 2, 3, 5 or 9 bytes."""
    tokens = [token, 1, token, token]
    expected = sha256(bytes.fromhex(NONE_HASH), tokens).hex()
    assert hashes_of(make_manager, make_request, tokens) == [expected]


@pytest.mark.rule("KV-HASH-2")
@pytest.mark.parametrize("block_size", [1, 23, 24, 255, 256])
def test_the_array_of_tokens_has_the_shortest_length(
    make_manager: MakeManager, make_request: MakeRequest, block_size: int
) -> None:
    """Blocks of 24 and of 256 tokens need one and two more bytes for the array's length."""
    manager = make_manager(6, block_size)
    tokens = [7] * block_size
    request = make_request(manager, "r", tokens)
    assert list(request.block_hashes) == [sha256(bytes.fromhex(NONE_HASH), tokens)]


@pytest.mark.rule("KV-HASH-1", "KV-HASH-4", "KV-HASH-10")
@given(
    tokens=st.lists(st.sampled_from(BOUNDARIES) | st.integers(0, 2**63 - 1), min_size=1),
    block_size=st.integers(1, 9),
    salt=st.none() | st.text(min_size=1, max_size=3),
)
@settings(max_examples=40)
def test_any_request_is_hashed_as_the_rule_says(
    make_manager: MakeManager,
    make_request: MakeRequest,
    tokens: list[int],
    block_size: int,
    salt: str | None,
) -> None:
    """The hashes of any tokens under any salt equal an independent computation."""
    manager = make_manager(6, block_size)
    request = make_request(manager, "r", tokens, cache_salt=salt)
    expected, parent = [], manager.none_hash
    for start in range(0, len(tokens) - block_size + 1, block_size):
        extra = [["cache_salt", salt]] if salt and start == 0 else None
        parent = sha256(parent, tokens[start : start + block_size], extra)
        expected.append(parent)
    assert list(request.block_hashes) == expected


# NONE_HASH.


@pytest.mark.rule("KV-HASH-3")
def test_none_hash_is_the_hash_of_the_seed(make_manager: MakeManager) -> None:
    """The seed "0" is encoded as 61 30, and gives the value in the rule."""
    assert cbor.encode("0") == b"\x61\x30"
    assert make_manager(hash_seed="0").none_hash.hex() == NONE_HASH


@pytest.mark.rule("KV-HASH-3")
@pytest.mark.parametrize("seed", ["", "a" * 24, "ключ", "\U0001f511"])
def test_any_text_is_a_seed(make_manager: MakeManager, seed: str) -> None:
    """The empty text counts as given, and texts beyond ASCII enter as UTF-8."""
    expected = hashlib.sha256(cbor.encode(seed)).digest()
    assert make_manager(hash_seed=seed).none_hash == expected


@pytest.mark.rule("KV-HASH-3")
@pytest.mark.parametrize(
    ("function", "size"), [("sha256_cbor", 32), ("sha256_cbor_64bit", 8), ("xxhash_cbor", 16)]
)
def test_without_a_seed_every_manager_draws_its_own(
    make_manager: MakeManager, function: str, size: int
) -> None:
    """Two managers without a seed have different parents, of the length of the hashes."""
    one, other = (
        make_manager(hash_seed=None, hash_function=function, trusted_tenants=True) for _ in range(2)
    )
    assert len(one.none_hash) == len(other.none_hash) == size
    assert one.none_hash != other.none_hash
    assert one.none_hash == one.none_hash


# Which blocks have a hash, and which hash a block uses.


@pytest.mark.rule("KV-HASH-4")
@pytest.mark.parametrize(("num_tokens", "num_hashes"), [(3, 0), (8, 2), (11, 2), (12, 3)])
def test_only_full_blocks_are_hashed(
    make_manager: MakeManager, make_request: MakeRequest, num_tokens: int, num_hashes: int
) -> None:
    """With 4 tokens per hash, 3 tokens have none, 8 and 11 have two, 12 have three."""
    assert len(hashes_of(make_manager, make_request, range(num_tokens))) == num_hashes


@pytest.mark.rule("KV-HASH-4", "KV-COORD-1")
def test_without_caching_there_are_no_hashes(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A request of a manager with caching off has no hashes, however long it is."""
    manager = make_manager(enable_caching=False)
    assert list(make_request(manager, "r", range(100)).block_hashes) == []


@pytest.mark.rule("KV-HASH-5")
def test_a_block_of_eight_tokens_is_not_two_blocks_of_four(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """With 8 tokens per hash the value is that of eight tokens at once, not hash 1 of KV-HASH-1."""
    manager = make_manager(6, 8)
    (block_hash,) = make_request(manager, "r", range(1, 9)).block_hashes
    assert block_hash.hex() == "1820e68bd0c9e035b0e61a7e00367421b4b441d9f5afb1146d3a588630ad14ca"


@pytest.mark.rule("KV-HASH-5", "KV-FULL-5")
def test_under_context_parallelism_the_span_is_hashed(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A block of 2 slots on 2 ranks spans 4 tokens, and block i uses hash i."""
    manager = make_manager(6, 2, dcp_world_size=2)
    request = make_request(manager, "r", range(1, 10))
    assert [block_hash.hex() for block_hash in request.block_hashes] == [HASH_0, HASH_1]
    admit(manager, request)
    keys = manager.snapshot().block_keys
    assert [key[:-4].hex() for block in (1, 2) for key in keys[block]] == [HASH_0, HASH_1]


@pytest.mark.rule("KV-HASH-6")
def test_a_key_is_the_hash_and_the_group(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Blocks 1 and 2 are cached under their hash and 00000000, the number of group 0."""
    manager = make_manager()
    admit(manager, make_request(manager, "r", range(1, 9)))
    snapshot = manager.snapshot()
    assert [key.hex() for key in snapshot.block_keys[1]] == [HASH_0 + "00000000"]
    assert [key.hex() for key in snapshot.block_keys[2]] == [HASH_1 + "00000000"]


@pytest.mark.rule("KV-HASH-5")
def test_a_block_of_two_hashes_uses_the_last_of_them(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Groups of 4 and of 8 with 4 tokens per hash: block 0 of the second uses hash 1."""
    manager = make_manager(10, specs=[full(4), full(8)])
    request = make_request(manager, "r", range(1, 9))
    assert [block_hash.hex() for block_hash in request.block_hashes] == [HASH_0, HASH_1]
    admit(manager, request)
    assert manager.get_blocks(request).to_lists() == [[1, 2], [3]]
    keys = [[key.hex() for key in keys] for keys in manager.snapshot().block_keys[1:4]]
    assert keys == [[HASH_0 + "00000000"], [HASH_1 + "00000000"], [HASH_1 + "00000001"]]


@pytest.mark.rule("KV-HASH-6")
def test_equal_tokens_in_three_groups_have_three_keys(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Hash 1 in group 2 is cached under that hash and 00000002."""
    specs = [full(4), full(4, head_size=16), full(4, head_size=32)]
    manager = make_manager(10, specs=specs)
    request = make_request(manager, "r", range(1, 9))
    admit(manager, request)
    block = manager.get_blocks(request).to_lists()[2][1]
    assert [key.hex() for key in manager.snapshot().block_keys[block]] == [HASH_1 + "00000002"]
    assert len(manager.snapshot().lookup_order) == 6


# The other functions.


@pytest.mark.rule("KV-HASH-11")
def test_64_bit_hashes_name_their_parent_as_an_int(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """The low 64 bits of the digest, over the parent as an unsigned int."""
    manager = make_manager(hash_function="sha256_cbor_64bit", trusted_tenants=True)
    request = make_request(manager, "r", range(1, 9))
    assert manager.none_hash.hex() == "f8b55adff2e61c3e" == NONE_HASH[-16:]
    assert int.from_bytes(manager.none_hash, "big") == 17921330210090130494
    assert [block_hash.hex() for block_hash in request.block_hashes] == [
        "0b09a5c601439d9c",
        "0f3b310b01f9683b",
    ]
    argument = cbor.encode([17921330210090130494, [1, 2, 3, 4], None])
    assert argument.hex() == "83" + "1bf8b55adff2e61c3e" + "8401020304" + "f6"
    assert hashlib.sha256(argument).digest()[-8:].hex() == "0b09a5c601439d9c"
    admit(manager, request)
    assert [key.hex() for key in manager.snapshot().block_keys[1]] == ["0b09a5c601439d9c00000000"]


@pytest.mark.rule("KV-HASH-12")
def test_xxhash_covers_the_same_encoding(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """XXH3-128 with seed 0, big-endian, over the parent as 16 bytes."""
    manager = make_manager(hash_function="xxhash_cbor", trusted_tenants=True)
    request = make_request(manager, "r", range(1, 9))
    assert manager.none_hash.hex() == "1ebe36576dcb573f26b99533a20aaeca"
    assert xxhash.xxh3_128_digest(cbor.encode("0"), seed=0) == manager.none_hash
    hashes = [block_hash.hex() for block_hash in request.block_hashes]
    assert hashes == ["0a8577df5ee3430515a8cc1f6e3ac52e", "d152782cb4d753bde718a811a3b75e23"]
    argument = cbor.encode([manager.none_hash, [1, 2, 3, 4], None])
    assert xxhash.xxh3_128_digest(argument).hex() == hashes[0]
