"""Copying what callers bring as tokens into a request's array (KV-REQ-1, KV-REQ-5)."""

from __future__ import annotations

from kvspec.request import TOKEN_ID_MAX

from . import objects


def put_list(tokens: memoryview[int], at: int, values: list[int], count: int) -> int:
    """Write all `count` token ids, or those up to the first invalid one; return their number."""
    if len(values) != count:  # making room ran code that changed it
        return -1
    done = objects.put_small(values, objects.longs_of(tokens), at)
    largest = TOKEN_ID_MAX
    try:
        for i in range(done, count):
            value = values[i]
            # Exactly int: a bool or a float would be hashed as something else (KV-REQ-1).
            if type(value) is not int:
                return i
            token = value
            if token < 0 or token > largest:
                return i
            tokens[at + i] = token
    except OverflowError:  # compiled, `token` has 64 bits
        return i
    return count


def put_longs(tokens: memoryview[int], at: int, values: memoryview[int]) -> int:
    """Put ints of 64 bits, as `put_list`."""
    for i in range(len(values)):
        token = values[i]  # once: another process may write there
        if token < 0:
            return i
        tokens[at + i] = token
    return len(values)


def put_ints(tokens: memoryview[int], at: int, values: memoryview[int]) -> int:
    """Put ints of 32 bits, as `put_list`."""
    for i in range(len(values)):
        token = values[i]  # once: another process may write there
        if token < 0:
            return i
        tokens[at + i] = token
    return len(values)
