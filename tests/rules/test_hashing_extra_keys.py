"""KV-HASH-7 … KV-HASH-10: what besides its tokens enters the hash of a block."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.errors import InvalidArgumentError
from kvspec.events import BlockStored
from kvspec.interface import Implementation
from kvspec.policy import Policy
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput
from tests.rules import cbor
from tests.rules.builders import MakeManager, MakeRequest, admit
from tests.rules.hashes import HASH_0, NONE_HASH, hashes_of, sha256

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
    assert hashes == ["3b5f2b290238da81095e56255c92c5e8a568ec2d75c29f4cce72ccfcc420b311"]
    extra: list[cbor.Value] = [
        ["lora", "sql", None],
        ["mm", "img", 1],
        ["cache_salt", "tenant-a"],
        ["prompt_embeds", bytes.fromhex(DIGEST_0)],
    ]
    assert sha256(bytes.fromhex(NONE_HASH), [1, 9, 9, 9], extra).hex() == hashes[0]


@pytest.mark.rule("KV-HASH-7", "KV-HASH-10")
def test_two_paths_are_two_adapters(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """The path stands behind the name, null where there is none."""
    found = {
        path: hashes_of(make_manager, make_request, range(1, 5), lora=LoRA("x", 1, path))
        for path in (None, "/a", "/b")
    }
    for path, hashes in found.items():
        expected = sha256(bytes.fromhex(NONE_HASH), range(1, 5), [["lora", "x", path]])
        assert hashes == [expected.hex()]


CONTENTS: tuple[dict[str, Any], ...] = (
    {},
    {"cache_salt": "x"},
    {"lora": LoRA("x", 1)},
    {"lora": LoRA("x", 1, "x")},
    {"lora": LoRA("x", 1, "y")},
    {"cache_salt": "x", "lora": LoRA("x", 1)},
    {"multimodal": (MultimodalItem("x", 0, 4),)},
    {"multimodal": (MultimodalItem("x", 1, 2),)},
    {"multimodal": (MultimodalItem("x", 0, 4),), "cache_salt": "x"},
    {"multimodal": (MultimodalItem("x", 0, 4),), "lora": LoRA("x", 1)},
    {"prompt_embeddings": PromptEmbeddings(b"xxxx", 1)},
)


def shared_tokens(
    make_manager: MakeManager,
    make_request: MakeRequest,
    first: dict[str, Any],
    second: dict[str, Any],
    policy: Policy,
) -> int:
    """The hit of a request with one content after one with the other, of equal tokens."""
    manager = make_manager(9, policy=policy)
    admit(manager, make_request(manager, "first", [7] * 5, **first))
    return manager.get_computed_blocks(
        make_request(manager, "second", [7] * 5, **second)
    ).hit_length_tokens


@pytest.mark.rule("KV-HASH-7", "KV-HASH-10")
def test_what_differs_in_kind_or_value_is_no_hit(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """A salt that is the name of an adapter, or of an item, shares nothing with it."""
    for first, second in itertools.product(CONTENTS, repeat=2):
        hit = shared_tokens(make_manager, make_request, first, second, Policy())
        assert hit == (4 if first == second else 0), (first, second)


@pytest.mark.rule("KV-POL-10")
def test_plain_keys_are_bare_values(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """The salt and the adapter of one name share block 0, and so do the paths of an adapter."""
    equal = ({1, 2}, {1, 3}, {1, 4}, {2, 3}, {2, 4}, {3, 4})
    for (i, first), (j, second) in itertools.product(enumerate(CONTENTS), repeat=2):
        policy = Policy(extra_keys="plain")
        hit = shared_tokens(make_manager, make_request, first, second, policy)
        assert hit == (4 if i == j or {i, j} in equal else 0), (first, second)
    manager = make_manager(9, policy=Policy(extra_keys="plain"))
    (salted,) = make_request(manager, "r", range(1, 5), cache_salt="x").block_hashes
    assert salted == sha256(bytes.fromhex(NONE_HASH), range(1, 5), ["x"])
    assert salted.hex() == "7cd63c0c509703c9017c598b4a54f5ad4c5a653d37389faad277c5c585f062eb"


names = st.sampled_from(["x", "lora", "mm", "cache_salt", "xlora"])


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    """Extra keys for one block of four tokens, of few values, so that many are equal."""
    path = draw(st.none() | names)
    return {
        "cache_salt": draw(st.none() | names),
        "lora": draw(st.none() | names.map(lambda name: LoRA(name, 1, path))),
        "multimodal": draw(
            st.just(()) | st.tuples(names.map(lambda name: MultimodalItem(name, 0, 1)))
        ),
        "prompt_embeddings": draw(
            st.none() | st.binary(min_size=4, max_size=4).map(lambda b: PromptEmbeddings(b, 1))
        ),
    }


@pytest.mark.rule("KV-HASH-7", "KV-HASH-10")
@given(first=contents(), second=contents())
def test_any_two_contents_have_equal_hashes_only_if_they_are_equal(
    make_manager: MakeManager,
    make_request: MakeRequest,
    first: dict[str, Any],
    second: dict[str, Any],
) -> None:
    """Under the rules' own policy extra keys are read in one way only."""
    one = hashes_of(make_manager, make_request, [7] * 4, **first)
    other = hashes_of(make_manager, make_request, [7] * 4, **second)
    assert (one == other) == (first == second)


@pytest.mark.rule("KV-EVT-8")
def test_events_show_no_kinds(make_manager: MakeManager, make_request: MakeRequest) -> None:
    """A name, an item's pair, a salt and a digest, as existing consumers read them."""
    for form in ("tagged", "plain"):
        manager = make_manager(6, 4, enable_events=True, policy=Policy(extra_keys=form))
        content: dict[str, Any] = {"multimodal": (IMG,), "prompt_embeddings": EMBEDDINGS}
        lora = LoRA("sql", 5, "/adapters/sql")
        admit(manager, make_request(manager, "r", range(5), lora=lora, cache_salt="s", **content))
        (event,) = manager.take_events()
        assert isinstance(event, BlockStored)
        assert event.extra_keys == (("sql", ("img", 1), "s", bytes.fromhex(DIGEST_0)),)


@pytest.mark.rule("KV-HASH-8")
def test_every_overlapping_item_enters_with_its_offset_in_the_block(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """An item that began in an earlier block enters with a negative offset, beside the next one."""
    items = (IMG, MultimodalItem("snd", 7, 1))
    tokens = [1, 9, 9, 9, 9, 9, 2, 3]
    expected = [
        "24d88040e4255dc6468f42413ee9a199fec978f4a31eef95cd1ce3daf84353c6",
        "fc3be94dfe43fd9750c3d30b1717281ce6f0c8fe774ec6dd956b9163f46d2e28",
    ]
    assert hashes_of(make_manager, make_request, tokens, multimodal=items) == expected
    extra: list[cbor.Value] = [["mm", "img", -3], ["mm", "snd", 3]]
    assert sha256(bytes.fromhex(expected[0]), tokens[4:], extra).hex() == expected[1]


@pytest.mark.rule("KV-HASH-8")
def test_an_item_that_touches_at_an_end_does_not_overlap(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """An item on tokens 4 … 7 enters block 1 only, as offset 0."""
    item = MultimodalItem("img", 4, 4)
    hashes = hashes_of(make_manager, make_request, range(1, 13), multimodal=(item,))
    assert hashes[0] == HASH_0
    second = sha256(bytes.fromhex(HASH_0), [5, 6, 7, 8], [["mm", "img", 0]])
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
    assert hashes[0] == "e4aa10d30c2b08d1088be1f87ebe51651b203cff40571ad888ed130d0d32bdb1"
    assert hashlib.sha256(bytes(range(8))).hexdigest() == DIGEST_0
    parent = bytes.fromhex(NONE_HASH)
    for shown, digest in zip(hashes, (DIGEST_0, DIGEST_1, DIGEST_OF_NOTHING), strict=True):
        parent = sha256(parent, [0, 0, 0, 0], [["prompt_embeds", bytes.fromhex(digest)]])
        assert shown == parent.hex()


@pytest.mark.rule("KV-HASH-10")
def test_a_salt_enters_the_first_block_only(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Both hashes differ from the unsalted ones, although only the first block names the salt."""
    hashes = hashes_of(make_manager, make_request, range(1, 9), cache_salt="tenant-a")
    assert hashes == [
        "6d7c30cb6f20dee666a6c6005cb423ea5c1febb3d260951ae61a0a49a8358a68",
        "d2372500a03180a22bdaff6d3ac22ccfb8724badc377227eaee5d2df442afb9e",
    ]
    assert sha256(bytes.fromhex(hashes[0]), [5, 6, 7, 8]).hex() == hashes[1]


@pytest.mark.rule("KV-HASH-10")
def test_an_adapter_enters_every_block_by_name(
    make_manager: MakeManager, make_request: MakeRequest
) -> None:
    """Two adapters of one name and different ids have equal hashes."""
    for adapter in (LoRA("sql", 5), LoRA("sql", 6)):
        assert hashes_of(make_manager, make_request, range(1, 9), lora=adapter) == [
            "ab6096a32055cacfa98124363a44b4822c02b4311545b559c495205160e04b76",
            "41c87d116f18abfd026564d96f6c988b042e845922548103108260023a3182b6",
        ]


@pytest.mark.rule("KV-HASH-10")
def test_an_empty_salt_is_refused() -> None:
    """It would share blocks with everybody who has no salt."""
    with pytest.raises(InvalidArgumentError, match="cache_salt = '': must be a non-empty text"):
        RequestInput("r", [1], cache_salt="")
    with pytest.raises(InvalidArgumentError, match=r"lora\.path = '': must be a non-empty text"):
        LoRA("x", 1, "")


@pytest.mark.rule("KV-HASH-10", "KV-HASH-2")
@pytest.mark.parametrize("salt", ["ü", "鍵", "\U0001f511", "e\u0301", "a" * 256])
def test_a_salt_is_a_text_in_utf_8(
    make_manager: MakeManager, make_request: MakeRequest, salt: str
) -> None:
    """Texts beyond ASCII enter as their UTF-8 bytes, not normalised."""
    expected = sha256(bytes.fromhex(NONE_HASH), [1, 2, 3, 4], [["cache_salt", salt]]).hex()
    assert hashes_of(make_manager, make_request, [1, 2, 3, 4], cache_salt=salt) == [expected]


@pytest.mark.shared
@pytest.mark.rule("KV-HASH-7", "KV-HASH-8", "KV-HASH-10")
def test_tagged_hashes_are_those_of_a_later_engine(
    make_manager: MakeManager, implementation: Implementation, shared: Path
) -> None:
    """What vLLM 0.33 computed for prompts with adapters, items and salts."""
    compared = 0
    for name in ("events-330051", "extra_keys-330029"):
        with gzip.open(shared / f"golden-0.33/{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            header, *operations = map(json.loads, file)
        manager = make_manager(6, header["config"]["hash_block_size"])
        assert manager.none_hash.hex() == header["none_hash"]
        for operation in operations:
            args = operation.get("args", {})
            if operation.get("op") != "new_request" or "result" not in operation:
                continue
            lora = args.get("lora")
            given = RequestInput(
                "r",
                args["prompt_token_ids"],
                cache_salt=args.get("cache_salt"),
                lora=None if lora is None else LoRA(**lora),
                multimodal=tuple(MultimodalItem(**item) for item in args.get("mm_features") or ()),
            )
            found = implementation.make_request(manager, given).block_hashes
            assert [block_hash.hex() for block_hash in found] == operation["result"]["block_hashes"]
            compared += lora is not None or given.cache_salt is not None
    assert compared >= 5
