"""New names for the tokens of a record, which keep only which prompts begin alike, and how far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvspec._check import INT64_MAX

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
        """Add tokens after those that the request has."""
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
