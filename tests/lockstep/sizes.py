"""The sizes at which kvfast's code changes hands, and its constants that are no such size."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from tests.source import ROOT

CORE = ROOT / "kvfast" / "_core"


@dataclass(frozen=True)
class Size:
    """So many of a unit; `source`: the constant of a module, or a line that stands in it."""

    module: str
    source: str
    value: int
    unit: str


SIZES = (
    Size("probing", "RUN_BLOCKS", 32, "blocks"),
    Size("probing", "SIDE_MASK", 7, "blocks"),
    Size("upcoming", "FAR", 32, "blocks"),
    Size("upcoming", "NEAR", 5, "blocks"),
    Size("tables", "SMALLEST_PLACE", 4, "blocks"),
    Size("request", "UNLOCKED_TOKENS", 1024, "tokens"),
    Size("request", "KEPT_MESSAGE_BYTES", 16384, "bytes of a buffer for messages"),
    Size("arrays", "LARGE_BYTES", 1 << 18, "bytes of a pool's records"),
    Size("zeroing", 'self.to_zero = zeroed("q", 64)', 64, "blocks"),
    Size("lookup", "stride = max(64, 2 * num_blocks)", 64, "blocks"),
    Size("tables", 'self.arena = zeroed("i", 256)', 256, "blocks"),
    Size("pool", "self.keys.grow(entry + max(64, self.num_more))", 64, "boundaries"),
    Size("tables", "self.max_rows = 8", 8, "requests"),
    Size("registry", "self.make_room(max(16, 2 * handle))", 16, "requests"),
    Size("entries", 'self.handles = zeroed("q", 64)', 64, "requests"),
)

NO_SIZES: Mapping[str, str] = MappingProxyType(
    {
        "record": "places within a record",
        "hot": "places within a handle's fields",
        "kinds": "names of kinds",
        "digest": "bytes that a digest keeps and pads",
        "hashing": "bytes of CBOR, and where they stand",
        "chain": "bytes of a pickle, and where they stand",
        "zeroing.GROUP_BASE": "two numbers in one: more blocks than there can be",
        "arrays.LINE_BYTES": "where memory begins; nobody sees what is before",
        "arrays.HUGE_PAGE_BYTES": "rounds the length of memory up; nobody sees what is behind",
        "batch_calls.MANY": "a sum ends there: more tokens than there can be",
        "checks.COUNT_BITS": "the largest legal count",
        "entries.COUNT_BITS": "the largest legal count",
        "request.COUNT_BITS": "the largest legal count",
        "registry.NOBODY": "later than any call",
        "running.MANY": "a sum ends there: more tokens than there can be",
        "steps.MANY": "a sum ends there: more tokens than there can be",
        "probing.ENTRY_MASK": "bits of a slot",
        "probing.STEPS_SHIFT": "bits of a slot",
        "probing.STEPS_MASK": "255 keys that want one place do not come by chance",
        "probing.TAG_SHIFT": "bits of a slot",
        "probing.TAG_OF_WORD_SHIFT": "bits of a hash",
        "probing.STEP": "how probing goes on",
        "probing.STEP_INVERSE": "how probing goes on",
        "key_map.MIX_MASK": "bits of a hash",
        "probing.HOME_MASK": "bits of a hash",
        "key_map.GROUP_FACTOR": "bits of a hash",
        "tables.NUM_SIZES": "lists of 2^34 blocks",
        "tables.LINK_BASE": "more entries than there can be",
    }
)
"""Modules and constants, and why they are left out."""


def constants() -> Iterator[tuple[str, str, int]]:
    """Module, name and value of every int that stands at the top of a module of the core."""
    for path in sorted(CORE.glob("*.py")):
        for line in ast.parse(path.read_text(encoding="utf-8")).body:
            target = line.targets[0] if isinstance(line, ast.Assign) else None
            if isinstance(line, ast.AnnAssign):
                target = line.target
            if not isinstance(line, ast.Assign | ast.AnnAssign) or line.value is None:
                continue
            names = {each.id for each in ast.walk(line.value) if isinstance(each, ast.Name)}
            calls = any(isinstance(each, ast.Call) for each in ast.walk(line.value))
            if isinstance(target, ast.Name) and not names and not calls:
                value = eval(compile(ast.Expression(line.value), path.name, "eval"), {})
                if isinstance(value, int):
                    yield path.stem, target.id, value


NOT_YET = (
    "LargeArraysGrowEmpty", "ItemsBehindComeLate", "GapOfTheFirstPrompt", "NullsOfOneChunkBack",
    "NeverLooksAgainAfterACall", "NeverLooksAgainAfterAStep", "HoldsSaturate",
    "ReadsFromTheNextBlock", "EndsWithoutTheirKeyAreReported", "CountsOneRunOfRevived",
    "CountsOnAfterAWithdrawal", "TailBeyondTheAlignedTokens", "FilledBlockOnlyCounted",
)  # fmt: skip
"""The first is not found by 4,000 operations, and within 10,000 it fills 24 GB of memory: it needs
lists of 65,536 blocks, or a request of 32,768 tokens that grows. Other seeds come to that.
HoldsSaturate needs a block that is held 65,537 times. No program sets a request back behind its
window (KV-REQ-9). Earlier draws found ItemsBehindComeLate, which 10,000 operations of later ones
did not, and the last five, of which 20,000 operations of these, or two minutes of them, find none.
The directed suite finds these."""
