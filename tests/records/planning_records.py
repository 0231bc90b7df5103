"""Planning records: a call of each function with what kvref answers, in `planning.jsonl`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("planning.jsonl")
HEADER, *RECORDS = [json.loads(line) for line in PATH.read_text("utf-8").splitlines()]
INPUTS: dict[str, Any] = {record["fn"]: record["input"] for record in RECORDS}
"""By function; the last record's, which may be one that fails."""

SPEC, _ = INPUTS["merge"]["specs"]
MEMORY = INPUTS["estimate_max_model_len"]
CONFIG = MEMORY["config"]
CACHE = INPUTS["get_kv_cache_capacity"]["kv_cache_config"]


def written(path: Path, *records: dict[str, Any]) -> Path:
    numbered = [{**record, "id": position} for position, record in enumerate(records)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [HEADER, *numbered]))
    return path
