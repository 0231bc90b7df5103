"""Hashes with adapters, items and salts, beside those that a later engine computed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kvcheck.rules.bench import Bench
from kvspec.request import LoRA, MultimodalItem, RequestInput


@pytest.mark.rule("KV-HASH-7", "KV-HASH-8", "KV-HASH-10")
@pytest.mark.shared
def test_tagged_hashes_are_those_of_a_later_engine(bench: Bench, shared: Path) -> None:
    """Compare with the hashes of vLLM 0.33 for prompts with adapters, items and salts."""
    compared = 0
    for name in ("events-330051", "extra_keys-330029"):
        with gzip.open(shared / f"golden-0.33/{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            header, *operations = map(json.loads, file)
        manager = bench.manager(6, header["config"]["hash_block_size"])
        assert manager.none_hash.hex() == header["none_hash"]
        for operation in operations:
            args = operation.get("args", {})
            if operation.get("op") != "new_request" or "result" not in operation:
                continue
            lora = args.get("lora")
            given = RequestInput(
                "r",
                args["prompt_token_ids"],
                cache_salt=args.get("cache_salt"),
                lora=None if lora is None else LoRA(**lora),
                multimodal=tuple(MultimodalItem(**item) for item in args.get("mm_features") or ()),
            )
            found = manager.make_request(given).block_hashes
            assert [block_hash.hex() for block_hash in found] == operation["result"]["block_hashes"]
            compared += lora is not None or given.cache_salt is not None
    assert compared >= 5
