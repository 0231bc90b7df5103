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


EXPLORE = (
    "batches", "batching", "bounds", "copies", "edges", "graph", "illegal", "moves", "play",
    "search", "session", "sides", "state",
)  # fmt: skip
"""What explores; the rest is its configurations, its command, or for vectors."""

PARTS = {
    "kvfast": Part(
        "`kvfast/_core`, uncompiled",
        ("kvfast",),
        ("kvfast/_core/*",),
        (
            "tests/contract/test_directed.py",
            "tests/contract/test_batched_hostile.py",
            "tests/contract/test_out_of_memory.py",
            "tests/lockstep/test_lockstep.py",
            "tests/fuzz/test_corpus.py",
            "tests/contract/test_one_at_a_time.py",
            "tests/kvfast/test_arrays.py",
            "tests/kvfast/test_chain.py",
            "tests/kvfast/test_hashing.py",
            "tests/kvfast/test_key_map.py",
            "tests/kvfast/test_requests.py",
            "tests/kvfast/test_requests_batch.py",
        ),
        "(uncompiled or _core or key_map or arrays) and not random_steps and not every_allocation",
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
        "of the judge: codec, player, shadow memory, comparisons, suite, explore, records",
        ("kvcheck",),
        (
            "kvcheck/remote/codec.py",
            "kvcheck/remote/values.py",
            "kvcheck/play/agreement.py",
            "kvcheck/play/calls.py",
            "kvcheck/play/checks.py",
            "kvcheck/play/compare.py",
            "kvcheck/play/difference.py",
            "kvcheck/play/performing.py",
            "kvcheck/play/player.py",
            "kvcheck/play/runner.py",
            "kvcheck/play/shadow/*",
            "kvcheck/play/state.py",
            "kvcheck/play/verdicts.py",
            "kvcheck/judge/ledger.py",
            "kvcheck/judge/suite.py",
            *(f"kvcheck/explore/{name}.py" for name in EXPLORE),
            "kvcheck/records/trace.py",
        ),
        (
            "tests/remote/test_codec.py",
            "tests/remote/test_values.py",
            "tests/explore/test_batches.py",
            "tests/explore/test_broken.py",
            "tests/explore/test_copies.py",
            "tests/explore/test_counts.py",
            "tests/explore/test_moves.py",
            "tests/explore/test_play.py",
            "tests/explore/test_session.py",
            "tests/judge/test_agreement.py",
            "tests/judge/test_blame.py",
            "tests/judge/test_calls.py",
            "tests/judge/test_checks.py",
            "tests/judge/test_contents.py",
            "tests/judge/test_copied.py",
            "tests/judge/test_evidence.py",
            "tests/judge/test_fit.py",
            "tests/judge/test_going_on.py",
            "tests/judge/test_inside.py",
            "tests/judge/test_performing.py",
            "tests/judge/test_player.py",
            "tests/judge/test_programs.py",
            "tests/judge/test_safety.py",
            "tests/judge/test_shadow.py",
            "tests/judge/test_stable_lists.py",
            "tests/judge/test_state.py",
            "tests/judge/test_suite.py",
            "tests/judge/test_verdicts.py",
            "tests/records/test_record_start.py",
            "tests/records/test_trace.py",
            "tests/records/test_alterations.py",
        ),
        "not random_programs and not broken_pool and not every_situation and not shared"
        " and not another_choice and not dictionary"
        " and not mamba-retention and not own-hits and not unequal and not refusals"
        # Seconds each, and what they see is seen by quicker ones:
        " and not no-events and not played_again and not one_mistake_hides and not consequences"
        " and not same_counts[3] and not same_counts[5]"
        " and not (see_wrong_content and embeddings)",
    ),
}
NEVER = ("*/mistakes/*",)
