"""Dynamo's tree behind its adapter: with the wheel, and with a stand-in that works as it does."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from kvcheck.adapters.dynamo import DynamoTrees, DynamoUnavailableError, tree
from kvcheck.discovery import find_index
from kvcheck.fleet.suite import game_of
from kvcheck.play.lives import judged


class StandIn:
    """`blocks`: of each worker and rank, hash -> parent and hash of the tokens."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[int, int], dict[int, tuple[int | None, int]]] = {}

    def apply_event(self, worker: int, event: bytes) -> None:
        told = json.loads(event)
        blocks, data = self.blocks.setdefault((worker, told["dp_rank"]), {}), told["data"]
        if data == "cleared":
            blocks.clear()
        elif "stored" in data:
            parent = data["stored"]["parent_hash"]
            if parent is not None and parent not in blocks:
                raise RuntimeError("Failed to apply event: Failed to find parent block")
            for each in data["stored"]["blocks"]:
                blocks[each["block_hash"]] = parent, each["tokens_hash"]
                parent = each["block_hash"]
        else:
            gone = set(data["removed"]["block_hashes"])
            while gone:
                for each in gone:
                    blocks.pop(each, None)
                gone = {each for each, (parent, _) in blocks.items() if parent in gone}

    def find_matches(self, asked: list[int]) -> Any:
        scores = {}
        for who, blocks in self.blocks.items():
            at, length = None, 0
            while length < len(asked):
                found = [h for h, block in blocks.items() if block == (at, asked[length])]
                if not found:
                    break
                at, length = found[0], length + 1
            scores[who] = length
        return SimpleNamespace(scores={who: n for who, n in scores.items() if n})


def test_the_adapter_of_a_tree_keeps_the_rules() -> None:
    assert judged(game_of(DynamoTrees(StandIn), find_index()), num_lives=150).findings == {}


def test_dynamo_s_own_tree_keeps_the_rules() -> None:
    try:
        subject = tree()
    except DynamoUnavailableError as error:
        pytest.skip(str(error))
    assert judged(game_of(subject, find_index()), num_lives=400).findings == {}
