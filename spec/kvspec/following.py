"""Requests whose tokens and hashes the engine keeps (KV-REQ-6 … KV-REQ-8).

An engine that already keeps a list of tokens and of block hashes for each request passes only
changes to a manager: the number of tokens, and the hashes of newly full blocks. The manager's
`hash_function` is then one of `kvspec.config.GIVEN_HASHES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, runtime_checkable

from kvspec.domains import Natural, check_members, count, text
from kvspec.errors import InvalidArgumentError
from kvspec.interface import KVCacheManager
from kvspec.request import Request


@dataclass(frozen=True)
class FollowedInput:
    """A request as it is now; the input of `make_followed`.

    `hashes`: one for each block of `num_tokens` tokens that can have one (KV-HASH-4), none with
    caching off.
    `skip_reading_cache`, `reports_hits`, `priority`: as in `kvspec.request.RequestInput`.
    """

    request_id: str
    num_tokens: int
    num_prompt_tokens: int
    hashes: Sequence[bytes] = ()
    skip_reading_cache: bool = False
    reports_hits: bool = False
    priority: Natural = 0

    def __post_init__(self) -> None:
        check_members(self, error=InvalidArgumentError)
        text("request_id", self.request_id, error=InvalidArgumentError)
        if not self.request_id:
            raise InvalidArgumentError("request_id", self.request_id, "a non-empty text")
        checked_counts(self.num_tokens, self.num_prompt_tokens, 0)


@runtime_checkable
class FollowingImplementation(Protocol):
    """The additional methods of an `Implementation` with `Feature.GIVEN_HASHES`."""

    def make_followed(self, manager: KVCacheManager, given: FollowedInput) -> Request:
        """Make a request without tokens; `append_tokens` refuses it (KV-REQ-6).

        The manager is not changed. InvalidArgumentError: `manager` if its hashes are not given,
        `hashes` and `hashes[i]` as in `follow`.
        """

    def follow(
        self,
        manager: KVCacheManager,
        request: Request,
        num_tokens: int,
        hashes: Sequence[bytes] = (),
        *,
        num_prompt_tokens: int | None = None,
    ) -> None:
        """Set the request's number of tokens, and append hashes (KV-REQ-7, KV-REQ-8).

        `num_prompt_tokens`: how many of them are of the prompt; None: as many as before.
        InvalidArgumentError: `request` if it was not made by `make_followed`, `num_tokens`,
        `num_prompt_tokens`, `hashes` if their number is wrong, `hashes[i]` for wrong bytes.
        """


def checked_counts(
    num_tokens: int, num_prompt_tokens: int | None, num_prompt_before: int, *, where: str = ""
) -> tuple[int, int]:
    """Check the numbers of tokens and prompt tokens: 1 ≤ prompt ≤ all. `where`: such as `[3]`."""
    tokens = count(f"num_tokens{where}", num_tokens, 1)
    field, given = f"num_prompt_tokens{where}", num_prompt_tokens
    prompt = num_prompt_before if given is None else count(field, given, 1)
    if prompt > tokens:
        raise InvalidArgumentError(
            field, given, f"at most the {tokens} tokens; there were {prompt}"
        )
    return tokens, prompt


def checked_hashes(hashes: Sequence[bytes], number: int, size_bytes: int) -> list[bytes]:
    """Check that there is a hash for each newly full block, of the right length (KV-REQ-7)."""
    if not issubclass(type(hashes), Sequence):
        raise InvalidArgumentError("hashes", hashes, "a sequence of hashes")
    given = [*islice(hashes, number + 1)]
    if len(given) != number:
        raise InvalidArgumentError("hashes", len(given), f"{number}, one for each newly full block")
    if {*map(type, given)} <= {bytes} and {*map(len, given)} <= {size_bytes}:
        return given
    is_right = [type(each) is bytes and len(each) == size_bytes for each in given]
    place = is_right.index(False)
    raise InvalidArgumentError(f"hashes[{place}]", given[place], f"{size_bytes} bytes")
