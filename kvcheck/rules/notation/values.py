"""Read the words of one line: numbers, ranges, lists, names, sums, `name=value`."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvcheck.rules.judging import NotationError

TOKEN = re.compile(
    r"""\s+|,                                   # both separate words
    |(?P<comment>\#(?:\s.*|$))
    |(?P<arrow>->)
    |(?P<text>"[^"]*")
    |(?P<number>-?\d+(?:\.\d+)?(?![\w.…])|-?\d+(?=\.\.))
    |(?P<call>(?:cdiv|floor|min|max|lcm|repeat|down)?\()
    |(?P<name>[A-Za-z_][\w]*(?:\.(?!\.)[\w]+)*)
    |(?P<sign>\.\.|[][;=#/?]|-)""",
    re.VERBOSE,
)

SIGNS = ".abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""A dot is token 0; the tokens of a letter begin at its place here, in thousands or blocks."""

OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}

FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "cdiv": lambda a, b: -(-a // b),
    "floor": math.floor,
    "min": min,
    "max": max,
    "lcm": math.lcm,
    "repeat": lambda value, times: [value] * times,
    "down": lambda first, last: list(range(first, last - 1, -1)),
}


@dataclass(frozen=True)
class Name:
    """A bare word: a request, a choice, a type of error."""

    word: str


@dataclass(frozen=True)
class Block:
    """`a[2]`, `a.1[2]`: the entry of a request's block list, in group 0 or in group 1."""

    request: str
    index: int
    group: int = 0


@dataclass(frozen=True)
class Hash:
    """`a#2`: a block hash of a request. `a#2/1`: the key that it is in group 1."""

    request: str
    index: int
    group: int | None = None


@dataclass(frozen=True)
class Pair:
    name: str
    value: Any


OPEN = Name("?")
"""An answer that is still to be filled in."""

CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "none": None}


def evaluated(text: str) -> Any:
    """Compute a sum of numbers. Raises NotationError.

    >>> evaluated("cdiv(6 - 1, 4) + 1")
    3
    """
    try:
        return _computed(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, KeyError) as error:
        raise NotationError(f"no sum: {text!r}") from error


def _computed(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() | float() | str() as value):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return OPERATORS[type(op)](_computed(left), _computed(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_computed(operand)
        case ast.Call(func=ast.Name(id=name), args=args):
            return FUNCTIONS[name](*map(_computed, args))
    raise KeyError(ast.dump(node))


class Reader:
    """The tokens of one line, one after another."""

    def __init__(self, line: str) -> None:
        self.tokens = list(_tokens(line))
        self.place = 0

    def peek(self) -> tuple[str, str]:
        """Return kind and text of the next token; ("", "") at the end."""
        return self.tokens[self.place] if self.place < len(self.tokens) else ("", "")

    def take(self, text: str = "") -> str:
        """Return the next token. Raises NotationError unless it is `text`, if that is given."""
        kind, found = self.peek()
        if not kind or text not in ("", found):
            raise NotationError(f"expected {text or 'a value'}, found {found or 'the end'}")
        self.place += 1
        return found

    def value(self) -> Any:
        first = self._single()
        if self.peek()[1] == "..":
            self.take("..")
            return list(range(first, self._single() + 1))
        return first

    def _single(self) -> Any:
        kind, text = self.peek()
        self.place += 1
        if kind == "number":
            return float(text) if "." in text else int(text)
        if kind == "text":
            return text[1:-1]
        if kind == "sum":
            return evaluated(text)
        if text == "[":
            return self._list()
        if text == "?":
            return OPEN
        if text == "-":
            return 0  # the null block
        if kind == "name":
            return CONSTANTS[text] if text in CONSTANTS else self._named(text)
        raise NotationError(f"no value: {text or 'the end of the line'}")

    def _list(self) -> list[Any]:
        found: list[Any] = []
        while self.peek()[1] != "]":
            is_range = self.place + 1 < len(self.tokens) and self.tokens[self.place + 1][1] == ".."
            is_splice = self.peek()[1].startswith(("repeat(", "down("))
            value = self.value()
            if isinstance(value, list) and (is_range or is_splice):
                found += value
            else:
                found.append(value)
        self.take("]")
        return found

    def _named(self, name: str) -> Any:
        kind, text = self.peek()
        if (kind, text) == ("sign", "#"):
            self.take()
            index = self._single()
            if self.peek()[1] != "/":
                return Hash(name, index)
            self.take("/")
            return Hash(name, index, self._single())
        if (kind, text) == ("index", "["):
            self.take()
            index = self._single()
            self.take("]")
            request, _, group = name.partition(".")
            return Block(request, index, int(group or 0))
        if (kind, text) == ("sign", "="):
            self.take("=")
            return Pair(name, self.value())
        return Name(name)

    def values(self) -> list[Any]:
        """Read values up to `;`, `->` or the end; a range among them is one list."""
        found = []
        while self.peek()[0] and self.peek()[1] not in (";", "->"):
            found.append(self.value())
        return found


def _tokens(line: str) -> Iterator[tuple[str, str]]:
    place, end_of_name = 0, -1
    while place < len(line):
        match = TOKEN.match(line, place)
        if match is None:
            raise NotationError(f"unreadable: {line[place:]!r}")
        kind, start, place = match.lastgroup or "", place, match.end()
        if kind == "comment":
            return
        if kind == "call":
            place = _closing(line, match.end())
            yield "sum", line[start:place]
        elif kind:
            # `a[2]` is an entry of a's list, `a [2]` a word and a list.
            is_index = match.group() == "[" and start == end_of_name
            yield "index" if is_index else kind, match.group()
        end_of_name = place if kind == "name" else -1


def _closing(line: str, place: int) -> int:
    depth = 1
    while depth:
        if place == len(line):
            raise NotationError("a bracket is not closed")
        depth += {"(": 1, ")": -1}.get(line[place], 0)
        place += 1
    return place


def parted(values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    plain = [value for value in values if not isinstance(value, Pair)]
    return plain, {pair.name: pair.value for pair in values if isinstance(pair, Pair)}


def tokens_of(words: Sequence[Any], size: int) -> list[Any]:
    """Return the tokens of `"ab."`: a block of `size` for each letter, one token for a dot.

    Other words are tokens themselves.
    """
    found: list[Any] = []
    for word in words:
        if isinstance(word, str) and word and set(word) <= set(SIGNS):
            for first in (SIGNS.index(sign) * max(size, 1000) for sign in word):
                found += range(first, first + (size if first else 1))
        else:
            found += word if isinstance(word, list) else [word]
    return found


def text_of(tokens: Sequence[int], size: int) -> str:
    """Return the letters and dots of `tokens_of`.

    >>> text_of(tokens_of(["ab."], 4), 4)
    'ab.'
    """
    begins = [token for token in tokens if token % max(size, 1000) == 0]
    return "".join(SIGNS[token // max(size, 1000)] for token in begins)
