"""`python -m bench.hashing`, `.saved`, `.whatif`: that they run and measure the right thing."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import pytest

import kvfast
from bench import saved, whatif
from kvfast import _build, _native
from kvspec.saved import save


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.skipif(_native.sha256() is None, reason="no libcrypto whose functions are found")
def test_the_bare_calls_hash_what_kvfast_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    from bench import hashing

    loop = hashing.compiled_loop()
    for is_pickled in (False, True):
        case = hashing.Case(64, is_pickled=is_pickled, loop=loop)
        chain = _build.load("chain").block_chain("sha256_cbor", 16, is_pickled)
        wanted = chain.hashes(case.tokens, hashing.PARENT, chain.spelled(None))
        parent = hashing.PARENT
        for message, block_hash in zip(case.messages, wanted, strict=True):
            parent = hashlib.sha256(message.replace(hashing.PARENT, parent)).digest()
            assert parent == block_hash
    monkeypatch.setattr(hashing, "LENGTHS", (32,))
    monkeypatch.setattr(hashing, "LEAST_NS", 1)
    assert [row.count("…") for row in hashing.rows(2)] == [3, 3, 3]


def test_it_measures_managers_with_every_block_cached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved, "PROMPT_BLOCKS", 10)
    monkeypatch.setattr(saved, "NUM_BLOCKS", (20, 30))
    manager = saved.filled(30)
    state = manager.snapshot()
    assert all(len(keys) == 1 for keys in state.block_keys[1:])
    path = tmp_path / "cache.state"
    save(manager, path)
    assert saved.loaded(path).snapshot() == state
    lines = list(saved.rows(2))
    assert [line.count("…") for line in lines] == [0, 0, 4, 4, 0, 0, 0, 3, 3]
    monkeypatch.setattr(saved, "PROMPT_BLOCKS", 12)
    with pytest.raises(AssertionError, match="are found"):
        saved.looked_up(manager, [kvfast.implementation().make_request(manager, saved.prompt(0))])


def test_it_measures_one_size_all_of_them_and_the_best_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- begin whatif -->\n<!-- end whatif -->\n", encoding="utf-8")
    options = ["--rounds", "2", "--into", str(page)]
    monkeypatch.setattr(sys, "argv", ["whatif", "sample:mooncake", *options])
    whatif.main()
    text = page.read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert [row.count("…") for row in rows] == [0, 0, 2, 2, 2]


@pytest.mark.parametrize(
    ("wrong", "problem"), [("lru_hits", "something else"), ("optimal_hits", "than is possible")]
)
def test_answers_that_do_not_fit_each_other_end_it(
    monkeypatch: pytest.MonkeyPatch, wrong: str, problem: str
) -> None:
    numbers = iter(range(100))
    monkeypatch.setattr(whatif, wrong, lambda *_: next(numbers) if wrong == "lru_hits" else -1)
    monkeypatch.setattr(sys, "argv", ["whatif", "sample:mooncake", "--rounds", "1"])
    with pytest.raises(AssertionError, match=problem):
        whatif.main()
