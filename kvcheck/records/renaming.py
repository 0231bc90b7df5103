"""Old names and hashes of a record, and the new ones that `kvspec redact` gives them."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvcheck.play.player import Player
from kvspec.domains import INT64_MAX
from kvspec.interface import Implementation
from kvspec.record import Header, Operation

GROUP_BYTES = 4
"""A key is a hash followed by the group (KV-HASH-6)."""


@dataclass
class Names:
    """Old values and new ones, numbered in the order of first use.

    Texts of all kinds share their numbers: a salt and an adapter of one name make one extra key.
    """

    texts: dict[str, str] = field(default_factory=dict)
    adapters: dict[int, int] = field(default_factory=dict)
    requests: dict[str, str] = field(default_factory=dict)

    def text(self, text: str | None) -> str | None:
        """Rename a salt, an adapter's name or an item's identifier; empty texts have a meaning and
        stay.
        """
        return self.texts.setdefault(text, f"text-{len(self.texts)}") if text else text

    def request(self, name: str) -> str:
        return self.requests.setdefault(name, f"r{len(self.requests)}") if name else name

    def adapter(self, number: int | None) -> int | None:
        if number is None:
            return None
        return self.adapters.setdefault(number, len(self.adapters) + 1)

    def arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Rename the arguments of any operation, except its tokens."""
        new = dict(arguments)
        if new.get("cache_salt"):
            new["cache_salt"] = self.text(new["cache_salt"])
        if new.get("lora") is not None:
            lora = new["lora"]
            texts = {key: self.text(lora[key]) for key in ("name", "path") if key in lora}
            new["lora"] = {**texts, "id": self.adapter(lora["id"])}
        if new.get("mm_features"):
            new["mm_features"] = [
                {**item, "identifier": self.text(item["identifier"])} for item in new["mm_features"]
            ]
        return new


class Hashes:
    """Old hashes and new ones: the same requests, made of old and of new content on an oracle."""

    def __init__(self, header: Header, oracle: Implementation, key: bytes) -> None:
        config = header.config
        self.config = config
        self.short_in_events = config.int_event_hashes
        self.key_bytes = key
        self.none_hash = header.none_hash.hex()
        self.known: dict[str, str] = {}
        self.short: dict[str, str] = {}
        self.prompts = Prompts()
        if header.raises is not None:  # without a manager there are no requests
            return
        if config.hash_seed is not None:
            self.config = replace(config, hash_seed=self.stranger("seed", 32))
        self.old = Player(oracle, oracle.create(config, check_invariants=False))
        self.new = Player(oracle, oracle.create(self.config, check_invariants=False))
        if self.old.manager.none_hash.hex() == self.none_hash:
            self._note(self.none_hash, self.new.manager.none_hash.hex())

    def learn(self, operation: Operation, names: Names) -> dict[str, Any]:
        """Take in what a request's content hashes to, before and after; the new arguments."""
        arguments = names.arguments(operation.arguments)
        name = operation.request_id or ""
        is_new = operation.name == "new_request"
        if not is_new and operation.name != "append_tokens":
            return arguments
        member = "prompt_token_ids" if is_new else "token_ids"
        renamed = (self.prompts.begun if is_new else self.prompts.appended)(name, arguments[member])
        arguments[member] = renamed
        if operation.raises is not None:
            return arguments
        old = self.old.perform(operation.name, name, operation.arguments)
        new = self.new.perform(operation.name, names.request(name), arguments)
        if old.error is not None or new.error is not None:
            return arguments
        self.prompts.keep(name, renamed, is_new=is_new)
        pairs = list(
            zip(*(side.result[_HASHES[operation.name]] for side in (old, new)), strict=True)
        )
        first = 0 if is_new else old.result["num_block_hashes"] - len(pairs)
        size = self.old.manager.config.hash_block_size_tokens or 1
        for number, (before, after) in enumerate(pairs, start=first + 1):
            self._note(before, after)
            for text in (before, _short(before)):
                self.prompts.mark(text, name, number * size)
        return arguments

    def _note(self, before: str, after: str) -> None:
        self.known[before] = after
        self.short[_short(before)] = _short(after)

    def stranger(self, text: str, num_digits: int) -> str:
        """Return a hash of no content, of the same length, specific to this run and text."""
        found = hmac.digest(self.key_bytes, text.encode(), "sha256").hex()
        return (found * (num_digits // len(found) + 1))[:num_digits]

    def hash(self, text: str) -> str:
        """Rename a block hash, given as hex."""
        return self.known.setdefault(text, self.stranger(text, len(text)))

    def in_event(self, text: str) -> str:
        """Rename a block hash of an event: hex, or the decimal number of its last 64 bits."""
        if not self.short_in_events:
            return self.hash(text)
        return self.short.setdefault(text, _short(self.stranger(text, 16)))

    def key(self, text: str) -> str:
        return self.hash(text[: -2 * GROUP_BYTES]) + text[-2 * GROUP_BYTES :]


_HASHES: Mapping[str, str] = {"new_request": "block_hashes", "append_tokens": "new_block_hashes"}


def _short(text: str) -> str:
    """Return the number by which events show a hash."""
    return str(int(text[-16:] or "0", 16))


_ROOT = -1


class Prompts:
    """All token sequences as one tree; a token's new name is the number of its node.

    Sequences with a common beginning share its nodes. After that no node is shared, so that equal
    tokens get different names: their frequency is hidden.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[int, int], int] = {}
        self._requests: dict[str, list[int]] = {}
        self._behind: dict[str, int] = {}

    def begun(self, request_id: str, tokens: Iterable[int]) -> list[int]:
        """Add a new request's tokens; returns their new names."""
        return self._renamed(_ROOT, tokens)

    def appended(self, request_id: str, tokens: Iterable[int]) -> list[int]:
        places = self._requests.get(request_id)
        return self._renamed(places[-1] if places else _ROOT, tokens)

    def keep(self, request_id: str, renamed: Sequence[int], *, is_new: bool) -> None:
        """Assign these tokens to the request; a refused call does not."""
        if is_new:
            self._requests[request_id] = []
        self._requests[request_id] += renamed

    def mark(self, block_hash: str, request_id: str, num_tokens: int) -> None:
        """Note that this hash, in any form, is of the request's first `num_tokens` tokens."""
        self._behind[block_hash] = self._requests[request_id][num_tokens - 1]

    def behind(self, block_hash: str | None, tokens: Iterable[int]) -> list[int]:
        """Rename tokens after the block of this hash; None: at the beginning.

        After a hash that no request has, the names are all new.
        """
        if block_hash is None:
            return self._renamed(_ROOT, tokens)
        if block_hash not in self._behind:
            self._behind[block_hash] = _ROOT - 1 - len(self._behind)
        return self._renamed(self._behind[block_hash], tokens)

    def _renamed(self, place: int, tokens: Iterable[int]) -> list[int]:
        found = []
        for token in tokens:
            if not 0 <= token <= INT64_MAX:
                # None that a request may have (KV-REQ-1): it stays wrong, and says nothing else.
                found.append(-1 if token < 0 else INT64_MAX + 1)
                continue
            place = self._places.setdefault((place, token), len(self._places))
            found.append(place)
        return found
