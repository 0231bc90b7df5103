"""The hashing modules of one build, and requests whose hashes are compared with the reference's."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
from hypothesis import strategies as st

from kvref.hashing import Hasher as ReferenceHasher
from kvref.request import make_request as make_reference_request
from kvspec.config import HASH_FUNCTIONS
from kvspec.request import LoRA, MultimodalItem, PromptEmbeddings, RequestInput

BUILDS = ("_core", "_compiled")

# Both sides of each length at which the encoding of an int grows, and the ends of the
# range. Four that are small are encoded at once, compiled.
SMALL = (0, 1, 23, 24, 255, 256, 65535, 65536, 2**31 - 1)
BOUNDARIES = (*SMALL, 2**31, 2**32 - 1, 2**32, 2**63 - 1)


@dataclass(frozen=True)
class Core:
    name: str
    digest: ModuleType
    hashing: ModuleType
    request: ModuleType
    extra_keys: ModuleType
    many: ModuleType


def core(name: str) -> Core:
    """Return the modules of one build; skip without a compiled one, unless it is required."""
    try:
        modules = [
            importlib.import_module(f"kvfast.{name}.{module}")
            for module in ("digest", "hashing", "request", "extra_keys", "many")
        ]
    except ImportError as error:
        if os.environ.get("KVSPEC_REQUIRE_COMPILED"):
            raise
        pytest.skip(f"no compiled build of kvfast here: {error}")
    return Core(name, *modules)


def expect_equal_hashes(
    core: Core, request: RequestInput, block_size: int, function: str = "sha256_cbor"
) -> None:
    for tags in (True, False):
        hasher = ReferenceHasher(function, "0", tags=tags)
        reference = make_reference_request(request, hasher, block_size)
        mine = core.hashing.Hasher(function, "0", tags)
        made = core.request.make_request(request, mine, block_size)
        assert [one.hex() for one in made.block_hashes] == [
            one.hex() for one in reference.block_hashes
        ], (core.name, function, tags, block_size, request)


tokens = st.sampled_from(BOUNDARIES) | st.integers(0, 130_000) | st.integers(0, 2**63 - 1)
texts = st.text(max_size=4) | st.sampled_from(["", "é" * 12, "x" * 24, "y" * 300])
names = st.none() | texts.filter(bool)
functions = st.sampled_from(HASH_FUNCTIONS)


@st.composite
def requests(draw: st.DrawFn, max_tokens: int = 60) -> RequestInput:
    items, end = [], 0
    for identifier in draw(st.lists(texts, max_size=4)):
        offset = end + draw(st.integers(0, 12))
        end = offset + draw(st.integers(1, 20))
        items.append(MultimodalItem(identifier, offset, end - offset))
    width = draw(st.integers(1, 3))
    rows = draw(st.none() | st.integers(0, max_tokens))
    return RequestInput(
        "r",
        draw(st.lists(tokens, min_size=1, max_size=max_tokens)),
        cache_salt=draw(names),
        lora=draw(st.none() | st.builds(LoRA, names.filter(bool), st.integers(0, 3), names)),
        multimodal=tuple(items),
        prompt_embeddings=None if rows is None else PromptEmbeddings(bytes(rows * width), width),
    )


def everything(length: int = 40) -> RequestInput:
    return RequestInput(
        "r",
        [(7 * i) % 300 for i in range(length)],
        cache_salt="tenant-a",
        lora=LoRA("sql", 5, "/adapters/sql"),
        multimodal=(
            MultimodalItem("img", 1, 9),
            MultimodalItem("snd", 10, 1),
            MultimodalItem("", 30, 300),
        ),
        prompt_embeddings=PromptEmbeddings(bytes(range(50)), 2),
    )


def words_of(made: Any) -> bytes:
    count = made.num_hashes * made.hasher.words_per_digest
    if not hasattr(made, "digest_words"):  # compiled, they are not shared
        return b"".join(made.block_hashes)
    return b"".join(made.digest_words[i].to_bytes(8, "little") for i in range(count))
