"""Mutants of hashing: what goes into a hash, in which order, and how it is encoded (KV-HASH-*)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import cbor2

from kvref import hashing, request
from kvref.hashing import Hasher, TaggedKeys, extra_keys
from kvref.request import ReferenceRequest
from kvspec.request import RequestInput
from tests.mutants.cbor import CborDialect, encoded
from tests.mutants.make import classes_in, patched


class ParentIsForgotten(Hasher):
    """KV-HASH-1: a block is known by its own tokens, whatever comes before."""

    def block_hash(self, parent: bytes, token_ids: Sequence[int], extra: TaggedKeys) -> bytes:
        return super().block_hash(self.none_hash, token_ids, extra)


class TokensAreSorted(Hasher):
    """KV-HASH-1: the order of the tokens does not count."""

    def block_hash(self, parent: bytes, token_ids: Sequence[int], extra: TaggedKeys) -> bytes:
        return super().block_hash(parent, sorted(token_ids), extra)


class LastTokenIsForgotten(Hasher):
    """KV-HASH-1: the last token of a block is not hashed."""

    def block_hash(self, parent: bytes, token_ids: Sequence[int], extra: TaggedKeys) -> bytes:
        return super().block_hash(parent, token_ids[:-1], extra)


class NullExtraIsAnEmptyList(Hasher):
    """KV-HASH-7: without extra keys an empty list is hashed."""

    def block_hash(self, parent: bytes, token_ids: Sequence[int], extra: TaggedKeys) -> bytes:
        return super().block_hash(parent, token_ids, extra or ())


class ParentAsBytes64(Hasher):
    """KV-HASH-11: with 64-bit hashes the parent is encoded as bytes, not as an int."""

    def block_hash(self, parent: bytes, token_ids: Sequence[int], extra: TaggedKeys) -> bytes:
        if self.function != "sha256_cbor_64bit":
            return super().block_hash(parent, token_ids, extra)
        return self._digest(hashing.encode((parent, token_ids, extra)))


class HighBits64(Hasher):
    """KV-HASH-11: the first eight bytes of the digest are taken, not the last."""

    def _digest(self, encoded: bytes) -> bytes:
        if self.function == "sha256_cbor_64bit":
            return hashlib.sha256(encoded).digest()[:8]
        return super()._digest(encoded)


class LittleEndian64(Hasher):
    """KV-HASH-11: the int is built from the low byte up."""

    def _digest(self, encoded: bytes) -> bytes:
        digest = super()._digest(encoded)
        return digest[::-1] if self.function == "sha256_cbor_64bit" else digest


class LittleEndianXxhash(Hasher):
    """KV-HASH-12: the 16 bytes of XXH3 come low byte first."""

    def _digest(self, encoded: bytes) -> bytes:
        digest = super()._digest(encoded)
        return digest[::-1] if self.function == "xxhash_cbor" else digest


class NoneHashOfBytes(Hasher):
    """KV-HASH-3: the seed is encoded as a byte string."""

    def __init__(self, function: str, seed: str | None) -> None:
        super().__init__(function, seed)
        if seed is not None:
            self.none_hash = self._digest(hashing.encode(seed.encode()))


class NoneHashOfAnInt(Hasher):
    """KV-HASH-3: a seed of digits is encoded as a number."""

    def __init__(self, function: str, seed: str | None) -> None:
        super().__init__(function, seed)
        if seed is not None and seed.isdigit():
            self.none_hash = self._digest(hashing.encode(int(seed)))


class NoneHashIsZero(Hasher):
    """KV-HASH-3: the first parent is all zeros, whatever the seed."""

    def __init__(self, function: str, seed: str | None) -> None:
        super().__init__(function, seed)
        self.none_hash = bytes(len(self.none_hash))


class NoKinds(Hasher):
    """KV-HASH-7, KV-HASH-10, KV-POL-10: extra keys are hashed as bare values under every policy."""

    def block_hash(self, parent: bytes, token_ids: Sequence[int], extra: TaggedKeys) -> bytes:
        self.tags = False
        return super().block_hash(parent, token_ids, extra)


class SaltsAreAdapters(Hasher):
    """KV-HASH-7: a salt is hashed as the adapter of that name."""

    def block_hash(self, parent: bytes, token_ids: Sequence[int], extra: TaggedKeys) -> bytes:
        swapped = [("lora", k[1], None) if k[0] == "cache_salt" else k for k in extra or ()]
        return super().block_hash(parent, token_ids, tuple(swapped) or None)


class NoPathNoPlace(Hasher):
    """KV-HASH-7: an adapter without a path has two members, not three."""

    def block_hash(self, parent: bytes, token_ids: Sequence[int], extra: TaggedKeys) -> bytes:
        short = [k[:2] if k[0] == "lora" and k[2] is None else k for k in extra or ()]
        return super().block_hash(parent, token_ids, tuple(short) or None)


def path_nowhere(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-10: the adapter's path enters no block."""
    keys = extra_keys(req, start, end) or ()
    return tuple((*k[:2], None) if k[0] == "lora" else k for k in keys) or None


def salt_in_every_block(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-10: the salt enters every block."""
    keys = extra_keys(req, start, end) or ()
    salt = (("cache_salt", req.cache_salt),) if start and req.cache_salt else ()
    return (*keys, *salt) or None


def salt_nowhere(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-10: the salt enters no block: requests of two tenants share theirs."""
    return extra_keys(replace(req, cache_salt=None), start, end)


def adapter_in_the_first_block(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-10: the adapter name enters the first block only."""
    return extra_keys(req if start == 0 else replace(req, lora=None), start, end)


def adapter_nowhere(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-7: the adapter name enters no block."""
    return extra_keys(replace(req, lora=None), start, end)


def adapter_by_id(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-7: the adapter's number enters instead of its name."""
    keys = extra_keys(replace(req, lora=None), start, end) or ()
    return ((("lora", str(req.lora.id), req.lora.path), *keys) if req.lora else keys) or None


def adapter_after_the_salt(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-7: the adapter name comes last, not first."""
    keys = extra_keys(req, start, end) or ()
    return ((*keys[1:], keys[0]) if req.lora else keys) or None


def salt_before_items(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-7: the salt comes before the multimodal items."""
    keys = list(extra_keys(req, start, end) or ())
    salt = ("cache_salt", req.cache_salt)
    if salt in keys:
        keys.remove(salt)
        keys.insert(1 if req.lora else 0, salt)
    return tuple(keys) or None


def first_item_only(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-8: of several items in a block only the first enters."""
    inside = [m for m in req.multimodal if m.offset < end and m.offset + m.length > start]
    return extra_keys(replace(req, multimodal=tuple(inside[:1])), start, end)


def items_without_place(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-8: the same item at another place in the block is the same key."""
    keys = extra_keys(req, start, end) or ()
    return tuple((*k[:2], 0) if k[0] == "mm" else k for k in keys) or None


def items_at_their_offset(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-8: an item enters with its offset in the request, not in the block."""
    offsets = {m.identifier: m.offset for m in req.multimodal}
    keys = extra_keys(req, start, end) or ()
    return tuple((*k[:2], offsets[str(k[1])]) if k[0] == "mm" else k for k in keys) or None


def items_from_their_first_block(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-8: an item enters only the block in which it begins."""
    begun = tuple(m for m in req.multimodal if m.offset >= start)
    return extra_keys(replace(req, multimodal=begun), start, end)


def items_that_touch(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-8: an item that ends where the block begins enters it, too."""
    longer = tuple(
        replace(m, length=m.length + 1) if m.offset + m.length == start else m
        for m in req.multimodal
    )
    keys = list(extra_keys(replace(req, multimodal=()), start, end) or ())
    touching = [
        ("mm", m.identifier, m.offset - start)
        for m in longer
        if m.offset < end and m.offset + m.length > start
    ]
    place = 1 if req.lora else 0
    return (*keys[:place], *touching, *keys[place:]) or None


def items_beyond_the_end(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-8: an item that begins where the block ends enters it, too."""
    keys = list(extra_keys(replace(req, multimodal=()), start, end) or ())
    inside = [
        ("mm", m.identifier, m.offset - start)
        for m in req.multimodal
        if m.offset <= end and m.offset + m.length > start
    ]
    place = 1 if req.lora else 0
    return (*keys[:place], *inside, *keys[place:]) or None


def embeddings_of_the_request(req: RequestInput, start: int, end: int) -> TaggedKeys:
    """KV-HASH-9: every block has the digest of all embeddings."""
    keys = extra_keys(replace(req, prompt_embeddings=None), start, end) or ()
    if req.prompt_embeddings is not None:
        keys = (*keys, ("prompt_embeds", hashlib.sha256(req.prompt_embeddings.data).digest()))
    return keys or None


def appended_tokens_make_no_hash(self: ReferenceRequest) -> None:
    """KV-HASH-4, KV-REQ-2: only the blocks of the prompt are hashed."""
    whole = list(self.token_ids)
    self.token_ids = whole[: self.num_prompt_tokens]
    _right_hashes(self)
    self.token_ids = whole


def appended_tokens_have_no_extra_keys(self: ReferenceRequest) -> None:
    """KV-HASH-7: blocks that appended tokens complete have no extra keys."""
    whole = self.input
    if self.num_tokens > self.num_prompt_tokens:
        self.input = replace(whole, lora=None, multimodal=(), cache_salt=None)
    _right_hashes(self)
    self.input = whole


def one_hash_per_call(self: ReferenceRequest) -> None:
    """KV-HASH-4: appending tokens hashes at most one block."""
    before, is_new = len(self.block_hashes), self.num_tokens == self.num_prompt_tokens
    _right_hashes(self)
    if not is_new:
        self.block_hashes = self.block_hashes[: before + 1]


def incomplete_blocks_are_hashed(self: ReferenceRequest) -> None:
    """KV-HASH-4: a block that lacks one token has a hash already."""
    whole = list(self.token_ids)
    size = self.hash_block_size_tokens
    if size and len(whole) % size == size - 1:
        self.token_ids = [*whole, 0]
    _right_hashes(self)
    self.token_ids = whole


def long_heads(value: object) -> bytes:
    """KV-HASH-2: lengths and ints from 24 to 255 take three bytes, not two."""
    return encoded(value, CborDialect(short_byte=False))


def long_heads_from_23(value: object) -> bytes:
    """KV-HASH-2: a length or int of 23 takes two bytes, not one."""
    return encoded(value, CborDialect(largest_tiny=22))


def long_heads_from_255(value: object) -> bytes:
    """KV-HASH-2: a length or int of 255 takes three bytes, not two."""
    return encoded(value, CborDialect(largest_byte=254))


def long_heads_from_65535(value: object) -> bytes:
    """KV-HASH-2: an int of 65,535 takes five bytes, not three."""
    return encoded(value, CborDialect(largest_short=65_534))


def narrow_ints(value: object) -> bytes:
    """KV-HASH-2: ints above 2^32 lose their high bits."""
    return encoded(value, CborDialect(int_bits=32))


def indefinite_lists(value: object) -> bytes:
    """KV-HASH-2: lists have no length and end with a break."""
    return encoded(value, CborDialect(definite_lists=False))


def text_as_bytes(value: object) -> bytes:
    """KV-HASH-2: texts are encoded as byte strings."""
    return encoded(value, CborDialect(text_major=2))


def text_in_latin_1(value: object) -> bytes:
    """KV-HASH-2: texts are encoded in Latin-1, not in UTF-8."""
    return encoded(value, CborDialect(text_encoding="latin-1"))


def tagged(value: object) -> bytes:
    """KV-HASH-2: the encoding begins with the tag that says it is CBOR."""
    return bytes.fromhex("d9d9f7") + cbor2.dumps(value, canonical=True)


_right_hashes = ReferenceRequest.hash_full_blocks
_EXTRA = (request, "extra_keys")
_FULL = (ReferenceRequest, "hash_full_blocks")
_ENCODE = (hashing, "encode")

MUTANTS = (
    *classes_in(__name__),
    patched(path_nowhere, _EXTRA),
    patched(salt_in_every_block, _EXTRA),
    patched(salt_nowhere, _EXTRA),
    patched(adapter_in_the_first_block, _EXTRA),
    patched(adapter_nowhere, _EXTRA),
    patched(adapter_by_id, _EXTRA),
    patched(adapter_after_the_salt, _EXTRA),
    patched(salt_before_items, _EXTRA),
    patched(first_item_only, _EXTRA),
    patched(items_without_place, _EXTRA),
    patched(items_at_their_offset, _EXTRA),
    patched(items_from_their_first_block, _EXTRA),
    patched(items_that_touch, _EXTRA),
    patched(items_beyond_the_end, _EXTRA),
    patched(embeddings_of_the_request, _EXTRA),
    patched(appended_tokens_make_no_hash, _FULL),
    patched(appended_tokens_have_no_extra_keys, _FULL),
    patched(one_hash_per_call, _FULL),
    patched(incomplete_blocks_are_hashed, _FULL),
    patched(long_heads, _ENCODE),
    patched(long_heads_from_23, _ENCODE),
    patched(long_heads_from_255, _ENCODE),
    patched(long_heads_from_65535, _ENCODE),
    patched(narrow_ints, _ENCODE),
    patched(indefinite_lists, _ENCODE),
    patched(text_as_bytes, _ENCODE),
    patched(text_in_latin_1, _ENCODE),
    patched(tagged, _ENCODE),
)
