"""Stories of partial entries, loads, drafts, embeddings and queues."""

from __future__ import annotations

from dataclasses import replace

from kvspec.conformance.scenarios.building import flagged, prompt, roomy
from kvspec.conformance.scenarios.groups import chunked, mamba, window
from kvspec.conformance.scenarios.single import CFG, A, B, C, configure, full, story
from kvspec.conformance.steps import (
    Admit,
    Arrive,
    Ask,
    CachePartial,
    Evict,
    FailLoad,
    FinishLoad,
    NewStep,
    Program,
    Release,
    Reset,
    ReturnPopped,
    Run,
    Skip,
    Step,
    Take,
)
from kvspec.specs import (
    HiddenStateCacheSpec,
    MLAAttentionSpec,
    SinkFullAttentionSpec,
    TQFullAttentionSpec,
)

FINE = roomy(full(4), window(32, 16))
"""H = 4, and a group whose blocks cover four hashes."""

HALF = (Arrive(prompt(30)), Admit(chunk_tokens=14))
LATER = (Release(again=True), Admit(), Ask(), Run())


def partial(*numbers: int, who: int = 0) -> tuple[Step, ...]:
    """Register boundaries 4, 8, 12, 20 … by number in the group of large blocks."""
    return tuple(CachePartial(who=who, group=1, index=number) for number in numbers)


PARTIAL: tuple[Program, ...] = (
    story("a boundary inside a block", ("KV-PART-1", "KV-PART-4"), FINE, *HALF, *partial(2), Ask(),
          *LATER),
    story("boundaries in later blocks", ("KV-PART-1", "KV-PART-4"), FINE, Arrive(prompt(62)),
          Admit(chunk_tokens=46), *partial(5, 6, 8, 3), Ask(), *LATER),
    story("the null block gets no boundary", ("KV-PART-1",),
          roomy(full(4), window(4, 16)), Arrive(prompt(40)), Admit(), Skip(), *partial(1, 2, 7)),
    story("shorter boundaries stand beside the longest", ("KV-PART-2",), FINE, *HALF,
          *partial(2, 1, 0, 1, 2), Ask(), Evict(group=1, held=True), *partial(1), Release()),
    story("a longer boundary replaces all", ("KV-PART-3",), FINE, *HALF, *partial(0, 1, 2), Ask(),
          *LATER),
    story("copies of a boundary", ("KV-PART-2", "KV-POOL-13"), FINE, Arrive(prompt(30)),
          Arrive(prompt(30)), Admit(look_up=False, chunk_tokens=14),
          Admit(look_up=False, chunk_tokens=14), *partial(2, 1), *partial(2, 0, who=1),
          Evict(group=1, held=True), Release(), Release()),
    story("the full block replaces its boundaries", ("KV-PART-5", "KV-POOL-18"), FINE, *HALF,
          *partial(2, 1, 0), Run(chunk_tokens=4), Run(), *LATER),
    story("a block that is passed over keeps its boundaries", ("KV-PART-5",),
          roomy(full(4), window(5, 16), full(32)), Arrive(prompt(50)), Admit(chunk_tokens=14),
          *partial(2, 1), Run(chunk_tokens=20), Run(), *LATER),
    story("eviction by id drops all boundaries", ("KV-PART-5", "KV-POOL-10"), FINE, *HALF,
          *partial(2, 1, 0), Evict(group=1, held=True), Run(), *LATER),
    story("a reset drops all boundaries", ("KV-PART-5", "KV-EVT-5"), FINE, *HALF,
          *partial(2, 1), Reset(), Release(again=True), Reset(), Admit(), Run()),
    story("a block that is taken loses its boundaries", ("KV-PART-5", "KV-POOL-4"),
          configure(8, full(4), window(32, 16)), *HALF, *partial(2, 1), Release(),
          Arrive(tuple(range(50, 74))), Admit(), Release()),
    story("boundaries of what states skip", ("KV-PART-1", "KV-PART-4"),
          roomy(full(4), mamba("all", 16)), Arrive(prompt(40)), Admit(chunk_tokens=30),
          *partial(1, 4), Run(), NewStep(), *LATER),
    story("boundaries of requests with extra keys", ("KV-PART-4", "KV-EVT-8"),
          replace(FINE, int_event_hashes=True),
          Arrive(prompt(30), salt="s", lora="x", items=(("i", 3, 6),)), Admit(chunk_tokens=14),
          *partial(0, 1, 2), Run()),
)  # fmt: skip

LOADS: tuple[Program, ...] = (
    story("a failed load is never a hit", ("KV-POOL-10", "KV-GRP-6"), configure(12, full()),
          Arrive(prompt(9)), Admit(external_tokens=6), FailLoad(index=1), Arrive(prompt(9)),
          Admit(), Run(), Release(), Arrive(prompt(9)), Admit()),
    story("a failed load in windows is preempted", ("KV-POOL-10", "KV-MGR-17"),
          configure(30, full(), window(4)), Arrive(prompt(13)), Admit(external_tokens=9),
          FailLoad(), Arrive(prompt(13)), Admit(who=1), Admit(), Run()),
    story("a late load that fails is not registered", ("KV-MGR-10", "KV-MGR-11"),
          configure(12, full()), Arrive(prompt(9)), Admit(external_tokens=6, load_later=True),
          FailLoad(index=2), FinishLoad(), Run(), Arrive(prompt(9)), Admit(), Run()),
    story("external tokens under way get new blocks", ("KV-GRP-9", "KV-GRP-7"), CFG,
          Arrive(prompt(9)), Admit(chunk_tokens=2), Run(external_tokens=3, chunk_tokens=2), Ask(),
          Run(external_tokens=9), Run(), Arrive(prompt(9)), Admit()),
    story("registration can wait for the next call", ("KV-MGR-10", "KV-GRP-11"), CFG,
          Arrive(prompt(9)), Admit(chunk_tokens=3), Run(chunk_tokens=4, delayed=True), Ask(),
          Arrive(prompt(9)), Admit(), Run(), Ask(who=1), Take()),
    story("the engine runs ahead of its sampler", ("KV-REQ-3", "KV-MGR-10"), configure(20, full()),
          Arrive((1, 2, 3)), Admit(), Run(ahead=True, token=4), Run(ahead=True, token=5),
          Run(ahead=True, token=6, drafts=(7, 8), accepted=1), Run(), Ask(),
          Arrive((1, 2, 3, 4, 5, 6, 7, 9)), Admit()),
    story("rejected drafts are overwritten", ("KV-MGR-10", "KV-HASH-1"), configure(20, full()),
          Arrive((1, 2, 3)), Admit(), Run(token=4, drafts=(8, 8), accepted=0), Run(token=5),
          Run(token=6, drafts=(7, 8), accepted=1), Run(token=9), Arrive((1, 2, 3, 4, 8, 8, 7)),
          Admit(), Arrive((1, 2, 3, 4, 5, 6, 7, 9, 1)), Admit()),
    story("lookahead is limited by the longest sequence", ("KV-MGR-7", "KV-MGR-4"),
          configure(20, full(), max_model_len_tokens=9), Arrive(prompt(7)),
          Admit(lookahead_tokens=9), Run(lookahead_tokens=9), Ask(), Run(drafts=(1, 2), accepted=1),
          Run(), Release()),
    story("embeddings tell requests apart", ("KV-HASH-9",), configure(20, full()),
          Arrive((0,) * 6, embedded=(1, 2, 3, 4)), Admit(),
          Arrive((0,) * 6, embedded=(1, 2, 3, 5)), Admit(), Arrive((0,) * 6), Admit(),
          Arrive((0,) * 6, embedded=(1, 2, 3, 4)), Admit()),
    story("128-bit hashes", ("KV-HASH-12", "KV-EVT-6"),
          configure(8, full(), hash_function="xxhash_cbor", int_event_hashes=True), Arrive(A),
          Admit(), Arrive(B), Admit(), Release(), Release()),
)  # fmt: skip

POOL: tuple[Program, ...] = (
    story("removals come before what is stored", ("KV-EVT-1", "KV-EVT-4"), configure(5, full()),
          Arrive(prompt(8)), Admit(), Release(), Arrive((9,) * 6), Admit(), Run(), Run(), Run()),
    story("events tell what is cached", ("KV-EVT-7",), configure(7, full()), Arrive(A),
          Arrive(A), Admit(look_up=False), Admit(look_up=False), Release(), Evict(), Arrive(C),
          Admit(), Release(), Release(), Reset()),
    story("events of every kind of group", ("KV-EVT-2", "KV-EVT-3"),
          roomy(full(4), window(5, 4), chunked(8, 4), mamba("all", 4)), Arrive(prompt(19)),
          Admit(chunk_tokens=9), Evict(index=1), Run(), NewStep(), *LATER),
    story("without events nothing is queued", ("KV-EVT-1",), configure(7, full(),
          enable_events=False), Arrive(A), Admit(), Release(), Arrive(C), Admit(), Reset()),
    story("an entry begins with hits, a load, or a full block", ("KV-GRP-1", "KV-ERR-4"),
          configure(20, full(4)), Arrive(prompt(3)), Ask(), Admit(), Ask(), Run(), Run(), Ask(),
          Arrive((9, 9, 9)), Admit(external_tokens=2), Ask(who=1), Release(who=1),
          Release(again=True), Ask(), Admit()),
    story("only full attention is zeroed", ("KV-GRP-10", "KV-MGR-16"),
          roomy(full(4), MLAAttentionSpec(4, 1, 8, "float16"), window(9, 4), mamba("all", 4)),
          Arrive(prompt(9)), Admit(), Take(), Run(), NewStep(), Release(), Arrive(prompt(11)),
          Admit(external_tokens=1), Take(), Release(), Arrive((8,) * 5), Admit(), Take()),
    story("kinds of full attention", ("KV-FULL-8", "KV-GRP-10"),
          roomy(TQFullAttentionSpec(4, 1, 8, "float16", tq_slot_size=8),
                HiddenStateCacheSpec(4, 1, 8, "float16"),
                SinkFullAttentionSpec(4, 1, 8, "float16", sink_len=8)),
          Arrive(prompt(9)), Admit(), Take(), Run(), Release(), Reset(), Arrive(prompt(9)), Admit(),
          Ask(), Take()),
    story("a block taken twice is named twice", ("KV-GRP-10",), configure(3, full()), Arrive((1,)),
          Admit(), Release(), Arrive((2,)), Admit(), Take(), Take()),
    story("the need is what is taken", ("KV-MGR-18", "KV-GRP-3", "KV-GRP-4"),
          roomy(full(2), window(4), mamba("all", 2, drafted=1)), Arrive(prompt(9)), Ask(),
          Ask(num_tokens=30), Admit(chunk_tokens=4), Ask(), Ask(num_tokens=30), Run(), NewStep(),
          Release(again=True), Ask(), Admit(), Ask(num_tokens=12), Run(), Release()),
    story("null blocks are passed over", ("KV-POOL-1", "KV-POOL-9"),
          configure(20, window(3), full()), Arrive(prompt(9)), Admit(), Skip(),
          Evict(count=4, held=True), Release(later=True), ReturnPopped(2), ReturnPopped(9)),
    story("several evictions in one call", ("KV-POOL-10", "KV-EVT-4"), configure(20, full()),
          Arrive(prompt(11)), Admit(), Evict(index=1, count=3, held=True), Release(again=True),
          Evict(count=5), Admit()),
    story("references are claims", ("KV-POOL-16", "KV-POOL-17"), configure(20, full(), window(6)),
          Arrive(A), Admit(), Arrive(B), Admit(), Arrive(A), Admit(), Release(later=True),
          Release(), ReturnPopped(3), Release(later=True), ReturnPopped(9)),
    story("a full block is registered once", ("KV-POOL-18", "KV-POOL-13"), CFG, Arrive(A), Admit(),
          Arrive(A), Admit(), Run(), Run(), Run(who=1), Run(who=1), Release(), Release()),
    story("a deferred free is one call", ("KV-POOL-7", "KV-MGR-13"), configure(20, full(),
          window(9)), Arrive(prompt(9)), Admit(), Arrive((7,) * 5), Admit(), Release(later=True),
          Release(later=True), ReturnPopped(3), ReturnPopped(20), Arrive((8,) * 21), Admit()),
    story("samples of residency", ("KV-STAT-7",),
          configure(5, full(), residency_sample_rate=0.5), Arrive(A), Admit(), Release(),
          Arrive(C), Admit(), Take(), Evict(), Release(), Take(), Arrive(A), Admit(), Take()),
    story("a rounded number of ranks", ("KV-FULL-5",),
          configure(12, full(), dcp_world_size=2, pcp_world_size=2), Arrive(prompt(20)),
          Admit(chunk_tokens=9), Run(), Release(again=True), Admit(), Ask(), Run()),
    story("a flag on one of several groups", ("KV-CFG-8", "KV-FULL-3"),
          flagged(roomy(full(), MLAAttentionSpec(2, 1, 8, "float16")), 1), Arrive(prompt(9)),
          Admit(), Release(again=True), Admit(), Ask(), Run()),
    story("hash blocks smaller than blocks", ("KV-HASH-5", "KV-CFG-5"),
          roomy(full(4), full(8), hash_block_size_tokens=2), Arrive(prompt(21)), Admit(),
          Release(again=True), Admit(), Ask(), Run()),
    story("watermark, gate and reserve together", ("KV-MGR-5", "KV-MGR-7", "KV-MGR-9"),
          configure(8, full(), watermark=0.3), Arrive(prompt(8)), Arrive((9,) * 3),
          Admit(must_fit=True, others_scheduled=True), Admit(must_fit=True), Admit(),
          Admit(others_scheduled=True), Admit(reserved_blocks=2), Run(), Run(), Release(again=True),
          Admit(others_scheduled=True), Admit()),
)  # fmt: skip

STORAGE_SCENARIOS: tuple[Program, ...] = PARTIAL + LOADS + POOL
