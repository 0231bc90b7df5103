"""The protocol as JSON Schema, made of the tables that server and client check messages with.

The checks of those tables are functions. Calling them shows what they require: each calls
`checked_members` first, which is caught here; lists, objects and nulls are closures, whose parts
are looked up. So the schema cannot differ from the code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from inspect import getclosurevars
from typing import Any
from unittest.mock import patch

from kvcheck.remote import operations, values
from kvspec import codec, event_codec, events, planning_functions, snapshot_codec, specs
from kvspec import operations as recorded
from kvspec.files import objects
from kvspec.offload import Found
from kvspec.planning_functions import FUNCTIONS
from kvspec.request import RequestStatus

Schema = dict[str, Any] | bool
PATH = "kvcheck/data/protocol.schema.json"
HEX = {"$ref": "#/$defs/hex"}
HASH = {"anyOf": [HEX, {"type": "string", "pattern": "^(0|[1-9][0-9]{0,19})$"}]}
EXTRA_KEY = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "minItems": 2}
        | {"items": False},
        {"type": "object", "properties": {"hex": HEX}, "required": ["hex"]}
        | {"additionalProperties": False},
    ]
}
INTEGER = {"$ref": "#/$defs/int"}

LEAVES: Mapping[Any, Schema] = {
    objects.anything: True,
    objects.null: {"type": "null"},
    objects.boolean: {"type": "boolean"},
    objects.text: {"type": "string"},
    operations.found_word: {"enum": [str(each) for each in Found]},
    operations.shown_text: {"type": "string"},  # of printable characters
    objects.integer: INTEGER,
    objects.count: {"$ref": "#/$defs/count"},
    objects.real: {"type": "number"},
    objects.hex_bytes: HEX,
    objects.hex_text: HEX,
    recorded.status: {"enum": list(RequestStatus.__members__)},
    # Looks into the value by itself, so that nothing can be caught.
    event_codec._decode_extra: {"anyOf": [{"type": "null"}, {"type": "array", "items": EXTRA_KEY}]},
    codec.decode_layers: {
        "type": "array",
        "items": {"type": "array", "minItems": 2, "items": False}
        | {"prefixItems": [{"type": "string"}, {"$ref": "#/$defs/spec"}]},
    },
    values._carried_back: True,
    planning_functions._uniform_type: {
        "allOf": [
            {"$ref": "#/$defs/spec"},
            {"properties": {"type": {"const": specs.UniformTypeKVCacheSpecs.__name__}}},
        ]
    },
}
"""Checks that are made of no others."""

NAMED: Mapping[Any, str] = {
    codec.decode_spec: "spec",
    codec.decode_group: "group",
    codec.decode_tensor: "tensor",
    codec.decode_kv_cache: "layout",
    codec.decode_policy: "policy",
    codec.decode_recorded_policy: "policy",
    codec.decode_manager_config: "config",
    codec.decode_planning_config: "planning_config",
    snapshot_codec.decode_snapshot: "snapshot",
    event_codec.decode_stats: "stats",
    values.decode_sample: "sample",
}
"""Checks that stand in the schema once, by this name."""


class Members(Exception):  # noqa: N818 (no error: it carries what was asked for)
    def __init__(self, required: Mapping[str, Any], optional: Mapping[str, Any]) -> None:
        super().__init__()
        self.required, self.optional = required, optional


def object_schema(check: Any, probe: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """Return the schema of the members that a check requires when given `probe`."""

    def caught(_: object, __: object, required: Any, optional: Any) -> Any:
        raise Members(required, optional)

    with ExitStack() as stack:
        for module in [m for m in sys.modules.values() if _has_it(m)]:
            stack.enter_context(patch.object(module, "checked_members", caught))
        try:
            check(probe, objects.Where("probe"), **more)
        except Members as found:
            members = found
        else:
            raise TypeError(f"{check} asks for no members")
    return object_of(members.required, members.optional)


def _has_it(module: Any) -> bool:
    return getattr(module, "checked_members", None) is objects.checked_members


def object_of(required: Mapping[str, Any], optional: Mapping[str, Any] = {}) -> dict[str, Any]:
    found = {name: schema_of(check) for name, check in {**required, **optional}.items()}
    return {
        "type": "object",
        "properties": found,
        "required": sorted(required),
        "additionalProperties": False,
    }


def schema_of(check: Any) -> Schema:
    if check in LEAVES:
        return LEAVES[check]
    if check in NAMED:
        return {"$ref": f"#/$defs/{NAMED[check]}"}
    kind = check.__qualname__.partition(".")[0]
    if kind in ("list_of", "tuple_of", "object_of", "keyed", "optional"):
        inner = schema_of(getclosurevars(check).nonlocals["check"])
        if kind in ("list_of", "tuple_of"):
            return {"type": "array", "items": inner}
        if kind in ("object_of", "keyed"):
            return {"type": "object", "additionalProperties": inner}
        return {"anyOf": [{"type": "null"}, inner]}
    return object_schema(check, {})


def with_type(name: str, found: dict[str, Any]) -> dict[str, Any]:
    """Add the `type` that identifies the object."""
    properties = {"type": {"const": name}, **found["properties"]}
    return {**found, "properties": properties | {"type": {"const": name}}} | {
        "required": sorted({"type", *found["required"]})
    }


def values_by_name() -> dict[str, Schema]:
    whole = {"type": "integer", "minimum": objects.INT_MIN, "maximum": objects.INT_MAX}
    found: dict[str, Schema] = {
        "int": whole,
        "count": {**whole, "minimum": 0},
        "hex": {"type": "string", "pattern": "^([0-9a-f]{2})*$"},
    }
    for check, name in NAMED.items():
        if check is not codec.decode_spec:
            found[name] = object_schema(check, {})
    kinds = [cls.__name__ for cls in specs.SPEC_TYPES]
    seen = [with_type(kind, object_schema(codec.decode_spec, {"type": kind})) for kind in kinds]
    found["spec"] = {"oneOf": seen}
    happened = [
        cls.__name__ for cls in (events.BlockStored, events.BlockRemoved, events.AllBlocksCleared)
    ]
    with patch.dict(LEAVES, {objects.hex_bytes: HASH}):
        shapes = [
            object_schema(event_codec.decode_event, {"type": kind}, int_hashes=False)
            for kind in happened
        ]
    found["event"] = {"oneOf": [with_type(*each) for each in zip(happened, shapes, strict=True)]}
    return found


def error() -> Schema:
    kinds: dict[str, Mapping[str, Schema]] = {
        cls.__name__: {name: schema_of(values.check_of_field(name)) for name in names}
        for cls, names in values.ERRORS.items()
    }
    kinds[values.INTERNAL_ERROR] = {"type": {"type": "string"}}
    kinds[values.PROTOCOL_ERROR] = {"reason": {"enum": list(values.REASONS)}}
    return {"oneOf": [_error(name, fields) for name, fields in kinds.items()]}


def _error(name: str, fields: Mapping[str, Schema]) -> Schema:
    return _exactly(
        {"class": {"const": name}, "message": {"type": "string"}, "fields": _exactly(dict(fields))}
    )


def _exactly(properties: Mapping[str, Schema], optional: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": sorted(set(properties) - set(optional)),
        "additionalProperties": False,
    }


def message(op: str, shape: operations.MessageShape) -> Schema:
    """Return the schema of a message; the implementation judges values of arguments."""
    given = _exactly(dict.fromkeys([*shape.required, *shape.optional], True), [*shape.optional])
    properties: dict[str, Schema] = {"id": INTEGER, "op": {"const": op}}
    properties |= dict.fromkeys(shape.handles, INTEGER)
    optional = [] if shape.required else ["args"]
    if "request" in shape.handles and op != "make_request":
        owned = dict.fromkeys(operations.OWNED_BY_SCHEDULER, True)
        properties["set"] = _exactly(owned, [*owned])
        optional.append("set")
    return _exactly({**properties, "args": given}, optional)


def definitions() -> dict[str, Schema]:
    """Return each operation's `OP.message`, `OP.arguments` of a valid call, and `OP.result`."""
    found = values_by_name()
    for op, shape in operations.MESSAGES.items():
        found[f"{op}.message"] = message(op, shape)
        found[f"{op}.arguments"] = object_of(shape.required, shape.optional)
        found[f"{op}.result"] = schema_of(shape.result)
    offered = object_of(operations.HELLO_RESULT, operations.HELLO_MORE)
    found["hello.result"] = {**offered, "additionalProperties": True}
    found["take_events.result"] = {"type": "array", "items": {"$ref": "#/$defs/event"}}
    for name, function in FUNCTIONS.items():
        found[f"plan.{name}.input"] = object_of(function.checks)
        found[f"plan.{name}.result"] = schema_of(function.answer.read)
    found["plan.arguments"] = {
        "oneOf": [
            _exactly({"fn": {"const": name}, "input": {"$ref": f"#/$defs/plan.{name}.input"}})
            for name in FUNCTIONS
        ]
    }
    found["error"] = error()
    found["message"] = {"oneOf": [{"$ref": f"#/$defs/{op}.message"} for op in operations.MESSAGES]}
    number = {"anyOf": [INTEGER, {"type": "null"}]}
    found["answer"] = {
        "oneOf": [
            _exactly({"id": INTEGER, "result": True}),
            _exactly({"id": number, "error": {"$ref": "#/$defs/error"}}),
        ]
    }
    return found


ABOUT = (
    "One message or one answer of the protocol between a checker and an implementation"
    " (spec/protocol.md). An answer does not name its operation: check its result against OP.result"
    " in $defs. OP.arguments is what a call that succeeds has; a checker also sends arguments of"
    " wrong types, which are to be refused with InvalidArgumentError. JSON Schema takes 1.0 for an"
    " int, the protocol does not."
)


def protocol() -> Mapping[str, str]:
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kvspec protocol, version {operations.PROTOCOL_VERSION}",
        "description": ABOUT,
        "oneOf": [{"$ref": "#/$defs/message"}, {"$ref": "#/$defs/answer"}],
    }
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    found = sorted(definitions().items())
    parts = ",\n".join(f"{json.dumps(name)}: {json.dumps(schema)}" for name, schema in found)
    return {PATH: ",\n".join(["{" + lines[0], *lines[1:], f'"$defs": {{\n{parts}\n}}}}\n'])}
