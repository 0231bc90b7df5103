"""Values in JSON by the types of their members: one description to write them and to read them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import reduce
from operator import index, methodcaller, or_
from types import GenericAlias, NoneType, UnionType
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

from kvspec.errors import ConfigError
from kvspec.files.objects import (
    Check,
    Where,
    boolean,
    checked_members,
    hex_bytes,
    integer,
    list_of,
    object_of,
    optional,
    real,
    shown,
    text,
)

JSONObject: TypeAlias = dict[str, Any]


class _Dataclass(Protocol):
    """Any dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


T = TypeVar("T", bound=_Dataclass)


@dataclass(frozen=True)
class Form:
    """A type in JSON: how its values are read, with a check, and written."""

    read: Check[Any]
    write: Callable[[Any], Any]


def as_it_is(value: Any) -> Any:
    return value


FORMS: Mapping[Any, Form] = {
    int: Form(integer, index),  # an implementation may return another kind of int, but no float
    float: Form(real, float),
    str: Form(text, as_it_is),
    bool: Form(boolean, bool),
    bytes: Form(hex_bytes, methodcaller("hex")),
}


def form_of(hint: Any, forms: Mapping[Any, Form] = FORMS) -> Form:
    """Return the form of a type. `forms`: those of types that it is made of.

    Tuples and sets become lists, mappings objects, and where their keys are ints lists of pairs.
    """
    if hint in forms:
        return forms[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return Shape(hint, forms=forms).form
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Mapping and inner[0] is int:
        pair = form_of(GenericAlias(tuple, inner), forms)
        return Form(tuple_of(pair.read, dict), lambda v: [*map(pair.write, v.items())])
    if kind in (Union, UnionType):
        inner = (reduce(or_, (each for each in inner if each is not NoneType)),)
    of = form_of(inner[kind is Mapping], forms)
    if kind in (Union, UnionType):
        return Form(optional(of.read), lambda v: None if v is None else of.write(v))
    if kind is Mapping:
        key = forms[inner[0]]
        return Form(
            keyed(of.read, key.read),
            lambda v: {key.write(name): of.write(each) for name, each in v.items()},
        )
    if kind is frozenset:
        return Form(tuple_of(of.read, frozenset), lambda v: sorted(map(of.write, v)))
    length = None if inner[-1] is ... else len(inner)
    return Form(tuple_of(of.read, tuple, length), lambda v: [*map(of.write, v)])


def tuple_of(
    check: Check[Any], made: Callable[[Any], Any] = tuple, length: int | None = None
) -> Check[Any]:
    """Return a check of lists, of this length if it is given, that makes tuples or sets of them."""

    def inner(value: Any, where: Where) -> Any:
        found = list_of(check)(value, where)
        if length is not None and len(found) != length:
            raise where.error(f"{shown(found)} has more or less than {length} elements")
        return made(found)

    return inner


def keyed(check: Check[Any], key: Check[Any]) -> Check[Any]:
    """Return a check of objects whose names mean more than text."""

    def inner(value: Any, where: Where) -> Any:
        return {key(name, where): item for name, item in object_of(check)(value, where).items()}

    return inner


class Shape(Generic[T]):
    """A dataclass as an object.

    `names`: the members of fields that are called otherwise there. `forms`: of types, or of single
    fields by name. `sometimes`: fields that are left out at their defaults; all others are required
    then. Without it fields with a default are always written, and may be missing where one is read.
    `elsewhere`: fields that the object does not have.
    """

    def __init__(
        self,
        cls: type[T],
        names: Mapping[str, str] = {},
        *,
        forms: Mapping[Any, Form] = FORMS,
        sometimes: Collection[str] | None = None,
        elsewhere: Collection[str] = (),
    ) -> None:
        self.cls, self._sometimes = cls, sometimes or ()
        hints = hints_of(cls)
        self._fields = {each.name: each for each in fields(cls) if each.name not in elsewhere}
        self.names = {name: names.get(name, name) for name in self._fields}
        self._forms = {
            name: forms[name] if name in forms else form_of(hints[name], forms)
            for name in self._fields
        }
        self.required: dict[str, Check[Any]] = {}
        self.optional: dict[str, Check[Any]] = {}
        for name, form in self._forms.items():
            field = self._fields[name]
            has_default = (field.default, field.default_factory) != (MISSING, MISSING)
            is_optional = has_default if sometimes is None else name in sometimes
            (self.optional if is_optional else self.required)[self.names[name]] = form.read

    @property
    def form(self) -> Form:
        return Form(self.read, self.write)

    def write(self, value: T) -> JSONObject:
        return {
            self.names[name]: form.write(getattr(value, name))
            for name, form in self._forms.items()
            if not (name in self._sometimes and self._is_default(name, getattr(value, name)))
        }

    def read(self, value: object, where: Where) -> T:
        """Make a value of an object; FormatError names the member that is wrong."""
        return self.made(checked_members(value, where, self.required, self.optional), where)

    def made(self, found: Mapping[str, Any], where: Where, **others: Any) -> T:
        """Make a value of checked members, and of fields that the object does not have.

        A value that the class refuses becomes a FormatError under the name of the member.
        """
        given = {name: found[member] for name, member in self.names.items() if member in found}
        try:
            return self.cls(**given, **others)
        except ConfigError as error:
            at = where.member(self.names.get(error.field, error.field))
            if error.field in self.names and error.field not in given:
                raise at.error(f"missing; must be {error.allowed}") from None
            raise at.error(f"{shown(error.value)}: must be {error.allowed}") from None

    def _is_default(self, name: str, value: object) -> bool:
        field = self._fields[name]
        made = field.default_factory
        return bool(value == (field.default if made is MISSING else made()))
