"""Examples of the chapter on hashing: the values that its text gives."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import example
from kvcheck.rules.judging import equal, holds
from kvcheck.rules.scenarios.groups import window
from kvcheck.rules.specs import full
from kvspec.interface import Feature
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings

ONE = "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb"
TWO = "24125b23e68883b5c2141db2959d48433fe6bde2f26bd914efad121d154ab2d6"
LATER = "8adbee3f8484f7c03bc63994cf7b2d88778fc224cf94c373596081d0e60fd607"
NONE_HASH = "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e"
EIGHT = tuple(range(1, 9))


def hashes(bench: Bench, tokens: tuple[int, ...], **content: Any) -> list[str]:
    """The block hashes of a request, in hex, with hash block size 4."""
    function = content.pop("hash_function", "sha256_cbor")
    manager = bench.manager(4, full(4), hash_function=function, trusted_tenants=True)
    request = manager.request("r", tokens, **content)
    return [block_hash.hex() for block_hash in request.block_hashes]


@example("KV-HASH-1")
def block_hashes_are_a_chain(bench: Bench) -> None:
    equal(hashes(bench, EIGHT), [ONE, TWO], "hashes of 1 … 8")
    equal(hashes(bench, (5, 6, 7, 8)), [LATER], "the first hash of 5 … 8")
    same, other = hashes(bench, (*EIGHT, 1, 1, 1, 1)), hashes(bench, (*EIGHT[:7], 9, 1, 1, 1, 1))
    equal(other[0], same[0], "the hash before the token that differs")
    holds(same[1] != other[1] and same[2] != other[2])


@example("KV-HASH-2")
def tokens_of_every_width_are_encoded(bench: Bench) -> None:
    expected = [
        "dd764a125ed01b5d54916c6217e6b5b0b35541004e9cd2aa0f05587f85a26ed5",
        "ee48c3b11ddad92223a62ea9ece5e687f4c570b605f207a1fe9bcf0b759aaac6",
        "774afbe7094daaac2b25004643b2c5870854d528fcd44e1caba917b6c87a8caa",
    ]
    widths = ((23, 24, 255, 256), (65_535, 65_536, 2**32 - 1, 2**32), (2**63 - 1, 0, 0, 0))
    found = [hashes(bench, tokens)[0] for tokens in widths]
    equal(found, expected, "hashes of tokens of 1, 2, 3, 5 and 9 bytes")


@example("KV-HASH-3")
def the_parent_of_first_blocks(bench: Bench) -> None:
    equal(bench.manager(4).none_hash.hex(), NONE_HASH, "the parent of first blocks")
    again = bench.manager(9, full(2)).none_hash.hex()
    equal(again, NONE_HASH, "it depends on the seed alone")
    empty = bench.manager(4, hash_seed="").none_hash
    equal(bench.manager(4, hash_seed="").none_hash, empty, "an empty seed is a seed")
    drawn = {bench.manager(4, hash_seed=None).none_hash for _ in range(4)}
    equal(len(drawn), 4, "different parents of four managers without a seed")
    equal({len(value) for value in drawn}, {32}, "their widths")
    manager = bench.manager(4, hash_seed=None)
    equal(manager.none_hash, manager.none_hash, "it is kept for life")


@example("KV-HASH-4")
def a_hash_for_each_full_block(bench: Bench) -> None:
    manager = bench.manager(4)
    request = manager.request("r", (1, 2, 3))
    equal(len(request.block_hashes), 0, "hashes of 3 tokens")
    for appended, expected in (((4,), 1), ((5, 6, 7), 1), ((8, 9, 10, 11), 2), ((12,), 3)):
        manager.append(request, appended)
        equal(len(request.block_hashes), expected, f"hashes up to token {appended[-1]}")
    equal(request.block_hashes[1].hex(), TWO, "hash 1, found bit by bit")
    without = bench.manager(4, enable_caching=False)
    found = without.request("r", EIGHT).block_hashes
    equal(len(found), 0, "hashes with caching off")


@example("KV-HASH-5", "KV-CFG-5")
def a_large_block_uses_the_last_hash_inside_it(bench: Bench) -> None:
    manager = bench.manager(20, full(4), full(8))
    request = manager.started("r", (*EIGHT, 9))
    equal([h.hex() for h in request.block_hashes], [ONE, TWO], "the request's hashes")
    bench.need(Feature.SNAPSHOT)
    large = manager.get_blocks(request).to_lists()[1][0]
    keys = manager.snapshot().block_keys[large]
    equal([key.hex() for key in keys], [TWO + "00000001"], "the key of a block of eight")


@example("KV-HASH-6")
def a_key_names_the_group(bench: Bench) -> None:
    bench.need(Feature.SNAPSHOT)
    manager = bench.manager(20, full(4), full(8), full(4, sliding_window=3), window(30, 4))
    request = manager.started("r", (*EIGHT, 9))
    keys = manager.snapshot().block_keys
    found = [
        sorted(key.hex() for block in blocks for key in keys[block])
        for blocks in manager.get_blocks(request).to_lists()
    ]
    groups = [[ONE, TWO], [TWO], [ONE, TWO], [ONE, TWO]]
    expected = [sorted(h + f"{number:08x}" for h in hashed) for number, hashed in enumerate(groups)]
    equal(found, expected, "keys by group")


@example("KV-HASH-7")
def extra_keys_are_ordered(bench: Bench) -> None:
    bench.need(Feature.LORA, Feature.MULTIMODAL, Feature.CACHE_SALT, Feature.PROMPT_EMBEDDINGS)
    found = hashes(
        bench,
        (1, 9, 9, 9),
        lora=LoRA("sql", 1),
        multimodal=(MultimodalItem("img", 1, 3),),
        cache_salt="tenant-a",
        prompt_embeddings=PromptEmbeddings(bytes(range(12)), 2),
    )
    expected = {
        "tagged": "3b5f2b290238da81095e56255c92c5e8a568ec2d75c29f4cce72ccfcc420b311",
        "plain": "b73a07194b2c460b3af28895fbbe390881a9e28d159fabd0b16a01c918b405d9",
    }[bench.policy.extra_keys]
    equal(found, [expected], "adapter, item, salt and embeddings")
    plain = hashes(bench, EIGHT, lora=None, multimodal=(), cache_salt=None)
    equal(plain, [ONE, TWO], "no extra keys at all")


@example("KV-HASH-8")
def items_enter_every_block_they_overlap(bench: Bench) -> None:
    bench.need(Feature.MULTIMODAL)
    tokens = (1, 9, 9, 9, 9, 9, 2, 3)
    both = (MultimodalItem("img", 1, 5), MultimodalItem("snd", 7, 1))
    expected = {
        "tagged": [
            "24d88040e4255dc6468f42413ee9a199fec978f4a31eef95cd1ce3daf84353c6",
            "fc3be94dfe43fd9750c3d30b1717281ce6f0c8fe774ec6dd956b9163f46d2e28",
        ],
        "plain": [
            "87008556927f3fda6d10d500292a74234ef069d74d400f0911022a265622fb21",
            "ed7378afca36f4b07b316ff1e811bad9d8e476231126177722a1b50a4125f786",
        ],
    }[bench.policy.extra_keys]
    equal(hashes(bench, tokens, multimodal=both), expected, "two items")
    behind = hashes(bench, EIGHT, multimodal=(MultimodalItem("img", 4, 4),))
    equal(behind[0], ONE, "an item from token 4 on leaves block 0")
    holds(behind[1] != TWO, "it enters block 1")
    manager = bench.manager(4)
    grown = manager.request("g", tokens[:5], multimodal=both)
    manager.append(grown, tokens[5:])
    equal([h.hex() for h in grown.block_hashes], expected)


@example("KV-HASH-9")
def embeddings_enter_as_digests(bench: Bench) -> None:
    bench.need(Feature.PROMPT_EMBEDDINGS)
    data = PromptEmbeddings(bytes(range(12)), 2)
    found = hashes(bench, (0,) * 12, prompt_embeddings=data)
    first = {
        "tagged": "e4aa10d30c2b08d1088be1f87ebe51651b203cff40571ad888ed130d0d32bdb1",
        "plain": "92ca4b71ae640cc185f22ca7d89dd02a46bd955eea45ec793b875602468283f8",
    }[bench.policy.extra_keys]
    equal(found[0], first, "the first hash")
    other = hashes(bench, (0,) * 12, prompt_embeddings=PromptEmbeddings(bytes(range(11)) + b"x", 2))
    equal(other[0], found[0], "content that differs in block 1 leaves block 0")
    holds(found[1] != other[1], "it changes block 1")
    holds(found[2] != hashes(bench, (0,) * 12)[2])


@example("KV-HASH-10")
def salt_and_adapter(bench: Bench) -> None:
    bench.need(Feature.CACHE_SALT, Feature.LORA)
    salted, adapted = {
        "tagged": (
            [
                "6d7c30cb6f20dee666a6c6005cb423ea5c1febb3d260951ae61a0a49a8358a68",
                "d2372500a03180a22bdaff6d3ac22ccfb8724badc377227eaee5d2df442afb9e",
            ],
            [
                "ab6096a32055cacfa98124363a44b4822c02b4311545b559c495205160e04b76",
                "41c87d116f18abfd026564d96f6c988b042e845922548103108260023a3182b6",
            ],
        ),
        "plain": (
            [
                "5188afdf425172363edc325e9600bdb55cfc0950138d1c11b71ec2ac150962f4",
                "d6ebcd87b3c5985e221e92720d5a6da265d81b6ff6df2e250b21da9b6601f57f",
            ],
            [
                "f374114a258409ac3ddea812e4d896becd135086cb09a9009806590b5758dc84",
                "154e224bc09ffef9363712d14bcb7684a0a710c32903a464326c1578294842fb",
            ],
        ),
    }[bench.policy.extra_keys]
    equal(hashes(bench, EIGHT, cache_salt="tenant-a"), salted, "with a salt")
    for number in (1, 2):
        found = hashes(bench, EIGHT, lora=LoRA("sql", number))
        equal(found, adapted, f"with adapter number {number}")
    found = hashes(bench, EIGHT, lora=LoRA("sql", 1, "/adapters/sql"))
    is_new = bench.policy.extra_keys == "tagged"
    equal([one != other for one, other in zip(found, adapted, strict=True)], [is_new] * 2)


@example("KV-HASH-10", "KV-POL-10", level=Level.SAFETY)
def equal_names(bench: Bench) -> None:
    """A salt and an adapter of one name share nothing, unless that was declared."""
    bench.need(Feature.PREFIX_CACHING, Feature.CACHE_SALT, Feature.LORA)
    if bench.policy.extra_keys == "plain":
        return
    contents: tuple[dict[str, Any], ...] = (
        {"cache_salt": "x"},
        {"lora": LoRA("x", 1)},
        {"cache_salt": "x", "lora": LoRA("x", 1)},
    )
    for first, second in permutations(contents, 2):
        manager = bench.manager(9)
        manager.started("first", range(5), **first)
        hit = manager.get_computed_blocks(manager.request("second", range(5), **second))
        equal(hit.hit_length_tokens, 0, f"the hit of {second} after {first}")


@example("KV-HASH-11")
def the_short_hash_function(bench: Bench) -> None:
    manager = bench.manager(4, hash_function="sha256_cbor_64bit", trusted_tenants=True)
    equal(manager.none_hash.hex(), "f8b55adff2e61c3e", "the parent of first blocks")
    found = hashes(bench, EIGHT, hash_function="sha256_cbor_64bit")
    equal(found, ["0b09a5c601439d9c", "0f3b310b01f9683b"], "hashes of 1 … 8")
    bench.need(Feature.SNAPSHOT)
    manager.started("r", EIGHT[:5])
    keys = [key.hex() for key in manager.snapshot().lookup_order]
    equal(keys, ["0b09a5c601439d9c00000000"], "the key in group 0")


@example("KV-HASH-12")
def the_fast_hash_function(bench: Bench) -> None:
    manager = bench.manager(4, hash_function="xxhash_cbor", trusted_tenants=True)
    equal(manager.none_hash.hex(), "1ebe36576dcb573f26b99533a20aaeca")
    found = hashes(bench, EIGHT, hash_function="xxhash_cbor")
    expected = ["0a8577df5ee3430515a8cc1f6e3ac52e", "d152782cb4d753bde718a811a3b75e23"]
    equal(found, expected, "hashes of 1 … 8")
