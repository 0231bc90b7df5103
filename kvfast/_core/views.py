"""The tokens and hashes of a request as sequences (KV-REQ-1, KV-HASH-4)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar, overload

T = TypeVar("T")


class Viewed(Protocol):
    """A request, as far as its views ask it."""

    @property
    def num_tokens(self) -> int: ...

    @property
    def num_hashes(self) -> int: ...

    def tokens_between(self, start: int, stop: int) -> list[int]: ...

    def hash_at(self, number: int) -> bytes: ...


class _View(Sequence[T]):
    """A part of a request, whose elements are made when asked for; equal to equal lists."""

    __slots__ = ("_request",)

    def __init__(self, request: Viewed) -> None:
        self._request = request

    def between(self, start: int, stop: int) -> list[T]:
        """Return elements `start` … `stop - 1`, which must exist."""
        raise NotImplementedError

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> list[T]: ...

    def __getitem__(self, index: int | slice) -> T | list[T]:
        chosen = range(len(self))[
            index
        ]  # resolves what is negative, open or outside as a list does
        if isinstance(chosen, int):
            (element,) = self.between(chosen, chosen + 1)  # of any object: it may be short
            return element
        if chosen.step == 1:
            return self.between(chosen.start, max(chosen.start, chosen.stop))
        return [element for i in chosen for element in self.between(i, i + 1)]

    def __iter__(self) -> Iterator[T]:
        return iter(self.between(0, len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, _View):
            other = other[:]
        if not isinstance(other, list):
            return NotImplemented
        return self[:] == other

    __hash__ = None  # type: ignore[assignment]  # it changes, like a list

    def __repr__(self) -> str:
        return repr(self[:])


class TokenIds(_View[int]):
    """The tokens of a request."""

    __slots__ = ()

    def __len__(self) -> int:
        return self._request.num_tokens

    def between(self, start: int, stop: int) -> list[int]:
        return self._request.tokens_between(start, stop)


class BlockHashes(_View[bytes]):
    """The hashes of a request."""

    __slots__ = ()

    def __len__(self) -> int:
        return self._request.num_hashes

    def between(self, start: int, stop: int) -> list[bytes]:
        return [self._request.hash_at(number) for number in range(start, stop)]
