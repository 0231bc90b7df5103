"""Calls as operations of a record, with those that make and extend requests between them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvcheck.play.calls import content_of
from kvcheck.watch.calls import Noted
from kvcheck.watch.requests import Describe
from kvspec.config import ManagerConfig
from kvspec.errors import KVSpecError
from kvspec.files.objects import Where
from kvspec.operations import OPERATIONS, check_arguments
from kvspec.record import Observed, Operation
from kvspec.request import Request, RequestInput
from kvspec.snapshot_codec import hexes, ints


class UnrecordableError(KVSpecError):
    """The reason for a missing record, which ends the message of a violation."""


class OperationWriter:
    """Operations in a row; those that make and extend requests are put between the calls."""

    def __init__(
        self,
        config: ManagerConfig,
        describe: Describe,
        initial: Observed,
        *,
        knows_state: bool = True,
    ) -> None:
        self.hash_size = (config.hash_block_size_tokens or 0) if config.enable_caching else 0
        self.ahead = config.hash_lookahead_tokens
        self.describe = describe
        self.index = 0
        self.made: dict[str, tuple[Request, int]] = {}
        self.before = _as_it_was(initial)
        self.knows_state = knows_state

    def prepare(self, noted: Noted) -> Iterator[Operation]:
        """Keep the request as it was at the call."""
        request = noted.request
        if request is None:
            return
        made = self.made.get(request.request_id)
        if made is None or made[0] is not request:
            yield self.new_request(request, self.describe(request))
            made = (request, request.num_prompt_tokens)
        if made[1] < noted.num_tokens:
            yield self.append_tokens(request, made[1], noted.num_tokens)
        self.made[request.request_id] = (request, max(made[1], noted.num_tokens))

    def operation(
        self, noted: Noted, after: Observed, uncompared: tuple[str, ...] = ()
    ) -> Operation:
        arguments = check_arguments(OPERATIONS[noted.name], noted.arguments, Where("arguments"))
        name = None if noted.request is None else noted.request.request_id
        self.index += 1
        self.knows_state = "state" not in uncompared
        self.before = _as_it_was(after)
        return Operation(
            index=self.index - 1,
            name=noted.name,
            request_id=name,
            arguments=arguments,
            observed=after,
            result=noted.result,
            raises=noted.raises,
            message=noted.message,
            uncompared=uncompared,
        )

    def new_request(self, request: Request, given: RequestInput | None) -> Operation:
        """Return the operation that makes the request, from `given` if known."""
        prompt = ints(request.token_ids[: request.num_prompt_tokens])
        arguments = {"prompt_token_ids": prompt, **more_of(given)}
        hashes = hexes(request.block_hashes[: self._num_hashes(len(prompt))])
        result = {"num_tokens": len(prompt), "block_hashes": hashes}
        return self._about_request("new_request", request, arguments, result)

    def append_tokens(self, request: Request, start: int, end: int) -> Operation:
        """Return the operation that extends the request from `start` tokens to `end`."""
        hashed = (self._num_hashes(start), self._num_hashes(end))
        result = {
            "num_tokens": end,
            "num_block_hashes": hashed[1],
            "new_block_hashes": hexes(request.block_hashes[hashed[0] : hashed[1]]),
        }
        tokens = ints(request.token_ids[start:end])
        return self._about_request("append_tokens", request, {"token_ids": tokens}, result)

    def _about_request(
        self, name: str, request: Request, arguments: dict[str, object], result: object
    ) -> Operation:
        """Return an operation that does not change the manager."""
        self.index += 1
        return Operation(
            index=self.index - 1,
            name=name,
            request_id=request.request_id,
            arguments=arguments,
            observed=self.before,
            result=result,
            uncompared=() if self.knows_state else ("state",),
        )

    def _num_hashes(self, num_tokens: int) -> int:
        return max(num_tokens - self.ahead, 0) // self.hash_size if self.hash_size else 0


def _as_it_was(before: Observed) -> Observed:
    return replace(before, state={}, dup_order=None, state_parts={})


def more_of(given: RequestInput | None) -> dict[str, object]:
    """Return the content of a request besides its tokens."""
    if given is None:
        return {}
    if given.prompt_embeddings is not None:
        raise UnrecordableError("a request has prompt embeddings, which records cannot hold")
    return content_of(given)
