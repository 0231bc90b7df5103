"""kvfast's code for the hashes of vLLM's requests, with the bytes that vLLM's own makes.

vLLM's `Request` takes a function that hashes its new full blocks. `request_block_hasher` makes one;
the schedulers give it to the requests they get.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.utils import hashing
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, get_request_block_hasher

from kvfast import _build
from kvfast.engines.vllm.versions import is_since
from kvspec.errors import KVSpecError


class HashesRequests:
    """The part of a scheduler that replaces vLLM's hashing by kvfast's.

    A request arrives with its prompt hashed; from then on kvfast hashes its new blocks. A hasher
    that is not vLLM's own stays.
    """

    kvfast_reason: str | None
    stock_hasher: Any = None
    request_block_hasher: Any = None

    def add_request(self, request: Any) -> None:
        """vLLM's, once the request has kvfast's hasher."""
        given = request._block_hasher
        if given is not None and given is not self.request_block_hasher:
            if given is not self.stock_hasher and self.kvfast_reason is None:
                arguments = _arguments_of(given)
                if arguments is not None:
                    self.stock_hasher = given
                    self.request_block_hasher = request_block_hasher(*arguments)
            if given is self.stock_hasher:
                request._block_hasher = self.request_block_hasher
        super().add_request(request)  # type: ignore[misc]  # vLLM's scheduler has it


def request_block_hasher(
    hash_block_size: int, caching_hash_fn: Callable[[Any], bytes], *num_hash_lookahead_tokens: int
) -> Callable[[Any], list[bytes]]:
    """Replace vLLM's `get_request_block_hasher`: the same arguments, hashes and chains.

    Serves vLLM's four hash functions. For others, and for values that kvfast cannot encode (numbers
    that are not token ids, a first parent of another size than a hash), vLLM computes the hashes,
    as it does with the hash look-ahead of 0.33.
    """
    stock: Callable[[Any], list[bytes]] = get_request_block_hasher(
        hash_block_size, caching_hash_fn, *num_hash_lookahead_tokens
    )
    chain = _chain_of(caching_hash_fn, hash_block_size)
    if chain is None or any(num_hash_lookahead_tokens):
        return stock
    no_keys = chain.spelled(None)
    first_item = 0 if is_since(31) else -1  # before, vLLM asks for the last item alone

    def new_hashes(request: Any) -> list[bytes]:
        known = request.block_hashes
        tokens = request._all_token_ids
        start = len(known) * hash_block_size
        if len(tokens) - start < hash_block_size:
            return []
        parent = (known[-1] if known else None) or kv_cache_utils.NONE_HASH
        if _is_plain(request):
            found = chain.hashes(tokens[start:] if start else tokens, parent, no_keys)
        else:
            found = _hashes_of_runs(request, tokens, start, parent)
        return stock(request) if found is None else found

    def _hashes_of_runs(
        request: Any, tokens: list[int], start: int, parent: bytes
    ) -> list[bytes] | None:
        found: list[bytes] = []
        item = first_item if start else 0
        last = len(tokens) - len(tokens) % hash_block_size
        while start < last:
            keys, item = generate_block_hash_extra_keys(
                request, start, start + hash_block_size, item
            )
            spelled = chain.spelled(keys)
            if spelled is None:
                return None
            end = start + hash_block_size if _may_change(request, start) else last
            more = chain.hashes(tokens[start:end], parent, spelled)
            if more is None:
                return None
            found += more
            start, parent = end, more[-1]
        return found

    return new_hashes


def _arguments_of(hasher: Any) -> tuple[int, Any] | None:
    """Return the arguments of vLLM's `get_request_block_hasher`; None if it did not make this."""
    code = getattr(hasher, "__code__", None)
    if code is not get_request_block_hasher(1, hashing.sha256).__code__:
        return None
    cells = [cell.cell_contents for cell in hasher.__closure__]
    given = dict(zip(code.co_freevars, cells, strict=True))
    if given.get("num_hash_lookahead_tokens"):  # 0.33 has it
        return None  # these are hashed by vLLM
    return given["hash_block_size"], given["caching_hash_fn"]


def _chain_of(function: Any, block_size: int) -> Any:
    """Return the chain that hashes a run of blocks; None if kvfast has no such function."""
    of_vllm = {
        hashing.sha256: ("sha256_cbor", True),
        hashing.sha256_cbor: ("sha256_cbor", False),
        hashing.xxhash: ("xxhash_cbor", True),
        hashing.xxhash_cbor: ("xxhash_cbor", False),
    }
    digest, is_pickled = of_vllm.get(function, ("", False))
    try:
        return _build.load("chain").block_chain(digest, block_size, is_pickled)
    except KVSpecError:  # none of these, or one whose package is not installed
        return None


def _is_plain(request: Any) -> bool:
    return (
        not request.mm_features
        and not request.lora_request
        and not request.cache_salt
        and request.prompt_embeds is None
    )


def _may_change(request: Any, start: int) -> bool:
    """Return whether the block after the one at token `start` may have other extra keys."""
    if request.prompt_embeds is not None or (start == 0 and request.cache_salt):
        return True
    if not request.mm_features:
        return False
    last = request.mm_features[-1].mm_position
    return bool(last.offset + last.length > start)
