"""Examples of the chapter on hashing: the values that its text gives."""

from __future__ import annotations

from itertools import permutations
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.examples.bench import Bench, full
from kvcheck.rules.examples.example import example
from kvcheck.rules.scenarios.groups import window
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
    manager = bench.manager(4, full(4), hash_function=function)
    request = bench.request(manager, "r", tokens, **content)
    return [block_hash.hex() for block_hash in request.block_hashes]


@example("KV-HASH-1")
def chain(bench: Bench) -> None:
    """Block hashes are a chain."""
    bench.equal("hashes of 1 … 8", [ONE, TWO], hashes(bench, EIGHT))
    bench.equal("the first hash of 5 … 8", [LATER], hashes(bench, (5, 6, 7, 8)))
    same, other = hashes(bench, (*EIGHT, 1, 1, 1, 1)), hashes(bench, (*EIGHT[:7], 9, 1, 1, 1, 1))
    bench.equal("the hash before the token that differs", same[0], other[0])
    bench.holds("a token that differs changes every hash from its block on",
                same[1] != other[1] and same[2] != other[2])  # fmt: skip


@example("KV-HASH-2")
def encoding(bench: Bench) -> None:
    """Tokens of every width are encoded."""
    expected = [
        "dd764a125ed01b5d54916c6217e6b5b0b35541004e9cd2aa0f05587f85a26ed5",
        "ee48c3b11ddad92223a62ea9ece5e687f4c570b605f207a1fe9bcf0b759aaac6",
        "774afbe7094daaac2b25004643b2c5870854d528fcd44e1caba917b6c87a8caa",
    ]
    widths = ((23, 24, 255, 256), (65_535, 65_536, 2**32 - 1, 2**32), (2**63 - 1, 0, 0, 0))
    found = [hashes(bench, tokens)[0] for tokens in widths]
    bench.equal("hashes of tokens of 1, 2, 3, 5 and 9 bytes", expected, found)


@example("KV-HASH-3")
def none_hash(bench: Bench) -> None:
    """The parent of first blocks."""
    bench.equal("the parent of first blocks", NONE_HASH, bench.manager(4).none_hash.hex())
    again = bench.manager(9, full(2)).none_hash.hex()
    bench.equal("it depends on the seed alone", NONE_HASH, again)
    empty = bench.manager(4, hash_seed="").none_hash
    bench.equal("an empty seed is a seed", empty, bench.manager(4, hash_seed="").none_hash)
    drawn = {bench.manager(4, hash_seed=None).none_hash for _ in range(4)}
    bench.equal("different parents of four managers without a seed", 4, len(drawn))
    bench.equal("their widths", {32}, {len(value) for value in drawn})
    manager = bench.manager(4, hash_seed=None)
    bench.equal("it is kept for life", manager.none_hash, manager.none_hash)


@example("KV-HASH-4")
def num_hashes(bench: Bench) -> None:
    """A hash for each full block."""
    manager = bench.manager(4)
    request = bench.request(manager, "r", (1, 2, 3))
    bench.equal("hashes of 3 tokens", 0, len(request.block_hashes))
    for appended, expected in (((4,), 1), ((5, 6, 7), 1), ((8, 9, 10, 11), 2), ((12,), 3)):
        bench.subject.append_tokens(manager, request, appended)
        bench.equal(f"hashes up to token {appended[-1]}", expected, len(request.block_hashes))
    bench.equal("hash 1, found bit by bit", TWO, request.block_hashes[1].hex())
    without = bench.manager(4, enable_caching=False)
    found = bench.request(without, "r", EIGHT).block_hashes
    bench.equal("hashes with caching off", 0, len(found))


@example("KV-HASH-5", "KV-CFG-5")
def large_blocks(bench: Bench) -> None:
    """A large block uses the last hash inside it."""
    manager = bench.manager(20, full(4), full(8))
    request = bench.started(manager, "r", (*EIGHT, 9))
    bench.equal("the request's hashes", [ONE, TWO], [h.hex() for h in request.block_hashes])
    bench.need(Feature.SNAPSHOT)
    large = manager.get_blocks(request).to_lists()[1][0]
    keys = manager.snapshot().block_keys[large]
    bench.equal("the key of a block of eight", [TWO + "00000001"], [key.hex() for key in keys])


@example("KV-HASH-6")
def cache_keys(bench: Bench) -> None:
    """A key names the group."""
    bench.need(Feature.SNAPSHOT)
    manager = bench.manager(20, full(4), full(8), full(4, sliding_window=3), window(30, 4))
    request = bench.started(manager, "r", (*EIGHT, 9))
    keys = manager.snapshot().block_keys
    found = [
        sorted(key.hex() for block in blocks for key in keys[block])
        for blocks in manager.get_blocks(request).to_lists()
    ]
    groups = [[ONE, TWO], [TWO], [ONE, TWO], [ONE, TWO]]
    expected = [sorted(h + f"{number:08x}" for h in hashed) for number, hashed in enumerate(groups)]
    bench.equal("keys by group", expected, found)


@example("KV-HASH-7")
def extra_keys(bench: Bench) -> None:
    """Extra keys are ordered."""
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
    bench.equal("adapter, item, salt and embeddings", [expected], found)
    plain = hashes(bench, EIGHT, lora=None, multimodal=(), cache_salt=None)
    bench.equal("no extra keys at all", [ONE, TWO], plain)


@example("KV-HASH-8")
def items(bench: Bench) -> None:
    """Items enter every block they overlap."""
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
    bench.equal("two items", expected, hashes(bench, tokens, multimodal=both))
    behind = hashes(bench, EIGHT, multimodal=(MultimodalItem("img", 4, 4),))
    bench.equal("an item from token 4 on leaves block 0", ONE, behind[0])
    bench.holds("it enters block 1", behind[1] != TWO)
    manager = bench.manager(4)
    grown = bench.request(manager, "g", tokens[:5], multimodal=both)
    bench.subject.append_tokens(manager, grown, tokens[5:])
    bench.equal("blocks that generated tokens complete", expected,
                [h.hex() for h in grown.block_hashes])  # fmt: skip


@example("KV-HASH-9")
def embeddings(bench: Bench) -> None:
    """Embeddings enter as digests."""
    bench.need(Feature.PROMPT_EMBEDDINGS)
    data = PromptEmbeddings(bytes(range(12)), 2)
    found = hashes(bench, (0,) * 12, prompt_embeddings=data)
    first = {
        "tagged": "e4aa10d30c2b08d1088be1f87ebe51651b203cff40571ad888ed130d0d32bdb1",
        "plain": "92ca4b71ae640cc185f22ca7d89dd02a46bd955eea45ec793b875602468283f8",
    }[bench.policy.extra_keys]
    bench.equal("the first hash", first, found[0])
    other = hashes(bench, (0,) * 12, prompt_embeddings=PromptEmbeddings(bytes(range(11)) + b"x", 2))
    bench.equal("content that differs in block 1 leaves block 0", found[0], other[0])
    bench.holds("it changes block 1", found[1] != other[1])
    bench.holds("a block beyond the embeddings has a digest too",
                found[2] != hashes(bench, (0,) * 12)[2])  # fmt: skip


@example("KV-HASH-10")
def salts(bench: Bench) -> None:
    """Salt and adapter."""
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
    bench.equal("with a salt", salted, hashes(bench, EIGHT, cache_salt="tenant-a"))
    for number in (1, 2):
        found = hashes(bench, EIGHT, lora=LoRA("sql", number))
        bench.equal(f"with adapter number {number}", adapted, found)
    found = hashes(bench, EIGHT, lora=LoRA("sql", 1, "/adapters/sql"))
    is_new = bench.policy.extra_keys == "tagged"
    bench.equal("whether a path enters both blocks", [is_new] * 2,
                [one != other for one, other in zip(found, adapted, strict=True)])  # fmt: skip


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
        bench.started(manager, "first", range(5), **first)
        hit = manager.get_computed_blocks(bench.request(manager, "second", range(5), **second))
        bench.equal(f"the hit of {second} after {first}", 0, hit.hit_length_tokens)


@example("KV-HASH-11")
def short(bench: Bench) -> None:
    """The short hash function."""
    manager = bench.manager(4, hash_function="sha256_cbor_64bit")
    bench.equal("the parent of first blocks", "f8b55adff2e61c3e", manager.none_hash.hex())
    found = hashes(bench, EIGHT, hash_function="sha256_cbor_64bit")
    bench.equal("hashes of 1 … 8", ["0b09a5c601439d9c", "0f3b310b01f9683b"], found)
    bench.need(Feature.SNAPSHOT)
    bench.started(manager, "r", EIGHT[:5])
    keys = [key.hex() for key in manager.snapshot().lookup_order]
    bench.equal("the key in group 0", ["0b09a5c601439d9c00000000"], keys)


@example("KV-HASH-12")
def fast(bench: Bench) -> None:
    """The fast hash function."""
    manager = bench.manager(4, hash_function="xxhash_cbor")
    bench.equal("the parent of first blocks", "1ebe36576dcb573f26b99533a20aaeca",
                manager.none_hash.hex())  # fmt: skip
    found = hashes(bench, EIGHT, hash_function="xxhash_cbor")
    expected = ["0a8577df5ee3430515a8cc1f6e3ac52e", "d152782cb4d753bde718a811a3b75e23"]
    bench.equal("hashes of 1 … 8", expected, found)


HASHING = (
    chain,
    encoding,
    none_hash,
    num_hashes,
    large_blocks,
    cache_keys,
    extra_keys,
    items,
    embeddings,
    salts,
    equal_names,
    short,
    fast,
)
