"""KV-HASH-7 … KV-HASH-10: what besides its tokens enters the hash of a block."""

from __future__ import annotations

import hashlib

import pytest

from kvspec.interface import Implementation
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings
from tests.rules import cbor
from tests.rules.builders import MakeManager, MakeRequest
from tests.rules.hashes import HASH_0, HASH_1, NONE_HASH, hashes_of, sha256

IMG = MultimodalItem("img", 1, 5)
EMBEDDINGS = PromptEmbeddings(bytes(range(12)), bytes_per_token=2)
DIGEST_0 = "8a851ff82ee7048ad09ec3847f1ddf44944104d2cbd17ef4e3db22c6785a0d45"
DIGEST_1 = "e0e6e3c1c64422cc76229d0c35ba817a281f8fc4014faa3e9152428a08a73ab3"
DIGEST_OF_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.rule("KV-HASH-7")
def test_extra_keys_have_one_order(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """Adapter, item, salt and embedding digest enter in this order."""
    hashes = hashes_of(
        make_manager,
        make_request,
        [1, 9, 9, 9],
        lora=LoRA("sql", 5),
        multimodal=(MultimodalItem("img", 1, 3),),
        cache_salt="tenant-a",
        prompt_embeddings=EMBEDDINGS,
    )
    assert hashes == ["b73a07194b2c460b3af28895fbbe390881a9e28d159fabd0b16a01c918b405d9"]
    extra: list[cbor.Value] = ["sql", ["img", 1], "tenant-a", bytes.fromhex(DIGEST_0)]
    assert sha256(bytes.fromhex(NONE_HASH), [1, 9, 9, 9], extra).hex() == hashes[0]


@pytest.mark.rule("KV-HASH-7")
def test_an_adapter_and_a_salt_of_one_name_are_one_extra_key(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """In the first block a text is a text, whichever part it comes from."""
    tokens = [1, 2, 3, 4]
    salted = hashes_of(make_manager, make_request, tokens, cache_salt="x")
    adapted = hashes_of(make_manager, make_request, tokens, lora=LoRA("x", 1))
    assert salted == adapted


@pytest.mark.rule("KV-HASH-8")
def test_every_overlapping_item_enters_with_its_offset_in_the_block(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """An item that began in an earlier block enters with a negative offset, beside the next one."""
    items = (IMG, MultimodalItem("snd", 7, 1))
    tokens = [1, 9, 9, 9, 9, 9, 2, 3]
    expected = [
        "87008556927f3fda6d10d500292a74234ef069d74d400f0911022a265622fb21",
        "ed7378afca36f4b07b316ff1e811bad9d8e476231126177722a1b50a4125f786",
    ]
    assert hashes_of(make_manager, make_request, tokens, multimodal=items) == expected
    extra: list[cbor.Value] = [["img", -3], ["snd", 3]]
    assert sha256(bytes.fromhex(expected[0]), tokens[4:], extra).hex() == expected[1]


@pytest.mark.rule("KV-HASH-8")
def test_an_item_that_touches_at_an_end_does_not_overlap(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """An item on tokens 4 … 7 enters block 1 only, as offset 0."""
    item = MultimodalItem("img", 4, 4)
    hashes = hashes_of(make_manager, make_request, range(1, 13), multimodal=(item,))
    assert hashes[0] == HASH_0
    second = sha256(bytes.fromhex(HASH_0), [5, 6, 7, 8], [["img", 0]])
    assert hashes[1] == second.hex()
    assert hashes[2] == sha256(second, [9, 10, 11, 12]).hex()


@pytest.mark.rule("KV-HASH-8")
def test_generated_blocks_name_every_item(
    make_manager: MakeManager, make_request: MakeRequest, implementation: Implementation
) -> None:
    """A block completed by generated tokens has the hash it has as part of a prompt."""
    items = (MultimodalItem("img", 4, 1), MultimodalItem("snd", 5, 9))
    whole = hashes_of(make_manager, make_request, range(12), multimodal=items)
    manager = make_manager(6, 4)
    request = make_request(manager, "r", range(5), multimodal=items)
    implementation.append_tokens(manager, request, range(5, 12))
    assert [block_hash.hex() for block_hash in request.block_hashes] == whole


@pytest.mark.rule("KV-HASH-9")
def test_embedding_bytes_enter_as_their_digest(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Blocks 0, 1 and 2 have the digests of bytes 0 … 7, of bytes 8 … 11 and of nothing."""
    hashes = hashes_of(make_manager, make_request, [0] * 12, prompt_embeddings=EMBEDDINGS)
    assert hashes[0] == "92ca4b71ae640cc185f22ca7d89dd02a46bd955eea45ec793b875602468283f8"
    assert hashlib.sha256(bytes(range(8))).hexdigest() == DIGEST_0
    parent = bytes.fromhex(NONE_HASH)
    for shown, digest in zip(hashes, (DIGEST_0, DIGEST_1, DIGEST_OF_NOTHING), strict=True):
        parent = sha256(parent, [0, 0, 0, 0], [bytes.fromhex(digest)])
        assert shown == parent.hex()


@pytest.mark.rule("KV-HASH-10")
def test_a_salt_enters_the_first_block_only(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Both hashes differ from the unsalted ones, although only the first block names the salt."""
    hashes = hashes_of(make_manager, make_request, range(1, 9), cache_salt="tenant-a")
    assert hashes == [
        "5188afdf425172363edc325e9600bdb55cfc0950138d1c11b71ec2ac150962f4",
        "d6ebcd87b3c5985e221e92720d5a6da265d81b6ff6df2e250b21da9b6601f57f",
    ]
    assert sha256(bytes.fromhex(hashes[0]), [5, 6, 7, 8]).hex() == hashes[1]


@pytest.mark.rule("KV-HASH-10")
def test_an_adapter_enters_every_block_by_name(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Two adapters of one name and different ids have equal hashes."""
    for adapter in (LoRA("sql", 5), LoRA("sql", 6)):
        assert hashes_of(make_manager, make_request, range(1, 9), lora=adapter) == [
            "f374114a258409ac3ddea812e4d896becd135086cb09a9009806590b5758dc84",
            "154e224bc09ffef9363712d14bcb7684a0a710c32903a464326c1578294842fb",
        ]


@pytest.mark.rule("KV-HASH-10")
def test_an_empty_salt_is_no_salt(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """The hashes are those without a salt."""
    assert hashes_of(make_manager, make_request, range(1, 9), cache_salt="") == [HASH_0, HASH_1]


@pytest.mark.rule("KV-HASH-10", "KV-HASH-2")
@pytest.mark.parametrize("salt", ["ü", "鍵", "\U0001f511", "e\u0301", "a" * 256])
def test_a_salt_is_a_text_in_utf_8(
    make_manager: MakeManager, make_request: MakeRequest, salt: str
) -> None:
    """Texts beyond ASCII enter as their UTF-8 bytes, not normalised."""
    expected = sha256(bytes.fromhex(NONE_HASH), [1, 2, 3, 4], [salt]).hex()
    assert hashes_of(make_manager, make_request, [1, 2, 3, 4], cache_salt=salt) == [expected]
