"""Offload managers in other processes: what is lost on the way, and a whole one in JavaScript."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import closing
from pathlib import Path

import pytest

from kvcheck.cli import main
from kvcheck.cli._lives import examples_on
from kvcheck.discovery import find_implementation, find_offload
from kvcheck.offload.life import Lower, Player
from kvcheck.offload.suite import drawn, game_of
from kvcheck.play.lives import judged
from kvcheck.remote.client import RemoteOffloads
from kvcheck.remote.values import decode_parts, encode_parts
from kvspec.errors import FormatError, RemoteError
from kvspec.offload import OffloadCapabilities, OffloadConfig
from tests.remote.servers import serve
from tests.source import ROOT

SOURCE = ROOT / "examples/node/tier.mjs"

MISTAKES = (
    ('chunk.writer === null ? "hit" : "pending"', '"hit"', "KV-TIER-9"),
    ("this.chunks.get(key).pins += 1;\n    request.loads", "request.loads", "KV-TIER-11"),
    ("(key) => !this.chunks.has(key)", "() => true", "KV-TIER-12"),
    ("!kept.includes(key) && ", "", "KV-TIER-13"),
    ("keys.toReversed()", "keys", "KV-TIER-16"),
    ("tier < this.numLower", "tier < this.numLower - 1", "KV-TIER-19"),
    ("&& !awaited.includes(key)", "", "KV-TIER-22"),
)
"""One change each: what stands there, what stands there by mistake, the rule it breaks."""


def connected(name: str) -> RemoteOffloads:
    found = find_implementation(name)
    assert isinstance(found, RemoteOffloads)
    return found


def node(source: Path) -> str:
    program = shutil.which("node")
    if program is None:
        pytest.skip("no Node.js")
    return f"cmd+json:{program} {source}"


def broken(name: str, num_lives: int) -> set[str]:
    """Return the rules that examples and lives find broken."""
    with closing(connected(name)) as subject:
        found = {e.story.rules[0] for e in examples_on(subject) if e.violation is not None}
        return found | set(judged(game_of(subject), num_lives=num_lives).findings)


@pytest.mark.parametrize("options", ["+json", "+cbor"])
def test_a_twin_is_the_same_over_the_protocol(options: str) -> None:
    here = find_offload("kvref")
    with closing(connected(serve("kvref", options=options))) as there:
        assert there.offload_capabilities == here.offload_capabilities
        for seed in range(30):
            life = drawn(seed, with_lower=seed % 2 == 1)
            players = Player(here, life), Player(there, life)
            for player in players:
                player.play()
            assert players[0].lines == players[1].lines


def test_the_program_in_javascript_keeps_every_rule() -> None:
    assert broken(node(SOURCE), 100) == set()
    assert main(["probe", node(SOURCE)]) == 0


@pytest.mark.parametrize("mistake", MISTAKES, ids=[rule for *_, rule in MISTAKES])
def test_a_mistake_in_one_line_is_found(mistake: tuple[str, str, str], tmp_path: Path) -> None:
    there, wrong, rule = mistake
    text = SOURCE.read_text("utf-8")
    assert text.count(there) == 1
    path = tmp_path / "tier.mjs"
    path.write_text(text.replace(there, wrong), "utf-8")
    assert rule in broken(node(path), 10)


def test_one_that_has_no_managers_is_served_all_the_same() -> None:
    name = serve("examples.own_manager.offload:implementation")
    assert broken(name, 20) == set()
    assert main(["probe", name]) == 0
    assert main(["examples", name, "--rules", "KV-TIER-1*"]) == 0
    assert main(["check", "--tier", name, "--programs", "5"]) == 0


def test_a_program_without_offload_managers_is_refused() -> None:
    name = serve("examples.own_manager.final:implementation")
    assert main(["check", "--tier", name]) == 2


def test_a_tier_that_ends_is_named_with_its_last_message() -> None:
    with closing(connected(serve("kvref"))) as subject:
        manager = subject.make_offload(OffloadConfig(1, (Lower({b"a"}),)))
        manager.new_request("r")
        os.kill(subject.connection.process_id, signal.SIGKILL)
        with pytest.raises(RemoteError, match="offload_lookup"):
            manager.lookup(b"a", "r")


def test_what_hello_says_of_offload_managers_comes_back() -> None:
    for given in (
        OffloadCapabilities(),
        OffloadCapabilities(False, False, False, True, frozenset({"arc"}), frozenset({"quotas"})),
    ):
        assert decode_parts(OffloadCapabilities, encode_parts(given), "offload") == given
    assert decode_parts(OffloadCapabilities, {"later": 1}, "offload") == OffloadCapabilities()
    with pytest.raises(FormatError, match="orders"):
        decode_parts(OffloadCapabilities, {"orders": "lru"}, "offload")
