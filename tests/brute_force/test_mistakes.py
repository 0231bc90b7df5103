"""Mistakes that enumeration finds: where nothing is left to chance, they are named."""

from __future__ import annotations

import pytest

import kvref
from tests.brute_force.enumeration import Vectors, enumeration_finds, make_vectors
from tests.cases import every_second
from tests.mistakes import mistaken, mistakes

SEEN = (
    *(f"KV-COORD-{n}" for n in range(4, 14)),
    *(f"KV-SW-{n}" for n in range(2, 7)),
    *("KV-CHUNK-1", "KV-CHUNK-2", "KV-MAMBA-3", "KV-FULL-2", "KV-FULL-3", "KV-FULL-6"),
    *(f"KV-RET-{n}" for n in range(1, 6)),
)
"""Every rule about what is hit or worth caching."""
UNSEEN = ("ReplayOfGeneratedTokens", "StatesOfGeneratedTokens")
"""Here all tokens are a prompt's, computed at once."""
SHOWN = [each.id for each in mistakes() if each.rules[0] in SEEN and each.id not in UNSEEN]


@pytest.fixture(scope="module")
def vectors() -> Vectors:
    return make_vectors(num_worlds=300, num_prompts=100)


@pytest.mark.parametrize("name", every_second(SHOWN))
def test_a_mistake_is_seen(name: str, vectors: Vectors) -> None:
    assert enumeration_finds(mistaken(name, audits=True), vectors) is not None


def test_nothing_is_found_in_the_reference(vectors: Vectors) -> None:
    assert enumeration_finds(kvref.implementation(), vectors) is None
