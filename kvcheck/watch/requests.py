"""The content of the requests that a monitor sees, and how much of it is computed."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Container
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeAlias

from kvcheck.play.shadow.content import Content
from kvcheck.watch.ownership import Lists
from kvspec.request import Request, RequestInput

Describe: TypeAlias = Callable[[Request], "RequestInput | None"]
"""From a request to the input it was made from; None where only its tokens are known."""

MAX_IDLE = 16
"""Requests without blocks whose content is kept, so that waiting ones are not processed in each
step.
"""


def described(request: Request) -> RequestInput | None:
    """Return the request's member `input`, if it is its RequestInput, as in kvref and kvfast."""
    found = getattr(request, "input", None)
    return found if isinstance(found, RequestInput) else None


@dataclass(slots=True)
class Followed:
    """A request. `num_computed`: tokens that attention reads from now on, and never fewer blocks.

    `draft_from`: the first token that was computed before it was known; None when there is none.
    `read`: what was read back last, lists and number of tokens.
    """

    request: Request
    content: Content
    num_computed: int = 0
    draft_from: int | None = None
    read: tuple[Lists, int] | None = None


class Requests:
    """Requests by name: those that hold blocks, and a few that do not."""

    def __init__(self, describe: Describe, *, tags_extra_keys: bool = True) -> None:
        self.describe = describe
        self.tags_extra_keys = tags_extra_keys
        self._followed: OrderedDict[str, Followed] = OrderedDict()

    def get(self, name: str) -> Followed | None:
        return self._followed.get(name)

    def items(self) -> list[tuple[str, Followed]]:
        return list(self._followed.items())

    def follow(self, request: Request, num_tokens: int) -> Followed:
        name = request.request_id
        known = self._followed.get(name)
        if known is None or known.request is not request or len(known.content.tokens) > num_tokens:
            given = self.describe(request)
            content = content_of(request, given, tags_extra_keys=self.tags_extra_keys)
            known = Followed(request, content)
            self._followed[name] = known
        tokens = known.content.tokens
        if len(tokens) < num_tokens:
            tokens.extend(request.token_ids[len(tokens) : num_tokens])
        self._followed.move_to_end(name)
        return known

    def forget_idle(self, holders: Container[str]) -> None:
        """Drop the longest unused ones of those that hold nothing, beyond a few."""
        idle = [name for name in self._followed if name not in holders]
        for name in idle[:-MAX_IDLE]:
            del self._followed[name]

    @property
    def size_bytes(self) -> int:
        return sum(200 + followed.content.size_bytes for followed in self._followed.values())


def content_of(
    request: Request, given: RequestInput | None, *, tags_extra_keys: bool = True
) -> Content:
    """Return the prompt; a token that represents an item or an embedding counts as that.

    Without tags an adapter and a salt of one name are the same (KV-POL-10).
    """
    tokens = array("q", request.token_ids[: request.num_prompt_tokens])
    if given is None:
        return Content(b"", tokens)
    for item in given.multimodal:
        for place in range(item.length):
            if item.offset + place < len(tokens):
                tokens[item.offset + place] = _stand_in(f"{item.identifier}\0{place}".encode())
    embeddings = given.prompt_embeddings
    if embeddings is not None:
        size = embeddings.bytes_per_token
        for place in range(min(len(tokens), len(embeddings.data) // size)):
            tokens[place] = _stand_in(embeddings.data[place * size : (place + 1) * size])
    adapter = None if given.lora is None else (given.lora.name, given.lora.path)
    root: tuple[object, ...] = (given.cache_salt, adapter)
    if not tags_extra_keys:
        root = tuple(each for each in (adapter and adapter[0], given.cache_salt) if each)
    return Content(repr(root).encode(), tokens)


def _stand_in(data: bytes) -> int:
    """Return a number in place of a token, which no other content has."""
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "big") >> 1
