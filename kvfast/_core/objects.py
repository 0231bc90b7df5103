"""Python objects that callers pass or get, where reading them takes longer than a small step.

The compiled twin of this file is `kvfast/_compiled/objects.pyx`, which uses Python's C functions.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from kvspec.arrays import delta_rows
from kvspec.batched import StepOutput, StepResult

SET_SCHEDULED, SET_HITS, SET_SLOTS, SET_DELTAS, SET_LEFT = (
    vars(StepResult)[field.name].__set__ for field in fields(StepResult)
)


class Results:
    """The result of a step: its `StepResult` and, until that is made, its arrays.

    `latest` and `older`: compiled, the last two results, which are reused once the caller has
    dropped them.
    """

    def __init__(self) -> None:
        self.latest: StepResult | None = None
        self.older: StepResult | None = None
        self.start(0, 0)

    def start(self, count: int, num_hits: int) -> None:
        """Start a result: `count` granted tokens, all 1, and `num_hits` hit lengths."""
        self.scheduled = array("q", [1]) * count
        self.hits = array("q", [0]) * num_hits

    def told(self, num_slots: int, num_deltas: int, num_left: int) -> StepResult:
        """Return the result."""
        made = StepResult.__new__(StepResult)  # its own way of being made takes longer
        SET_SCHEDULED(made, self.scheduled)
        SET_HITS(made, self.hits)
        SET_SLOTS(made, num_slots)
        SET_DELTAS(made, num_deltas)
        SET_LEFT(made, num_left)
        return made


def put_array(values: array[int], to: memoryview[int], at: int, end: int) -> int:
    """Write an array of ints to `to[at]` and on; return their number, or -1 if it is of another
    type or too long to fit before `end`.
    """
    count = len(values)
    if count > end - at or values.typecode not in ("q", "i"):
        return -1
    for i in range(count):
        to[at + i] = values[i]
    return count


def small_of(value: object) -> int:
    """Return an int in 0 … 2^30 - 1, or -1 for any other value, which needs a slower check."""
    return value if type(value) is int and 0 <= value < 1 << 30 else -1


def put_small(values: list[int], to: memoryview[int], at: int) -> int:
    """Write the ints of at most 30 bits at the head of the list; how many.

    Compiled, those are read in no time. Here none is written.
    """
    return 0


class Rows:
    """The rows that deltas are written to, the caller's memory from `open` to `close`."""

    def __init__(self) -> None:
        self.room = 0
        self.is_open = False
        self.buffer: memoryview | None = None

    def open(self, given: object) -> None:
        """Hold the memory."""
        self.close()
        self.buffer = delta_rows("block_deltas", given)
        self.room = len(self.buffer)
        self.is_open = True

    def close(self) -> None:
        """Release the memory."""
        self.buffer = None
        self.room = 0
        self.is_open = False


def put_row(rows: Rows, at: int, handle: int, group: int, index: int, block: int) -> None:
    """Write one of the rows."""
    view: memoryview = rows.buffer  # type: ignore[assignment]  # open
    view[at, 0] = handle
    view[at, 1] = group
    view[at, 2] = index
    view[at, 3] = block


def put_rows(
    rows: Rows,
    at: int,
    handle: int,
    group: int,
    index: int,
    arena: memoryview[int],
    start: int,
    count: int,
) -> None:
    """Do `put_row` for `count` entries from `index` on of a list that begins at `start`."""
    for i in range(count):
        put_row(rows, at + i, handle, group, index + i, arena[start + index + i])


def deltas_of(output: StepOutput) -> object:
    """Return the caller's `block_deltas`."""
    return output.block_deltas


def mappings_of(output: StepOutput) -> Sequence[object] | None:
    """Return the caller's `slot_mappings`."""
    return output.slot_mappings


def longs(count: int) -> memoryview[int]:
    """Return `count` uninitialised 64-bit numbers."""
    return memoryview(bytearray(8 * count)).cast("q")


def words(count: int) -> memoryview[int]:
    """Return `count` uninitialised 64-bit words."""
    return memoryview(bytearray(8 * count)).cast("Q")


def word_array(count: int) -> memoryview[int]:
    """Make words; compiled, an array without a view, which takes longer to make than it."""
    return words(count)


def pieces_of(data: memoryview[int], size: int, first: int, end: int) -> list[bytes]:
    """Return pieces `first` … `end - 1` of these bytes, of `size` bytes each."""
    return [bytes(data[i * size : (i + 1) * size]) for i in range(first, end)]


def bytes_in(words: memoryview[int]) -> memoryview[int]:
    """Return the bytes of 64-bit words; compiled, their address."""
    return words.cast("B")


def bytes_of(view: memoryview[int]) -> memoryview[int]:
    """Return the view; compiled, its address, which a call takes in one word."""
    return view


def read_bytes_of(view: memoryview[int]) -> memoryview[int]:
    """View as bytes memory that is only read."""
    return view


def copy_bytes(to: memoryview[int], place: int, data: memoryview[int], at: int, count: int) -> None:
    """Copy `count` bytes."""
    to[place : place + count] = data[at : at + count]


def longs_of(view: memoryview[int]) -> memoryview[int]:
    """View ints of 64 bits as bytes."""
    return view


def ints_of(view: memoryview[int]) -> memoryview[int]:
    """View ints of 32 bits as bytes."""
    return view


def words_of(memory: memoryview[int]) -> memoryview[int]:
    """Return the words of a `word_array`; compiled, their address."""
    return memory


def bytes_at(words: memoryview[int]) -> memoryview[int]:
    """Return the bytes of such words."""
    return words.cast("B")


def copy_words(
    to: memoryview[int], place: int, words: memoryview[int], at: int, count: int
) -> None:
    """Copy `count` 64-bit words."""
    for k in range(count):
        to[place + k] = words[at + k]


def take_words(
    to: memoryview[int], place: int, words: memoryview[int], at: int, count: int
) -> None:
    """Do `copy_words` from a `word_array`."""
    copy_words(to, place, words, at, count)


def put_eight(data: memoryview[int], at: int, value: int) -> None:
    """Write the 8 bytes of a value, most significant first."""
    data[at] = value >> 56
    data[at + 1] = (value >> 48) & 255
    data[at + 2] = (value >> 40) & 255
    data[at + 3] = (value >> 32) & 255
    data[at + 4] = (value >> 24) & 255
    data[at + 5] = (value >> 16) & 255
    data[at + 6] = (value >> 8) & 255
    data[at + 7] = value & 255


def put_low_eight(data: memoryview[int], at: int, value: int) -> None:
    """Write a number of 64 bits, the lowest byte first."""
    data[at : at + 8] = value.to_bytes(8, "little")


def put_padding(message: memoryview[int], start: int, end: int) -> None:
    """Write SHA-256's padding after message[start:end]; hashlib, used here, does that itself."""


def put_four_uints(message: memoryview[int], at: int, values: memoryview[int], first: int) -> int:
    """Write the CBOR of four numbers from `values[first]` on, below 2^31, in no time.

    The length of all; 0 where nothing was written, as here. Compiled, eight bytes are written for
    each; those after its length are meaningless.
    """
    return 0


# Memory that is needed soon: compiled, a prefetch, which the processor does not wait for.


def fetch_int(view: memoryview[int], at: int) -> None:
    """Fetch `view[at]`."""


def fetch_long(view: memoryview[int], at: int) -> None:
    """Fetch `view[at]`."""


def fetch_at(words: memoryview[int], at: int) -> None:
    """Fetch word `at` of a `word_array`."""


def fetch_object(value: object) -> None:
    """Fetch what every object begins with."""


def fetch_item(values: list[Any], at: int) -> None:
    """Fetch the object `values[at]`."""
