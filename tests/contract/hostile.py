"""Illegal arguments by their type in the interface: values, and objects that lie (KV-ERR-2)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter, isfunction, signature
from typing import Any, TypeAlias, overload

import numpy as np

from kvspec.blocks import KVCacheBlocks

Act: TypeAlias = Callable[[], object]


def calls_of(owner: type) -> Mapping[str, tuple[Parameter, ...]]:
    """Return the calls of an interface, and their parameters."""
    return {
        name: tuple(signature(call).parameters.values())[1:]
        for name, call in vars(owner).items()
        if isfunction(call) and not name.startswith("_") and name != "follow"
    }


class Foreign(Exception):  # noqa: N818 (it says whose it is; nothing of the core erred)
    """Raised by an object of the caller: it passes through the core."""


def answering(number: int) -> Callable[..., Any]:
    return lambda self, *others: number


class Liar(int):
    """An int that stores one number, reports 8 everywhere, and equals everything."""

    __hash__ = int.__hash__
    __index__ = __int__ = __add__ = __radd__ = __sub__ = __rsub__ = answering(8)
    __mul__ = __rmul__ = __floordiv__ = __mod__ = __neg__ = answering(8)
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = answering(True)
    __ne__ = __bool__ = answering(True)

    def __repr__(self) -> str:
        return "liar"


class Pretender:
    __class__ = int  # type: ignore[assignment]

    def __index__(self) -> int:
        return 1

    __int__ = __index__


class Flag:
    __class__ = bool  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise RuntimeError


class Growing(Sequence[int]):
    """Says that it has one element, and yields as many as one likes; without any it can't be read.

    `num` = 0: it says that it has nine.
    """

    def __init__(self, block: int, num: int) -> None:
        self.block, self.num = block, num

    def __len__(self) -> int:
        return 1 if self.num else 9

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...

    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if not self.num:
            raise IndexError
        return self.block

    def __iter__(self) -> Iterator[int]:
        return iter([self.block] * self.num)


class GrowsWhenRead(list[int]):
    def __iter__(self) -> Iterator[int]:
        for block in self[:]:
            if list.__len__(self) < 10_000:
                self.append(block)
            yield block

    def __len__(self) -> int:
        return 1


class Acting(int):
    """An int that does something when it is compared, converted or shifted."""

    def __new__(cls, value: int, act: Act) -> Acting:
        made = super().__new__(cls, value)
        made.act = act
        return made

    act: Act

    def __index__(self) -> int:
        self.act()
        return int.__index__(self)

    def __lt__(self, other: int) -> bool:
        self.act()
        return int.__lt__(self, other)

    def __le__(self, other: int) -> bool:
        self.act()
        return int.__le__(self, other)

    def __ge__(self, other: int) -> bool:
        self.act()
        return int.__ge__(self, other)


class Posing:
    """Something that says it is of another class, and acts when it is asked."""

    def __init__(self, cls: type, act: Act) -> None:
        self._cls = cls
        self._act = act

    @property  # type: ignore[misc]  # the point of it
    def __class__(self) -> Any:
        self._act()
        return self._cls


class Moody(Sequence[Any]):
    """A sequence that is longer or shorter when it is asked again, raises, or does something.

    `mood`: "grows", "shrinks", "more", "fewer", "endless", "raises" or "acts".
    """

    def __init__(self, values: Sequence[Any], mood: str, act: Act | None = None) -> None:
        self.values = list(values)
        self.mood = mood
        self.act = act

    def _asked(self) -> None:
        if self.mood == "grows" and self.values and len(self.values) < 5000:
            self.values += self.values
        elif self.mood == "shrinks":
            del self.values[len(self.values) // 2 :]
        elif self.mood == "raises" and self.values:
            self.values.pop()
            if not self.values:
                raise Foreign("it has no more")
        elif self.act is not None:
            self.act()

    def __len__(self) -> int:
        self._asked()
        wrong = {"more": 2 * len(self.values) + 9, "fewer": len(self.values) // 2}
        return wrong.get(self.mood, len(self.values))

    def __getitem__(self, index: Any) -> Any:
        self._asked()
        return self.values[index]

    def __iter__(self) -> Iterator[Any]:
        if self.mood == "acts":
            self._asked()
        for value in list(self.values):
            yield value
            self._asked()
        if self.mood == "endless":
            yield from [1] * 3000


class Tensor:
    """An array with a method `numpy`, as PyTorch has it, which does something first."""

    def __init__(self, values: Any, act: Act | None = None) -> None:
        self.values = values
        self.act = act

    def numpy(self) -> Any:
        if self.act is not None:
            self.act()
        return self.values

    def __len__(self) -> int:
        return len(self.values)

    def tolist(self) -> Any:
        if self.act is not None:
            self.act()
        return self.values.tolist()


class Stranger:
    """Something else, with a name that is the same in every process (tests are called by it)."""

    def __repr__(self) -> str:
        return "stranger"


LIARS: tuple[Any, ...] = (Liar(-(2**63)), Liar(-1), Liar(2**53), Liar(2**200), Pretender())
NO_INT: tuple[Any, ...] = (
    None,
    True,
    False,
    1.0,
    float("nan"),
    "1",
    b"1",
    [0],
    (1,),
    np.int64(0),
    2**63,
    2**99,
    *LIARS,
)
"""Values that are neither a count nor an element of a list of ints."""
NO_COUNT: tuple[Any, ...] = (*NO_INT, -1, 2**53)
NO_FLAG: tuple[Any, ...] = (None, 0, 1, 1.0, "yes", [], np.True_, Flag())
UNREADABLE: tuple[Any, ...] = (
    np.array([1]).astype(">i8").data,
    np.zeros((2, 2), dtype="int32").data,
    np.zeros(()).data,
)
LONG = range(2**40)
NO_IDS: tuple[Any, ...] = (
    None,
    7,
    True,
    1.5,
    "1",
    {1: 2},
    {1, 2},
    [-1],
    [-7],
    [20],
    [2**32 + 1],
    [1, *LIARS],
    *([one] for one in NO_INT),
    range(2**70),
    LONG,
    range(-(2**70), 0),
    *UNREADABLE,
)
"""In a pool of 20 blocks."""


def hits_of(groups: Any) -> KVCacheBlocks:
    """Return hits whose lists were replaced after they were made."""
    blocks = KVCacheBlocks.empty(1)
    object.__setattr__(blocks, "groups", groups)
    return blocks


NO_HITS: tuple[Any, ...] = (
    0,
    False,
    "",
    [],
    (),
    [[1]],
    "hits",
    KVCacheBlocks(()),
    KVCacheBlocks(((),) * 5),
    *(hits_of(groups) for groups in (None, 7, Growing(1, 50), [], {1}, [[1], [2], [3]])),
    *(hits_of((ids,)) for ids in (*NO_IDS, np.array([1], dtype=object).data)),
    *(hits_of((ids,)) for ids in (Growing(1, 2), Growing(1, 100_000), GrowsWhenRead([1] * 100))),
    *(hits_of(ids) for ids in NO_IDS[-6:]),
)

BAD: Mapping[str, tuple[Any, ...]] = {
    "int": NO_COUNT,
    "bool": NO_FLAG,
    "Request": (None, "r", 7, [], Stranger()),
    "Sequence[int]": NO_IDS,
    "KVCacheBlocks | None": NO_HITS,
}
"""By the type that an argument has in the interface."""

NO_INTS: tuple[Any, ...] = (
    None,
    True,
    1.0,
    float("nan"),
    "0",
    b"\0\0\0\0",
    {0},
    {0: 1},
    object,
    iter([0]),
    slice(0),
    np.int64(0),
    np.float32(0),
    np.array(0),
    Pretender(),
    *(array(kind, [0]) for kind in "dfIQhb"),
    *(np.zeros(1, kind) for kind in (float, bool, "u4", "i2", ">i8", object, "M8[s]")),
    np.zeros((1, 1), int),
    np.zeros(4, int)[::2],
    (ctypes.c_uint64 * 1)(),
    memoryview(bytes(8)),
)
"""Values that are no array of ints of a batch: the error names the whole argument."""
RANGES = (range(2**62), range(2**70), range(0, -(2**70), -1))


def read_only(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    values.flags.writeable = False
    return values


NO_ROWS: tuple[Any, ...] = (
    7,
    "rows",
    [[0, 0, 0, 0]],
    bytearray(64),
    array("i", [0] * 8),
    *(np.zeros((3, 4), kind) for kind in (float, "i8", "u4", ">i4")),
    *(np.zeros(shape, "i4") for shape in ((3, 5), (4, 3), 12, (3, 2, 2))),
    np.zeros((4, 3), "i4").T,
    np.zeros((6, 4), "i4")[::2],
    read_only(np.zeros((3, 4), "i4")),
    memoryview(bytes(48)).cast("i", [3, 4]),
)
NO_SLOTS: tuple[Any, ...] = (
    7,
    "slots",
    [0] * 40,
    bytes(320),
    bytearray(320),
    memoryview(bytes(320)).cast("q"),
    *(array(kind, [0] * 40) for kind in "idQ"),
    array("q"),
    array("q", [0]),
    *(np.zeros(40, kind) for kind in (float, "i4", ">i8")),
    np.zeros((40, 1), "i8"),
    np.zeros(80, "i8")[::2],
    read_only(np.zeros(40, "i8")),
    np.zeros(1, "i8"),
    np.array(0),
)
"""In a step of two tokens."""
