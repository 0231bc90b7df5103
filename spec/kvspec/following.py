"""Requests whose tokens and hashes the engine keeps (KV-REQ-6 … KV-REQ-8).

An engine that has a list of tokens and a list of block hashes for each request anyway tells a
manager only what has changed: how many tokens there are, and the hashes of blocks that are newly
full. The manager's `hash_function` is then one of `kvspec.config.GIVEN_HASHES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kvspec._check import boolean, count, exact_members, text
from kvspec.errors import InvalidArgumentError
from kvspec.interface import KVCacheManager
from kvspec.request import Request


@dataclass(frozen=True)
class FollowedInput:
    """A request as it is now; the input of `make_followed`.

    `hashes`: one for each block of `num_tokens` tokens that can have one (KV-HASH-4), none with
    caching off.
    `skip_reading_cache`, `reports_hits`: as in `kvspec.request.RequestInput`.
    """

    request_id: str
    num_tokens: int
    num_prompt_tokens: int
    hashes: Sequence[bytes] = ()
    skip_reading_cache: bool = False
    reports_hits: bool = False

    def __post_init__(self) -> None:
        exact_members(self)
        text("request_id", self.request_id, error=InvalidArgumentError)
        if not self.request_id:
            raise InvalidArgumentError("request_id", self.request_id, "a non-empty text")
        checked_counts(self.num_tokens, self.num_prompt_tokens, 0)
        boolean("skip_reading_cache", self.skip_reading_cache, error=InvalidArgumentError)
        boolean("reports_hits", self.reports_hits, error=InvalidArgumentError)


@runtime_checkable
class FollowingImplementation(Protocol):
    """An `Implementation` with `Feature.GIVEN_HASHES` has this, too."""

    def make_followed(self, manager: KVCacheManager, given: FollowedInput) -> Request:
        """A request without tokens; `append_tokens` refuses it (KV-REQ-6).

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
        """The request has so many tokens now, and behind its hashes these (KV-REQ-7, KV-REQ-8).

        `num_prompt_tokens`: of the tokens, those of the prompt; None: as many as before.
        InvalidArgumentError: `request` if it was not made by `make_followed`, `num_tokens`,
        `num_prompt_tokens`, `hashes` for another number of them, `hashes[i]` for other bytes.
        """


def checked_counts(
    num_tokens: int, num_prompt_tokens: int | None, num_prompt_before: int, *, where: str = ""
) -> tuple[int, int]:
    """Tokens, and those of the prompt: at least one, and no more than all. `where`: `[3]`, say."""
    tokens = count(f"num_tokens{where}", num_tokens, 1)
    field, given = f"num_prompt_tokens{where}", num_prompt_tokens
    prompt = num_prompt_before if given is None else count(field, given, 1)
    if prompt > tokens:
        raise InvalidArgumentError(
            field, given, f"at most the {tokens} tokens; there were {prompt}"
        )
    return tokens, prompt


def checked_hashes(hashes: Sequence[bytes], number: int, size_bytes: int) -> list[bytes]:
    """As many hashes as there are newly full blocks, each of its length (KV-REQ-7)."""
    if not issubclass(type(hashes), Sequence):
        raise InvalidArgumentError("hashes", hashes, "a sequence of hashes")
    given = [each for each, _ in zip(hashes, range(number + 1), strict=False)]
    if len(given) != number:
        raise InvalidArgumentError("hashes", len(given), f"{number}, one for each newly full block")
    if {*map(type, given)} <= {bytes} and {*map(len, given)} <= {size_bytes}:
        return given
    is_right = [type(each) is bytes and len(each) == size_bytes for each in given]
    place = is_right.index(False)
    raise InvalidArgumentError(f"hashes[{place}]", given[place], f"{size_bytes} bytes")
