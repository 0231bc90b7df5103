"""What is mutated apart from the rest, and the quick tests that must see it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Modules by pattern, and the tests that are shown their mutants."""

    about: str
    packages: tuple[str, ...]
    modules: tuple[str, ...]
    tests: tuple[str, ...]
    only: str = ""


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
        "(uncompiled or _core or key_map or arrays) and not random_steps",
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
        "of the judge: codec, shadow memory, comparisons, recorded operations",
        ("kvcheck",),
        (
            "kvcheck/remote/codec.py",
            "kvcheck/remote/values.py",
            "kvcheck/play/agreement.py",
            "kvcheck/play/compare.py",
            "kvcheck/play/difference.py",
            "kvcheck/play/shadow/*",
            "kvcheck/records/trace.py",
        ),
        (
            "tests/remote/test_codec.py",
            "tests/remote/test_values.py",
            "tests/judge/test_safety.py",
            "tests/judge/test_shadow.py",
            "tests/judge/test_text.py",
            "tests/records/test_trace.py",
            "tests/records/test_alterations.py",
            "tests/records/test_codec.py",
        ),
        "not random_programs",
    ),
}
NEVER = ("*/mistakes/*",)
