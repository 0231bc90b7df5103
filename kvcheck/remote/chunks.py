"""Messages of offload managers: their shapes, and a server's calls (`kvspec.offload`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kvcheck.remote.calls import Call, ProtocolViolation, known, unused
from kvcheck.remote.operations import OFFLOAD_MESSAGES
from kvspec._json import Where, anything, boolean, list_of, members, object_of, text
from kvspec.errors import UnsupportedError
from kvspec.offload import (
    Found,
    OffloadCapabilities,
    OffloadConfig,
    OffloadCounts,
    OffloadEvent,
    OffloadImplementation,
    OffloadManager,
    PreparedStore,
    TierTransfer,
)

BOOLEANS = ("has_lower_tiers", "has_counts", "checks_calls", "has_lowest_places")


def encode_offload(offered: OffloadCapabilities) -> dict[str, Any]:
    """Return the member `offload` of hello's reply."""
    flags = {name: getattr(offered, name) for name in BOOLEANS}
    return {**flags, "orders": sorted(offered.orders), "options": sorted(offered.options)}


def decode_offload(value: object, where: Where) -> OffloadCapabilities:
    """Decode that member; absent parts are as in `OffloadCapabilities`, unknown ones ignored."""
    given = object_of(anything)(value, where)
    flags, names = dict.fromkeys(BOOLEANS, boolean), dict.fromkeys(("orders", "options"), NAMES)
    found = members(given, where, {}, {**flags, **names, **given})
    checks: Mapping[str, Callable[[Any, Where], Any]] = {**flags, **names}
    made = {n: checks[n](v, where.member(n)) for n, v in found.items() if n in checks}
    sets = {name: frozenset(made[name]) for name in names if name in made}
    return OffloadCapabilities(**{**made, **sets})


NAMES = list_of(text)


class Told:
    """A lower tier in the server: it has what the client's tier has said for this look-up."""

    def __init__(self) -> None:
        self.key, self.found = b"", Found.MISS

    def lookup(self, key: bytes) -> Found:
        return self.found if key == self.key else Found.MISS


class Served:
    """An offload manager that was made for a client, and its lower tiers."""

    def __init__(self, manager: OffloadManager, lower: tuple[Told, ...]) -> None:
        self.manager, self.lower = manager, lower

    def lookup(self, key: Any, request_id: Any, below: Any) -> Found:
        """Make a look-up in which the lower tiers say what they said to the client."""
        if not isinstance(below, list) or len(below) != len(self.lower):
            said = f"below: {below!r} is not what {len(self.lower)} lower tiers say"
            raise ProtocolViolation("bad_message", said)
        for told, word in zip(self.lower, below, strict=True):
            if word not in tuple(Found):
                raise ProtocolViolation("bad_message", f"below: {word!r} is no result of a tier")
            told.key, told.found = key, Found(word)
        return self.manager.lookup(key, request_id)


def _make_offload(call: Call) -> None:
    handle = unused(call.session.offloads, "offload manager", call.manager_handle)
    maker = call.session.implementation
    if not isinstance(maker, OffloadImplementation):
        raise UnsupportedError("offload managers", maker.capabilities.name)
    given = dict(call.args)
    number = given.pop("num_lower")
    if type(number) is not int or not 0 <= number <= 64:
        raise ProtocolViolation("bad_message", f"num_lower: {number!r} is not an int in 0 … 64")
    lower = tuple(Told() for _ in range(number))
    manager = maker.make_offload(OffloadConfig(lower=lower, **given))
    call.session.offloads[handle] = Served(manager, lower)


def _made(call: Call) -> Any:
    """Make a call of an offload manager: the required arguments in their order, others by name."""
    served: Served = known(call.session.offloads, "offload manager", call.manager_handle)
    shape = OFFLOAD_MESSAGES[call.name]
    given = {name: _decoded(name, value) for name, value in call.args.items()}
    ordered = [given.pop(name) for name in shape.required]
    name = call.name.removeprefix("offload_")
    made = served.lookup if name == "lookup" else getattr(served.manager, name)
    return shown_result(made(*ordered, **given))


def _decoded(name: str, value: Any) -> Any:
    """Decode keys; what is none is left as it is, for the manager to refuse."""
    if name == "key":
        return _key(value)
    if name in ("keys", "failed") and isinstance(value, list):
        return [_key(each) for each in value]
    return value


def _key(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return bytes.fromhex(value)
    except ValueError:
        raise ProtocolViolation("bad_message", f"{value!r} is no key in hexadecimal") from None


def shown_result(result: Any) -> Any:
    """Encode the result of an offload manager's call."""
    match result:
        case PreparedStore(keys, places, evicted):
            return {"keys": _hexes(keys), "places": list(places), "evicted": _hexes(evicted)}
        case TierTransfer():
            return {
                "number": result.number,
                "tier": result.tier,
                "is_promotion": result.is_promotion,
                "keys": _hexes(result.keys),
                "places": list(result.places),
            }
        case OffloadEvent(keys, is_removed):
            return {"keys": _hexes(keys), "is_removed": is_removed}
        case OffloadCounts():
            counts = {name: getattr(result, name) for name in COUNTS}
            tenants = [list(each) for each in result.tenants]
            return {**counts, "tenants": tenants} if tenants else counts
        case tuple() | list():
            return [shown_result(each) for each in result]
    return str(result) if isinstance(result, Found) else result


COUNTS = ("num_free", "num_evictable", "num_pinned", "num_pending")


def _hexes(keys: Sequence[bytes]) -> list[str]:
    return [key.hex() for key in keys]


OFFLOAD_CALLS: Mapping[str, Callable[[Call], Any]] = {
    **dict.fromkeys(OFFLOAD_MESSAGES, _made),
    "make_offload": _make_offload,
}
