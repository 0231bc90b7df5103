"""The free queue against a plain list, in both builds, and the builds against each other."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvspec.errors import InvalidArgumentError

BUILDS = ("_core", "_compiled")


def build(name: str) -> ModuleType:
    """The module of one build. Skips without a compiled one, unless it has to be there."""
    try:
        module = importlib.import_module(f"kvfast.{name}.free_queue")
    except ImportError as error:
        if os.environ.get("KVSPEC_REQUIRE_COMPILED"):
            raise
        pytest.skip(f"no compiled build of kvfast here: {error}")
    return module


@pytest.fixture(params=BUILDS)
def free_queue(request: pytest.FixtureRequest) -> ModuleType:
    return build(request.param)


class Model:
    """The free queue as a list: what `FreeQueue` has to equal."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.free = list(range(1, num_blocks))

    def pop_front_n(self, count: int) -> list[int]:
        self._require(_is_int(count) and 0 <= count <= len(self.free))
        taken, self.free = self.free[:count], self.free[count:]
        return taken

    def remove(self, block: int) -> None:
        self._require(_is_int(block) and block in self.free)
        self.free.remove(block)

    def append_run(self, blocks: list[int]) -> None:
        self._require_run(blocks)
        self.free = self.free + blocks

    def prepend_run(self, blocks: list[int]) -> None:
        self._require_run(blocks)
        self.free = blocks + self.free

    def _require_run(self, blocks: list[int]) -> None:
        self._require(all(_is_int(b) and 1 <= b < self.num_blocks for b in blocks))
        self._require(len(set(blocks)) == len(blocks) and not set(blocks) & set(self.free))

    def _require(self, legal: bool) -> None:
        if not legal:
            raise InvalidArgumentError("-", None, "-")


def _is_int(value: object) -> bool:
    return type(value) is int


def outcome(queue: object, method: str, value: object) -> object:
    """The answer of a call, or that it was refused."""
    try:
        return getattr(queue, method)(value)
    except InvalidArgumentError:
        return InvalidArgumentError


# Mostly block ids of a small pool, sometimes what must be refused: negative, out of range, beyond
# a C int, no int at all.
values = st.one_of(
    st.integers(0, 9), st.integers(0, 9), st.sampled_from([-1, 2**31, -(2**63), 2**64, True, 1.0])
)
calls = st.one_of(
    st.tuples(st.just("pop_front_n"), values),
    st.tuples(st.just("remove"), values),
    st.tuples(st.sampled_from(["append_run", "prepend_run"]), st.lists(values, max_size=5)),
    st.tuples(
        st.sampled_from(["append_run", "prepend_run"]),
        st.lists(st.integers(1, 9), max_size=5, unique=True),
    ),
)


@pytest.mark.parametrize("name", BUILDS)
@given(num_blocks=st.integers(1, 10), steps=st.lists(calls, max_size=40))
def test_it_equals_a_list_whatever_is_called(
    name: str, num_blocks: int, steps: list[tuple[str, object]]
) -> None:
    queue = build(name).FreeQueue(num_blocks)
    model = Model(num_blocks)
    for method, value in steps:
        assert outcome(queue, method, value) == outcome(model, method, value), (method, value)
        assert queue.to_list() == model.free
        assert len(queue) == queue.length() == len(model.free)


HOSTILE: tuple[tuple[str, object], ...] = (
    ("pop_front_n", -1),
    ("pop_front_n", 5),
    ("pop_front_n", 2**70),
    ("pop_front_n", 1.0),
    ("pop_front_n", None),
    ("remove", -1),
    ("remove", 0),
    ("remove", 2),  # not in the queue
    ("remove", 5),
    ("remove", True),
    ("append_run", [-1]),
    ("append_run", [0]),
    ("append_run", [5]),
    ("append_run", [2, 2]),  # twice in one run
    ("append_run", [2, 3]),  # 3 is in the queue already
    ("append_run", 2),
    ("append_run", "2"),
    ("prepend_run", [2**31]),
    ("prepend_run", [1, 2, 1]),
    ("prepend_run", None),
)


@pytest.mark.parametrize(("method", "value"), HOSTILE, ids=str)
def test_a_hostile_value_is_the_same_typed_error_in_both_builds_and_changes_nothing(
    method: str, value: object
) -> None:
    errors = []
    for name in BUILDS:
        queue = build(name).FreeQueue(5)
        queue.remove(1)
        queue.remove(2)
        with pytest.raises(InvalidArgumentError) as caught:
            getattr(queue, method)(value)
        assert queue.to_list() == [3, 4]
        assert len(queue) == 2
        errors.append((caught.value.field, caught.value.value, caught.value.allowed))
    assert errors[0] == errors[1]


@pytest.mark.parametrize("num_blocks", [0, -1, 2**31, 1.0, True, None], ids=str)
def test_an_impossible_pool_is_refused(free_queue: ModuleType, num_blocks: object) -> None:
    with pytest.raises(InvalidArgumentError, match="num_blocks"):
        free_queue.FreeQueue(num_blocks)


def test_the_compiled_build_is_really_compiled_with_its_c_types() -> None:
    compiled = build("_compiled")
    assert compiled.__file__ is not None
    assert not compiled.__file__.endswith(".py")
    # The .pxd makes the unchecked methods C functions. If it were not found, they would be here.
    assert not hasattr(compiled.FreeQueue, "unlink")
    assert hasattr(build("_core").FreeQueue, "unlink")


def test_the_compiled_build_is_not_older_than_its_source(root: Path) -> None:
    """An edit without a rebuild would have every other test here look at old code."""
    compiled = build("_compiled")
    assert compiled.__file__ is not None
    if root not in Path(compiled.__file__).parents:
        pytest.skip("kvfast was not built in this checkout")
    sources = (root / "kvfast/_core/free_queue.py", root / "kvfast/_compiled/free_queue.pxd")
    newest = max(source.stat().st_mtime for source in sources)
    assert Path(compiled.__file__).stat().st_mtime >= newest, "build again: pip install -e ."
