"""A request that lives in a child process, with a copy of what may be read of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvcheck.remote.connection import Connection
from kvcheck.remote.values import carried
from kvspec.errors import FormatError, InvalidArgumentError, KVSpecError, RemoteError
from kvspec.request import Request, RequestStatus


class RemoteRequest:
    """See `kvspec.request.Request`.

    The scheduler's attributes are set here, and changes are sent with the next message about the
    request.
    """

    def __init__(
        self,
        connection: Connection,
        handle: int,
        args: Mapping[str, Any],
        made: Mapping[str, Any],
    ) -> None:
        self.connection = connection
        self.handle = handle
        self._request_id = str(args["request_id"])
        self._token_ids = list(args["prompt_token_ids"])
        self._num_prompt_tokens = len(self._token_ids)
        self._num_tokens = int(made["num_tokens"])
        self._block_hashes = [bytes.fromhex(digits) for digits in made["block_hashes"]]
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.status = RequestStatus.WAITING
        self.junction_tokens = 0
        self.num_in_flight_tokens = 0
        self._sent = self._owned()
        connection.forget(self, "requests", handle)

    @property
    def request_id(self) -> str:
        """The name under which a manager keeps the request's blocks."""
        return self._request_id

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens, as the child counts them."""
        return self._num_tokens

    @property
    def num_prompt_tokens(self) -> int:
        return self._num_prompt_tokens

    @property
    def token_ids(self) -> Sequence[int]:
        return self._token_ids

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """Hashes from the child's replies."""
        return self._block_hashes

    def call(self, op: str, manager: int, args: Mapping[str, Any]) -> Any:
        """Send a message about this request, with what the scheduler changed."""
        owned = self._owned()
        # Compare types as well: True is not 1, though Python calls them equal.
        changed = {
            name: value
            for name, value in owned.items()
            if value != self._sent[name] or type(value) is not type(self._sent[name])
        }
        try:
            result = self.connection.call(
                op, manager=manager, request=self.handle, owned=changed, args=args
            )
        except (FormatError, RemoteError):
            raise  # perhaps it was never set; setting it again does no harm
        except KVSpecError:
            self._sent = owned
            raise
        self._sent = owned
        return result

    def _owned(self) -> dict[str, Any]:
        return {
            "num_computed_tokens": carried("request.num_computed_tokens", self.num_computed_tokens),
            "num_preemptions": carried("request.num_preemptions", self.num_preemptions),
            "status": carried("request.status", self.status),
            "junction_tokens": carried("request.junction_tokens", self.junction_tokens),
            "num_in_flight_tokens": carried(
                "request.num_in_flight_tokens", self.num_in_flight_tokens
            ),
        }

    def appended(self, token_ids: Sequence[int], answer: Mapping[str, Any]) -> None:
        """Note that the child appended these tokens."""
        self._token_ids.extend(token_ids)
        self._num_tokens = int(answer["num_tokens"])
        self._block_hashes += [bytes.fromhex(digits) for digits in answer["new_block_hashes"]]
        if len(self._block_hashes) != answer["num_block_hashes"]:
            raise self.connection.nonsense(
                f"num_block_hashes {answer['num_block_hashes']}"
                f" where {len(self._block_hashes)} hashes were returned so far"
            )


def own(request: Request, connection: Connection) -> RemoteRequest:
    """Return the request if it lives in this child."""
    if not isinstance(request, RemoteRequest) or request.connection is not connection:
        raise InvalidArgumentError("request", request, "made by this implementation's make_request")
    return request
