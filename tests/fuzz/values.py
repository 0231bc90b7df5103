"""What a caller may pass and should not: numbers that lie, sequences that change, arrays that call.

Each is made by a short expression, so that a story is text. What an object here raises of itself is
`Foreign`: it is the caller's own and passes through the core.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

Act = Callable[[], object]


class Foreign(Exception):  # noqa: N818 (it says whose it is; nothing of the core erred)
    """What an object of the caller raises."""


class Lie(int):
    """An int that is one number, answers another when asked for it, and compares as it likes."""

    def __new__(cls, value: int, told: int = -7) -> Lie:
        made = super().__new__(cls, value)
        made.told = told
        return made

    told: int

    def __index__(self) -> int:
        return self.told

    def __int__(self) -> int:
        return self.told

    def _yes(self, _: object) -> bool:
        return True

    def __rshift__(self, _: int) -> int:
        return 0

    def __rrshift__(self, _: int) -> int:
        return 0

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = _yes
    __hash__ = int.__hash__


class Odd(int):
    """An honest int of another class."""


class Index:
    """No int, but can be used as an index."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


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


class Named(str):
    """A text of another class that is equal to everything."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


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


class MoodyList(list[Any]):
    """A list of another class whose length, elements and iteration disagree."""

    def __len__(self) -> int:
        return max(0, list.__len__(self) - 2)

    def __iter__(self) -> Iterator[Any]:
        yield from list.__getitem__(self, slice(None))
        yield from range(50)


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


class Clock:
    """Nanoseconds that are none: `mood` is "still", "back", "raises", "float", "huge" or "acts"."""

    def __init__(self, mood: str, act: Act | None = None) -> None:
        self.mood = mood
        self.act = act
        self.calls = 0

    def __call__(self) -> Any:
        self.calls += 1
        if self.act is not None:
            self.act()
        if self.mood == "raises" and self.calls % 5 == 0:
            raise Foreign("no time")
        answers = {"back": -self.calls, "float": self.calls + 0.5, "huge": 2**70 * self.calls}
        return answers.get(self.mood, 0)


def changing(values: Sequence[int], times: int) -> list[int]:
    """A real list, whose last element but one makes it empty or `times` as long when looked at."""
    found: list[int] = list(values)

    def act() -> None:
        if times and len(found) < 5000:
            found.extend(found * times)
        elif not times:
            found.clear()

    found[-1:] = [Acting(found[-1] if found else 1, act), 1]
    return found


def many(code: str, values: Sequence[int]) -> Any:
    """A NumPy array of this type; what doesn't fit is cut."""
    return np.array([value % 100 for value in values]).astype(code)


def strided(code: str, length: int) -> Any:
    """Every second element of an array."""
    return np.zeros(2 * length, dtype=code)[::2]


def frozen(values: Any) -> Any:
    """The array, not to be written to."""
    values.setflags(write=False)
    return values


def rows(num_rows: int, columns: int = 4, code: str = "int32") -> Any:
    """Memory for block deltas."""
    return np.zeros((num_rows, columns), dtype=code)


def slots(length: int) -> array[int]:
    """Memory for a slot mapping."""
    return array("q", bytes(8 * length))
