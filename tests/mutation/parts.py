"""What is mutated apart from the rest, and the quick tests that must see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Modules by pattern, the tests that are shown their mutants, and the score that is wanted."""

    about: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    only: str = ""
    wanted: float = 0.97


PARTS = {
    "kvfast": Part(
        "`kvfast/_core`, uncompiled",
        ("kvfast",),
        ("kvfast/_core/*",),
        (
            "tests/contract/test_directed.py",
            "tests/contract/test_batched_hostile.py",
            "tests/lockstep/test_lockstep.py",
            "tests/fuzz/test_corpus.py",
            "tests/kvfast/test_arrays.py",
            "tests/kvfast/test_key_map.py",
            "tests/kvfast/test_requests.py",
            "tests/kvfast/test_requests_batch.py",
        ),
        "uncompiled or _core or key_map or arrays",
    ),
    "kvref": Part(
        "`kvref`",
        ("kvref",),
        ("kvref/*",),
        (
            "tests/contract/test_directed.py",
            "tests/kvref/test_block_pool.py",
            "tests/kvref/test_corners.py",
            "tests/kvref/test_custom_specs.py",
            "tests/kvref/test_parts.py",
            "tests/tier/test_rules.py",
        ),
        "not kvfast",
    ),
    "judge": Part(
        "the judge: codec, player, suite, shadow memory, exploration, recorded operations",
        ("kvcheck",),
        (
            "kvcheck/remote/codec.py",
            "kvcheck/remote/values.py",
            "kvcheck/play/*",
            "kvcheck/judge/suite.py",
            "kvcheck/judge/following.py",
            "kvcheck/explore/*",
            "kvcheck/records/trace.py",
            "kvcheck/records/report.py",
        ),
        (
            "tests/remote/test_codec.py",
            "tests/remote/test_values.py",
            "tests/judge/test_programs.py",
            "tests/judge/test_safety.py",
            "tests/judge/test_text.py",
            "tests/judge/test_state.py",
            "tests/judge/test_refusals.py",
            "tests/judge/test_search.py",
            "tests/judge/test_illegal_operations.py",
            "tests/explore/test_broken.py",
            "tests/explore/test_batches.py",
            "tests/explore/test_renaming.py",
            "tests/records/test_trace.py",
            "tests/records/test_alterations.py",
            "tests/records/test_codec.py",
            "tests/records/test_validation_tampered.py",
            "tests/vectors/test_following.py",
        ),
        "not deep",
        wanted=0.90,
    ),
}
NEVER = ("*/mistakes/*",)
