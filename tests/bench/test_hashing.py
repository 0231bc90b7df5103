"""`python -m bench.hashing`: that it runs and compares the same bytes, never how long."""

from __future__ import annotations

import hashlib
import shutil

import pytest

from kvfast import _build, _native


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
