"""KV-HASH-7 … KV-HASH-10: what besides its tokens enters the hash of a block."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.digests import HASH_0, NONE_HASH, hashes_of, sha256
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, holds, raises
from kvspec.errors import InvalidArgumentError
from kvspec.events import BlockStored
from kvspec.interface import Feature
from kvspec.policy import Policy
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput

IMG = MultimodalItem("img", 1, 5)
EMBEDDINGS = PromptEmbeddings(bytes(range(12)), bytes_per_token=2)
DIGEST_0 = "8a851ff82ee7048ad09ec3847f1ddf44944104d2cbd17ef4e3db22c6785a0d45"
DIGEST_1 = "e0e6e3c1c64422cc76229d0c35ba817a281f8fc4014faa3e9152428a08a73ab3"
DIGEST_OF_NOTHING = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@example("KV-HASH-7", choices=("extra_keys",))
def extra_keys_have_one_order(bench: Bench) -> None:
    """Adapter, item, salt and embedding digest enter in this order."""
    hashes = hashes_of(
        bench,
        [1, 9, 9, 9],
        lora=LoRA("sql", 5),
        multimodal=(MultimodalItem("img", 1, 3),),
        cache_salt="tenant-a",
        prompt_embeddings=EMBEDDINGS,
    )
    equal(hashes, ["3b5f2b290238da81095e56255c92c5e8a568ec2d75c29f4cce72ccfcc420b311"])
    extra: list[list[Any]] = [
        ["lora", "sql", None],
        ["mm", "img", 1],
        ["cache_salt", "tenant-a"],
        ["prompt_embeds", bytes.fromhex(DIGEST_0)],
    ]
    equal(sha256(bytes.fromhex(NONE_HASH), [1, 9, 9, 9], extra).hex(), hashes[0])


@example("KV-HASH-7", "KV-HASH-10", choices=("extra_keys",))
def two_paths_are_two_adapters(bench: Bench) -> None:
    """The path stands behind the name, null where there is none."""
    found = {
        path: hashes_of(bench, range(1, 5), lora=LoRA("x", 1, path)) for path in (None, "/a", "/b")
    }
    for path, hashes in found.items():
        expected = sha256(bytes.fromhex(NONE_HASH), range(1, 5), [["lora", "x", path]])
        equal(hashes, [expected.hex()])


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
    bench: Bench, first: dict[str, Any], second: dict[str, Any], policy: Policy
) -> int:
    """The hit of a request with one content after one with the other, of equal tokens."""
    manager = bench.manager(9, policy=policy)
    manager.admit(manager.request("first", [7] * 5, **first))
    return manager.get_computed_blocks(
        manager.request("second", [7] * 5, **second)
    ).hit_length_tokens


@example("KV-HASH-7", "KV-HASH-10")
def what_differs_in_kind_or_value_is_no_hit(bench: Bench) -> None:
    """A salt that is the name of an adapter, or of an item, shares nothing with it."""
    for first, second in itertools.product(CONTENTS, repeat=2):
        hit = shared_tokens(bench, first, second, Policy())
        equal(hit, (4 if first == second else 0))


@example("KV-HASH-10", "KV-POL-10", level=Level.SAFETY)
def a_salt_and_an_adapter_of_one_name_share_nothing_unless_that_was_declared(
    bench: Bench,
) -> None:
    bench.need(Feature.PREFIX_CACHING, Feature.CACHE_SALT, Feature.LORA)
    if bench.policy.extra_keys == "plain":
        return
    contents: tuple[dict[str, Any], ...] = (
        {"cache_salt": "x"},
        {"lora": LoRA("x", 1)},
        {"cache_salt": "x", "lora": LoRA("x", 1)},
    )
    for first, second in itertools.permutations(contents, 2):
        manager = bench.manager(9)
        manager.started("first", range(5), **first)
        hit = manager.get_computed_blocks(manager.request("second", range(5), **second))
        equal(hit.hit_length_tokens, 0, f"the hit of {second} after {first}")


@example("KV-POL-10")
def plain_keys_are_bare_values(bench: Bench) -> None:
    """The salt and the adapter of one name share block 0, and so do the paths of an adapter."""
    same = ({1, 2}, {1, 3}, {1, 4}, {2, 3}, {2, 4}, {3, 4})
    for (i, first), (j, second) in itertools.product(enumerate(CONTENTS), repeat=2):
        policy = Policy(extra_keys="plain")
        hit = shared_tokens(bench, first, second, policy)
        equal(hit, (4 if i == j or {i, j} in same else 0))
    manager = bench.manager(9, policy=Policy(extra_keys="plain"))
    (salted,) = manager.request("r", range(1, 5), cache_salt="x").block_hashes
    equal(salted, sha256(bytes.fromhex(NONE_HASH), range(1, 5), ["x"]))
    equal(salted.hex(), "7cd63c0c509703c9017c598b4a54f5ad4c5a653d37389faad277c5c585f062eb")


@cases(
    (
        [1, 9, 9, 9],
        {
            "lora": LoRA("sql", 1),
            "multimodal": (MultimodalItem("img", 1, 3),),
            "cache_salt": "tenant-a",
            "prompt_embeddings": EMBEDDINGS,
        },
        ["b73a07194b2c460b3af28895fbbe390881a9e28d159fabd0b16a01c918b405d9"],
    ),
    (
        [1, 9, 9, 9, 9, 9, 2, 3],
        {"multimodal": (IMG, MultimodalItem("snd", 7, 1))},
        [
            "87008556927f3fda6d10d500292a74234ef069d74d400f0911022a265622fb21",
            "ed7378afca36f4b07b316ff1e811bad9d8e476231126177722a1b50a4125f786",
        ],
    ),
    (
        [0, 0, 0, 0],
        {"prompt_embeddings": EMBEDDINGS},
        ["92ca4b71ae640cc185f22ca7d89dd02a46bd955eea45ec793b875602468283f8"],
    ),
    (
        range(1, 9),
        {"cache_salt": "tenant-a"},
        [
            "5188afdf425172363edc325e9600bdb55cfc0950138d1c11b71ec2ac150962f4",
            "d6ebcd87b3c5985e221e92720d5a6da265d81b6ff6df2e250b21da9b6601f57f",
        ],
    ),
    (
        range(1, 9),
        {"lora": LoRA("sql", 2, "/adapters/sql")},
        [
            "f374114a258409ac3ddea812e4d896becd135086cb09a9009806590b5758dc84",
            "154e224bc09ffef9363712d14bcb7684a0a710c32903a464326c1578294842fb",
        ],
    ),
)
@example("KV-POL-10")
def plain_hashes_cover_bare_values(
    bench: Bench, tokens: Sequence[int], content: dict[str, Any], expected: list[str]
) -> None:
    manager = bench.manager(6, policy=Policy(extra_keys="plain"))
    request = manager.request("r", tokens, **content)
    equal([block_hash.hex() for block_hash in request.block_hashes], expected)


@example("KV-EVT-8")
def events_show_no_kinds(bench: Bench) -> None:
    """A name, an item's pair, a salt and a digest, as existing consumers read them."""
    for form in ("tagged", "plain"):
        manager = bench.manager(6, enable_events=True, policy=Policy(extra_keys=form))
        content: dict[str, Any] = {"multimodal": (IMG,), "prompt_embeddings": EMBEDDINGS}
        lora = LoRA("sql", 5, "/adapters/sql")
        manager.admit(manager.request("r", range(5), lora=lora, cache_salt="s", **content))
        (event,) = manager.take_events()
        holds(isinstance(event, BlockStored))
        equal(event.extra_keys, (("sql", ("img", 1), "s", bytes.fromhex(DIGEST_0)),))


@example("KV-HASH-8", choices=("extra_keys",))
def every_overlapping_item_enters_with_its_offset_in_the_block(bench: Bench) -> None:
    """An item that began in an earlier block enters with a negative offset, beside the next one."""
    items = (IMG, MultimodalItem("snd", 7, 1))
    tokens = [1, 9, 9, 9, 9, 9, 2, 3]
    expected = [
        "24d88040e4255dc6468f42413ee9a199fec978f4a31eef95cd1ce3daf84353c6",
        "fc3be94dfe43fd9750c3d30b1717281ce6f0c8fe774ec6dd956b9163f46d2e28",
    ]
    equal(hashes_of(bench, tokens, multimodal=items), expected)
    extra: list[list[Any]] = [["mm", "img", -3], ["mm", "snd", 3]]
    equal(sha256(bytes.fromhex(expected[0]), tokens[4:], extra).hex(), expected[1])


@example("KV-HASH-8", choices=("extra_keys",))
def an_item_that_touches_at_an_end_does_not_overlap(bench: Bench) -> None:
    """An item on tokens 4 … 7 enters block 1 only, as offset 0."""
    item = MultimodalItem("img", 4, 4)
    hashes = hashes_of(bench, range(1, 13), multimodal=(item,))
    equal(hashes[0], HASH_0)
    second = sha256(bytes.fromhex(HASH_0), [5, 6, 7, 8], [["mm", "img", 0]])
    equal(hashes[1], second.hex())
    equal(hashes[2], sha256(second, [9, 10, 11, 12]).hex())


@example("KV-HASH-8")
def generated_blocks_name_every_item(bench: Bench) -> None:
    """A block completed by generated tokens has the hash it has as part of a prompt."""
    items = (MultimodalItem("img", 4, 1), MultimodalItem("snd", 5, 9))
    whole = hashes_of(bench, range(12), multimodal=items)
    manager = bench.manager(6)
    request = manager.request("r", range(5), multimodal=items)
    manager.append(request, range(5, 12))
    equal([block_hash.hex() for block_hash in request.block_hashes], whole)


@example("KV-HASH-9", choices=("extra_keys",))
def embedding_bytes_enter_as_their_digest(bench: Bench) -> None:
    """Blocks 0, 1 and 2 have the digests of bytes 0 … 7, of bytes 8 … 11 and of nothing."""
    hashes = hashes_of(bench, [0] * 12, prompt_embeddings=EMBEDDINGS)
    equal(hashes[0], "e4aa10d30c2b08d1088be1f87ebe51651b203cff40571ad888ed130d0d32bdb1")
    equal(hashlib.sha256(bytes(range(8))).hexdigest(), DIGEST_0)
    parent = bytes.fromhex(NONE_HASH)
    for shown, digest in zip(hashes, (DIGEST_0, DIGEST_1, DIGEST_OF_NOTHING), strict=True):
        parent = sha256(parent, [0, 0, 0, 0], [["prompt_embeds", bytes.fromhex(digest)]])
        equal(shown, parent.hex())


@example("KV-HASH-10", choices=("extra_keys",))
def a_salt_enters_the_first_block_only(bench: Bench) -> None:
    """Both hashes differ from the unsalted ones, although only the first block names the salt."""
    hashes = hashes_of(bench, range(1, 9), cache_salt="tenant-a")
    equal(
        hashes,
        [
            "6d7c30cb6f20dee666a6c6005cb423ea5c1febb3d260951ae61a0a49a8358a68",
            "d2372500a03180a22bdaff6d3ac22ccfb8724badc377227eaee5d2df442afb9e",
        ],
    )
    equal(sha256(bytes.fromhex(hashes[0]), [5, 6, 7, 8]).hex(), hashes[1])


@example("KV-HASH-10", choices=("extra_keys",))
def an_adapter_enters_every_block_by_name(bench: Bench) -> None:
    """Two adapters of one name and different ids have equal hashes."""
    for adapter in (LoRA("sql", 5), LoRA("sql", 6)):
        equal(
            hashes_of(bench, range(1, 9), lora=adapter),
            [
                "ab6096a32055cacfa98124363a44b4822c02b4311545b559c495205160e04b76",
                "41c87d116f18abfd026564d96f6c988b042e845922548103108260023a3182b6",
            ],
        )


@example("KV-HASH-10", level=Level.SAFETY)
def an_empty_salt_is_refused(bench: Bench) -> None:
    """It would share blocks with everybody who has no salt."""
    with raises(InvalidArgumentError):
        RequestInput("r", [1], cache_salt="")
    with raises(InvalidArgumentError):
        LoRA("x", 1, "")


@cases("ü", "鍵", "\U0001f511", "e\u0301", "a" * 256)
@example("KV-HASH-10", "KV-HASH-2", choices=("extra_keys",))
def a_salt_is_a_text_in_utf_8(bench: Bench, salt: str) -> None:
    """Texts beyond ASCII enter as their UTF-8 bytes, not normalised."""
    expected = sha256(bytes.fromhex(NONE_HASH), [1, 2, 3, 4], [["cache_salt", salt]]).hex()
    equal(hashes_of(bench, [1, 2, 3, 4], cache_salt=salt), [expected])
