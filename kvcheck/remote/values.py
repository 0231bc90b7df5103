"""The values of the protocol: those that records already encode, and further ones.

Decoding is strict: FormatError names the member. Encoding takes an implementation's results and
raises TypeError or AttributeError for invalid ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from kvcheck.play.calls import content_of, input_of
from kvspec.editions import FIRST
from kvspec.errors import (
    BlockReleaseError,
    BusyError,
    CacheMemoryError,
    ConfigError,
    InvalidArgumentError,
    InvariantViolation,
    KVSpecError,
    PageSizeError,
    SpoiltError,
    StaleHitError,
    UnknownBlockError,
    UnsupportedError,
)
from kvspec.files.objects import (
    Check,
    Where,
    anything,
    boolean,
    checked_members,
    hex_bytes,
    integer,
    list_of,
    object_of,
    optional,
    shown,
    structure,
    text,
)
from kvspec.files.shapes import Shape
from kvspec.interface import Capabilities, Feature
from kvspec.policy import EXTRA_KEY_FORMS
from kvspec.request import PromptEmbeddings, RequestInput, token_list
from kvspec.requirements import LIMITS, VALUES
from kvspec.specs import SPEC_TYPES
from kvspec.stats import ResidencySample

NOT_SPOKEN = frozenset(
    {
        *(Feature.CUSTOM_SPECS, Feature.BATCHED, Feature.GIVEN_HASHES),
        *(Feature.HOLDING, Feature.BLOCK_FACTS),
    }
)
"""Features that no message carries: code, shared memory, and what an engine does in its process."""

T = TypeVar("T")
_ARGUMENT = ("field", "value", "allowed")
ERRORS: Mapping[type[KVSpecError], tuple[str, ...]] = {
    PageSizeError: (*_ARGUMENT, "layer", "wanted"),
    CacheMemoryError: (
        *_ARGUMENT,
        "max_model_len_tokens",
        "needed_bytes",
        "available_bytes",
        "longest_tokens",
    ),
    StaleHitError: (*_ARGUMENT, "group", "index", "block_id"),
    BlockReleaseError: (*_ARGUMENT, "block_id", "released", "held"),
    ConfigError: _ARGUMENT,
    InvalidArgumentError: _ARGUMENT,
    UnknownBlockError: ("block_id", "num_blocks"),
    UnsupportedError: ("capability", "implementation"),
    BusyError: ("thing", "name"),
    SpoiltError: ("cause",),
    InvariantViolation: ("invariant", "rule", "detail", "state"),
    KVSpecError: (),
}
"""The errors that a reply may carry, and their members; subclasses before their bases."""

INTERNAL_ERROR = "InternalError"
"""The error class if the implementation failed with an error outside the contract."""

PROTOCOL_ERROR = "ProtocolError"
"""The error class for an invalid message; its field `reason` is one of `REASONS`."""

REASONS = ("bad_message", "unknown_op", "unknown_handle", "version", "too_large")

_TEXTS = frozenset(
    {"field", "allowed", "layer", "capability", "implementation"}
    | {"invariant", "rule", "detail", "state", "thing", "cause"}
)
_ANY = frozenset({"value", "block_id", "name"})


def carried(field: str, value: object) -> Any:
    """Encode the value as the protocol carries it; tuples become lists.

    Raises InvalidArgumentError for values that no message can carry: other types, ints beyond 64
    bits, numbers that are not finite, text without a UTF-8 form.
    """
    if value is None or isinstance(value, bool):
        return value
    if type(value) is int and -(2**63) <= value < 2**64:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, str) and value.isascii():
        return str(value)
    if isinstance(value, str) and _has_utf8(value):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [carried(f"{field}[{position}]", item) for position, item in enumerate(value)]
    raise InvalidArgumentError(field, value, "a value that the protocol can carry")


def _has_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


# Errors.


def encode_error(error: BaseException) -> dict[str, Any]:
    """Encode `{"class", "message", "fields"}`."""
    for cls, members in ERRORS.items():
        if isinstance(error, cls):
            fields = {name: _error_member(getattr(error, name, None)) for name in members}
            return {"class": cls.__name__, "message": _clean(str(error)), "fields": fields}
    kind = type(error).__name__
    message = _clean(f"{kind}: {error}")
    return {"class": INTERNAL_ERROR, "message": message, "fields": {"type": kind}}


def protocol_error(reason: str, message: str) -> dict[str, Any]:
    return {"class": PROTOCOL_ERROR, "message": _clean(message), "fields": {"reason": reason}}


def _error_member(value: object) -> Any:
    """Encode a member of an error; one that can't be carried is shown as text."""
    try:
        return carried("", value)
    except (InvalidArgumentError, RecursionError):
        return _clean(shown(value, 1000))


def _shown(message: str) -> str:
    """Escape control characters in a server's text: `\\x1b` instead of an escape."""
    return "".join(
        each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in message
    )


def _clean(message: str) -> str:
    """Escape what has no UTF-8 form."""
    return message.encode(errors="backslashreplace").decode()


def decode_error(value: object, where: Where) -> KVSpecError | tuple[str, str]:
    """Decode an error of the contract, or (class, message) of another failure."""
    found = checked_members(
        value, where, {"class": text, "message": text, "fields": object_of(lambda v, _: v)}, {}
    )
    name, message, fields = _shown(found["class"]), _shown(found["message"]), found["fields"]
    at = where.member("fields")
    if name == INTERNAL_ERROR:
        checked_members(fields, at, {"type": text}, {})
        return name, message
    if name == PROTOCOL_ERROR:
        reason = checked_members(fields, at, {"reason": text}, {})["reason"]
        return f"{name} {reason}", message
    for cls, members in ERRORS.items():
        if cls.__name__ == name:
            checks = {member: check_of_field(member) for member in members}
            return _rebuilt(cls, message, checked_members(fields, at, checks, {}))
    known = ", ".join([*(cls.__name__ for cls in ERRORS), INTERNAL_ERROR, PROTOCOL_ERROR])
    raise where.member("class").error(f"unknown class {shown(name)}; known: {known}")


def check_of_field(name: str) -> Check[Any]:
    return _carried_back if name in _ANY else text if name in _TEXTS else integer


def _carried_back(value: object, where: Where) -> Any:
    try:
        return carried("", value)
    except (InvalidArgumentError, RecursionError):
        raise where.error("not a value that JSON can say") from None


def _rebuilt(cls: type[KVSpecError], message: str, fields: Mapping[str, Any]) -> KVSpecError:
    """Rebuild the error with the server's message, which its constructor would replace."""
    error = cls.__new__(cls)
    error.args = (message,)
    for name, value in fields.items():
        setattr(error, name, value)
    return error


# Capabilities.


def encode_capabilities(capabilities: Capabilities) -> dict[str, Any]:
    """Encode an implementation's capabilities; custom specs are code and are omitted."""
    types = {cls.__name__ for cls in capabilities.spec_types & frozenset(SPEC_TYPES)}
    values = {name: sorted(found) for name, found in capabilities.values.items()}
    return {
        "name": capabilities.name,
        "version": capabilities.version,
        "spec_types": sorted(types),
        "hash_functions": sorted(capabilities.hash_functions),
        "features": sorted(capabilities.features - NOT_SPOKEN),
        "min_block_size": capabilities.min_block_size_tokens,
        "extra_keys": sorted(capabilities.extra_key_forms),
        "edition": capabilities.edition,
        **({"values": values} if values else {}),
        **({"limits": dict(capabilities.limits)} if capabilities.limits else {}),
    }


def decode_capabilities(value: Mapping[str, Any]) -> Capabilities:
    """Decode the capabilities in hello's reply; unknown names are ignored."""
    names = frozenset(value["spec_types"])
    return Capabilities(
        name=value["name"],
        version=value["version"],
        spec_types=frozenset(cls for cls in SPEC_TYPES if cls.__name__ in names),
        hash_functions=frozenset(value["hash_functions"]),
        features=frozenset(feature for feature in Feature if feature in value["features"])
        - NOT_SPOKEN,
        min_block_size_tokens=value.get("min_block_size", 1),
        extra_key_forms=frozenset(value.get("extra_keys", ("plain",))) & frozenset(EXTRA_KEY_FORMS),
        values={
            name: frozenset(found)
            for name, found in value.get("values", {}).items()
            if name in VALUES
        },
        limits={name: most for name, most in value.get("limits", {}).items() if name in LIMITS},
        edition=value.get("edition", FIRST),
    )


# Requests.


def encode_request(request: RequestInput) -> dict[str, Any]:
    """Encode the arguments of `make_request`."""
    embeddings = request.prompt_embeddings
    tokens = token_list(request.prompt_token_ids, field="prompt_token_ids")
    return {
        "request_id": request.request_id,
        "prompt_token_ids": carried("prompt_token_ids", tokens),
        "cache_salt": None,
        "lora": None,
        "mm_features": [],
        "prompt_embeddings": None
        if embeddings is None
        else {"data": embeddings.data.hex(), "bytes_per_token": embeddings.bytes_per_token},
        "skip_reading_prefix_cache": False,
        **content_of(request),
    }


EMBEDDINGS = structure({"data": hex_bytes, "bytes_per_token": integer})

_REQUEST = structure(
    {"request_id": text, "prompt_token_ids": list_of(lambda value, _: value)},
    {
        "cache_salt": optional(text),
        "lora": optional(structure({"name": text, "id": integer}, {"path": optional(text)})),
        "mm_features": optional(
            list_of(structure({"identifier": text, "offset": integer, "length": integer}))
        ),
        "prompt_embeddings": optional(EMBEDDINGS),
        "skip_reading_prefix_cache": boolean,
        "reports_hits": boolean,
        "priority": integer,
    },
)


def decode_request(value: object, where: Where) -> RequestInput:
    """Decode a request; InvalidArgumentError for what `RequestInput` refuses."""
    found = _REQUEST(value, where)
    rows = found.get("prompt_embeddings")
    embeddings = None if rows is None else PromptEmbeddings(**rows)
    return input_of(found["request_id"], found, embeddings)


_SAMPLE = Shape(ResidencySample)
encode_sample, decode_sample = _SAMPLE.write, _SAMPLE.read


# What a server has beside a manager: an index of engines, offload managers.

LOCAL: Mapping[str, bool] = {"is_stream": False, "has_replays": True, "checks_types": False}
"""Members about what no message carries, as they are in another process."""


def encode_parts(can: Any) -> dict[str, Any]:
    """Encode the members of capabilities that differ from the default."""
    values = {each.name: getattr(can, each.name) for each in fields(can) if each.name not in LOCAL}
    less = {name: each for name, each in values.items() if each != getattr(type(can)(), name)}
    return {name: sorted(v) if isinstance(v, frozenset) else v for name, v in less.items()}


def decode_parts(made: Callable[..., T], value: object, member: str) -> T:
    """Decode them from an answer; absent members are the default's, unknown ones ignored."""
    where, usual = Where("answer", field=member), vars(made())
    given: dict[str, Any] = {name: each for name, each in LOCAL.items() if name in usual}
    for name, each in object_of(anything)(value, where).items():
        if isinstance(usual.get(name), bool) and name not in LOCAL:
            given[name] = boolean(each, where.member(name))
        elif name in usual and name not in LOCAL:
            given[name] = frozenset(list_of(text)(each, where.member(name)))
    return made(**given)
