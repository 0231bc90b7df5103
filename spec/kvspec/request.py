"""Requests: the input of a caller, and the request that a manager reads (KV-REQ-*)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from kvspec.domains import Natural, Positive, check_members, exact_members, int_at_least, text
from kvspec.errors import InvalidArgumentError

TOKEN_ID_MAX = 2**63 - 1
"""Largest token id: 64-bit signed, so that every implementation can hold it in an array."""


class RequestStatus(StrEnum):
    """The status in the scheduler. The watermark applies only to WAITING and PREEMPTED."""

    WAITING = "WAITING"
    RUNNING = "RUNNING"
    PREEMPTED = "PREEMPTED"


def is_status(value: object) -> bool:
    """Return whether the value stores a status or its text, without using the value's own `==`."""
    if type(value) is RequestStatus:
        return True
    return issubclass(type(value), str) and str.__str__(value) in tuple(RequestStatus)


@dataclass(frozen=True)
class LoRA:
    """An adapter: its `name` and `path` enter every block hash, its `id` only the events.

    `path`: the source of its weights; None if unknown. It distinguishes two adapters with the
    same name. It enters no hash under the policy `extra_keys = "plain"` (KV-HASH-7).
    """

    name: str
    id: int
    path: str | None = None

    def __post_init__(self) -> None:
        exact_members(self)
        text("lora.name", self.name, error=InvalidArgumentError)
        if not self.name:
            raise InvalidArgumentError("lora.name", self.name, "a non-empty text")
        int_at_least("lora.id", self.id, 0, error=InvalidArgumentError)
        _text_or_none("lora.path", self.path)


@dataclass(frozen=True)
class MultimodalItem:
    """An image, sound or other item that fills tokens `offset` … `offset + length - 1`.

    `identifier` names the content: equal identifiers mean equal content.
    """

    identifier: str
    offset: Natural
    length: Positive

    def __post_init__(self) -> None:
        check_members(self, error=InvalidArgumentError)
        text("identifier", self.identifier, error=InvalidArgumentError)


@dataclass(frozen=True)
class PromptEmbeddings:
    """Embeddings that replace the first `num_tokens` tokens, as raw bytes.

    `data` holds `bytes_per_token` bytes for each token, in token order (KV-HASH-9).
    """

    data: bytes
    bytes_per_token: Positive

    def __post_init__(self) -> None:
        check_members(self, error=InvalidArgumentError)
        if not isinstance(self.data, bytes):
            raise InvalidArgumentError("data", self.data, "bytes")
        if len(self.data) % self.bytes_per_token:
            raise InvalidArgumentError(
                "data", f"{len(self.data)} bytes", f"a multiple of {self.bytes_per_token} bytes"
            )


@dataclass(frozen=True)
class RequestInput:
    """The input of `make_request`: everything that identifies a request's content.

    `prompt_token_ids`: a sequence of ints, or an array of them that has `tolist` (KV-REQ-5).
    `cache_salt`: requests share blocks only when their salts are equal; None means none, and an
    empty text is refused: it would share with every request without one.
    `multimodal`: sorted by offset, not overlapping. `skip_reading_cache`: the request must compute
    every token itself (prompt log-probabilities, pooling), yet its blocks are cached for others.
    `reports_hits`: events repeat what is stored of the blocks that it hits (KV-EVT-11).
    `priority`: under that order of eviction, blocks of a higher one are kept longer (KV-ORD-2).
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    cache_salt: str | None = None
    lora: LoRA | None = None
    multimodal: tuple[MultimodalItem, ...] = ()
    prompt_embeddings: PromptEmbeddings | None = None
    skip_reading_cache: bool = False
    reports_hits: bool = False
    priority: Natural = 0

    def __post_init__(self) -> None:
        check_members(self, error=InvalidArgumentError)
        text("request_id", self.request_id, error=InvalidArgumentError)
        if not self.request_id:
            raise InvalidArgumentError("request_id", self.request_id, "a non-empty text")
        if _length(self.prompt_token_ids) == 0:
            raise InvalidArgumentError("prompt_token_ids", (), "at least one token")
        _text_or_none("cache_salt", self.cache_salt)
        if self.lora is not None and not isinstance(self.lora, LoRA):
            raise InvalidArgumentError("lora", self.lora, "a LoRA or None")
        embeddings = self.prompt_embeddings
        if embeddings is not None and not isinstance(embeddings, PromptEmbeddings):
            raise InvalidArgumentError("prompt_embeddings", embeddings, "PromptEmbeddings or None")
        _check_items(self.multimodal)


def has_extra_keys(request: RequestInput) -> bool:
    """Return whether anything besides tokens distinguishes its blocks from others (KV-HASH-7)."""
    names = (request.cache_salt, request.lora, request.prompt_embeddings)
    return bool(request.multimodal) or any(name is not None for name in names)


def _text_or_none(field: str, value: str | None) -> None:
    """Raise InvalidArgumentError for an empty text and what is neither a text nor None."""
    if value is not None:
        text(field, value, error=InvalidArgumentError)
        if not value:
            raise InvalidArgumentError(field, value, "a non-empty text or None")


def _length(token_ids: Sequence[int]) -> int:
    try:
        return len(token_ids)
    except (TypeError, OverflowError):  # no sequence; an array without a dimension; a huge range
        raise InvalidArgumentError("prompt_token_ids", token_ids, "a sequence") from None


def _check_items(items: tuple[MultimodalItem, ...]) -> None:
    """Check that items are sorted by offset and do not overlap (KV-REQ-4)."""
    if not isinstance(items, tuple) or not all(isinstance(i, MultimodalItem) for i in items):
        raise InvalidArgumentError("multimodal", items, "a tuple of MultimodalItem")
    end = 0
    for item in items:
        if item.offset < end:
            raise InvalidArgumentError(
                "multimodal", item, f"sorted and not overlapping: offset at least {end}"
            )
        end = item.offset + item.length


@runtime_checkable
class Request(Protocol):
    """A request as a manager sees it, made by `Implementation.make_request`.

    The caller (a scheduler) owns `num_computed_tokens`, `num_preemptions` and `status` and sets
    them before each call; the rest changes only through `Implementation.append_tokens`. With
    `Feature.JUNCTIONS` there is also `junction_tokens`, an int that the caller owns (KV-RET-7), and
    with `Feature.IN_FLIGHT` `num_in_flight_tokens` (KV-MGR-21).
    """

    num_computed_tokens: int
    """Tokens whose KV is in the cache, drafts that are not yet verified excluded (KV-REQ-3)."""
    num_preemptions: int
    """How often the request was preempted; if more than 0, its look-ups are counted separately."""
    status: RequestStatus

    @property
    def request_id(self) -> str:
        """The name under which a manager keeps the request's blocks."""

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens, all finalised."""

    @property
    def num_prompt_tokens(self) -> int:
        """Number of prompt tokens."""

    @property
    def token_ids(self) -> Sequence[int]:
        """All finalised tokens in order."""

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """Hash k covers tokens k*h … (k+1)*h - 1 and, through its parents, all before (KV-HASH-1).

        Empty when caching is off.
        """


def check_token_ids(token_ids: Sequence[int], *, field: str = "token_ids") -> None:
    """Raise InvalidArgumentError unless every token is an int in 0 … 2^63 - 1."""
    for position, token in enumerate(token_ids):
        if type(token) is not int or not 0 <= token <= TOKEN_ID_MAX:
            raise InvalidArgumentError(f"{field}[{position}]", token, "an int in 0 … 2^63 - 1")


def token_list(token_ids: Sequence[int], *, field: str = "token_ids") -> list[int]:
    """Return the tokens as a list, not yet checked, from `tolist` if there is one (KV-REQ-5).

    `array`, NumPy arrays and PyTorch tensors have it; their elements are often not Python ints.
    InvalidArgumentError if it is not a sequence: tokens in a set, say, would have no order.
    """
    tolist = getattr(token_ids, "tolist", None)
    try:
        listed = tolist() if callable(tolist) else token_ids
    except NotImplementedError:  # a memoryview of another byte order
        listed = None
    if not isinstance(listed, Sequence):
        raise InvalidArgumentError(field, token_ids, "a sequence of token ids")
    try:
        return list(listed)
    except OverflowError:  # a range that is longer than any list
        raise InvalidArgumentError(field, token_ids, "tokens that fit in memory") from None
