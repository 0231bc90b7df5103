"""The chapter on coordination (KV-COORD): the search for the hit that all groups agree on."""

from __future__ import annotations

from functools import partial
from typing import Any

from kvcheck.play.verdicts import Level
from kvcheck.rules.bench import Bench
from kvcheck.rules.example import cases, example
from kvcheck.rules.judging import equal, raises
from kvcheck.rules.placed import hits, place
from kvcheck.rules.specs import full, mamba, sliding
from kvspec.errors import ConfigError
from kvspec.specs import LayerSpec, MLAAttentionSpec

FULL, STATES = full(4), mamba(4)
SHORT, LONG = sliding(4, 6), sliding(4, 10)  # of two blocks, and of three
KINDS = (FULL, SHORT, mamba(8))
PLACES = (range(14), (2, 3, 4, 5, 6, 7, 10, 11), (0, 1, 2, 3, 4, 6))
"""Own hits of 56, 48 and 56 tokens, of which 32 are agreed on."""


@example("KV-COORD-3", "KV-ERR-5", level=Level.SAFETY)
def several_groups_of_one_spec_alone_are_refused(bench: Bench) -> None:
    """Several groups of one spec alone belong into one, unless nothing is cached."""
    for number in (2, 3):
        specs = [FULL] * number
        make = partial(bench.manager, 20, *specs)
        with raises(ConfigError, field="kv_cache.groups"):
            make()
        bench.manager(20, *specs, enable_caching=False)
        bench.manager(20, *specs, sliding(4, 8))


@example("KV-COORD-3", "KV-CFG-6", "KV-ERR-5", level=Level.SAFETY)
def context_parallelism_of_several_groups_is_refused(bench: Bench) -> None:
    for field in ("dcp_world_size", "pcp_world_size"):
        for caching in (True, False):
            options: dict[str, Any] = {field: 2, "enable_caching": caching}
            make = partial(bench.manager, 20, FULL, sliding(4, 8), **options)
            with raises(ConfigError, field=field, value=2):
                make()


@example("KV-COORD-4")
def groups_with_equal_specs_are_looked_up_jointly(bench: Bench) -> None:
    specs = [SHORT, FULL, SHORT, FULL]
    kept = [range(14), (0, 1, 2, 3, 5), range(14), range(5)]
    hits(bench, specs, kept, 16, [{2, 3}, range(4), {2, 3}, range(4)], uncached=0)
    holes = [range(14), range(14), {*range(14)} - {3}, range(4)]
    hits(bench, specs, holes, 12, [{1, 2}, range(3), {1, 2}, range(3)])
    # Each of two windows fills itself at 40 or 36; the rightmost run of both ends at 24.
    kept = [range(14), (4, 5, 8, 9), (4, 5, 7, 8)]
    hits(bench, [FULL, SHORT, SHORT], kept, 24, [range(6), {4, 5}, {4, 5}], own=(56, 24, 24))


@example("KV-COORD-4", "KV-CFG-8")
def one_flag_counts_for_all_groups_of_a_spec(bench: Bench) -> None:
    """One flag counts for all groups of a spec, and for no other."""
    kept = [range(10), range(14), range(10)]
    for flagged in (0, 2):
        flags, answered = [flagged], [{7, 8}, range(9), {7, 8}]
        hits(bench, [SHORT, FULL, SHORT], kept, 36, answered, own=(36, 56, 36), eagle_groups=flags)


@cases(FULL, MLAAttentionSpec(4, 1, 8, "float16"))
@example("KV-COORD-4", "KV-COORD-12")
def full_attention_is_asked_first(bench: Bench, spec: LayerSpec) -> None:
    """Full attention is asked first, wherever it is configured."""
    hits(bench, [SHORT, spec], [range(6), range(14)], 24, [{4, 5}, range(6)], uncached=32)


@example("KV-COORD-4", "KV-COORD-12")
def other_groups_are_asked_in_the_order_of_first_members(bench: Bench) -> None:
    """Other groups are asked in the order of first members: the state after 40, or not."""
    hits(bench, [STATES, SHORT], [{1, 9}, {0, 1}], 8, [{1}, {0, 1}], uncached=32)
    hits(bench, [SHORT, STATES], [{0, 1}, {1, 9}], 8, [{0, 1}, {1}], uncached=0)


@example("KV-COORD-5", "KV-COORD-10", "KV-COORD-12", "KV-COORD-9")
def groups_are_asked_again_until_all_agree(bench: Bench) -> None:
    """Groups are asked again until all agree: 56, 48, 40, then 32, then nothing shorter."""
    answered = [range(8), {6, 7}, {3}]
    hits(bench, KINDS, PLACES, 32, answered, own=(56, 48, 56), uncached=24)


@example("KV-COORD-5", "KV-GRP-8")
def an_agreed_hit_is_taken_by_all_groups(bench: Bench) -> None:
    manager, _, _ = place(bench, KINDS, PLACES)
    manager.new_step_starts()
    request = manager.request("second", range(60))
    hit = manager.get_computed_blocks(request).blocks.to_lists()
    equal(manager.admit(request) is not None, True)
    lists = manager.lists(request)
    equal([len(blocks) for blocks in lists], [15, 15, 8])
    manager.same([b[:n] for b, n in zip(lists, (8, 8, 4), strict=True)], hit)


@example("KV-COORD-6", "KV-FULL-3")
def full_attention_drops_its_block_once(bench: Bench) -> None:
    """Full attention drops its block once: cut to 48, and to 32 three rounds later."""
    answered = [range(8), {6, 7}, {3}]
    hits(bench, KINDS, PLACES, 32, answered, uncached=48 - 32, eagle_groups=[0])


@example("KV-COORD-7", "KV-COORD-8", "KV-COORD-12")
def an_eagle_group_drops_again_at_another_length(bench: Bench) -> None:
    """An eagle group drops again at another length: 52, 44, 28, then 20."""
    kept = [range(13), {*range(2, 12)} - {6}, {*range(1, 10)} - {7}]
    answered = [range(5), {3, 4}, {2, 3, 4}]
    hits(bench, [FULL, SHORT, LONG], kept, 20, answered, uncached=32, eagle_groups=[1])


@example("KV-COORD-7")
def an_eagle_group_looks_one_block_further(bench: Bench) -> None:
    """An eagle group looks one block further: it keeps 40 if its block 10 is there, too."""
    for num, length in ((11, 40), (10, 36), (14, 40)):
        last = length // 4
        answered, kept = [range(last), {last - 2, last - 1}], [range(10), range(num)]
        hits(bench, [FULL, SHORT], kept, length, answered, eagle_groups=[1])


@example("KV-COORD-7", "KV-MGR-1", choices=("eagle_looks_beyond",))
def an_eagle_group_never_looks_beyond_the_limit(bench: Bench) -> None:
    """An eagle group never looks beyond the limit: of 48 tokens block 11 ends with the last."""
    manager, _, _ = place(bench, [FULL, SHORT], [range(14), range(14)], eagle_groups=[1])
    for tokens, length in ((48, 40), (49, 44), (52, 44), (53, 48)):
        hit = manager.get_computed_blocks(manager.request(str(tokens), range(tokens)))
        equal(hit.hit_length_tokens, length, f"the hit of {tokens} tokens")


@example("KV-COORD-8")
def a_flagged_group_of_states_looks_no_further_and_drops_nothing(bench: Bench) -> None:
    for states in ((0, 1, 2, 3, 4), (4, 6)):
        specs, kept = [FULL, mamba(8)], [range(13), states]
        hits(bench, specs, kept, 40, [range(10), {4}], uncached=8, use_eagle=True)


@example("KV-COORD-8")
def the_first_look_up_of_flagged_states_clears_no_mark(bench: Bench) -> None:
    """The first look-up of flagged states clears no mark: 8, 9 confirm 40 without block 10."""
    kept = [range(13), {*range(14)} - {10}, {9}]
    answered = [range(10), {8, 9}, {9}]
    hits(bench, [FULL, SHORT, STATES], kept, 40, answered, eagle_groups=[1, 2])


@example("KV-COORD-8")
def states_without_a_flag_clear_the_marks(bench: Bench) -> None:
    """States without a flag clear the marks: the window drops anew at 40, where 10 is missing."""
    kept = [range(13), {*range(14)} - {10}, {8, 9}]
    hits(bench, [FULL, SHORT, STATES], kept, 36, [range(9), {7, 8}, {8}], eagle_groups=[1])


@example("KV-COORD-7", "KV-COORD-8")
def a_drop_of_one_group_clears_no_mark_of_another(bench: Bench) -> None:
    """A drop of one group clears no mark of another, nor does an answer of the same length."""
    kept = [range(13), {*range(14)} - {10}, {7, 8, 9, 10}]
    answered = [range(10), {8, 9}, {7, 8, 9}]
    hits(bench, [FULL, SHORT, LONG], kept, 40, answered, eagle_groups=[1, 2])
    with_states = [*kept, {9}], 40, [*answered, {9}]
    hits(bench, [FULL, SHORT, LONG, STATES], *with_states, eagle_groups=[1, 2])


@example("KV-COORD-8")
def marked_states_clear_like_any_other_group(bench: Bench) -> None:
    """Marked states clear like any other group.

    Round 1: 52, 52, 52, and the long window drops to 44. Round 2: the state after 44 is missing,
    32. Round 3: the short window drops anew and has 5, 6, 7 but not 6, 7, 8: 28.
    """
    kept = [range(13), {*range(14)} - {8}, (6, 7, 12), range(3, 12)]
    answered = [range(7), {5, 6}, {6}, {4, 5, 6}]
    hits(bench, [FULL, SHORT, STATES, LONG], kept, 28, answered, eagle_groups=[1, 2, 3])
