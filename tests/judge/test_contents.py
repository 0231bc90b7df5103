"""What shadow memory says of reading and writing, to the word: windows, chunks, encoders, states.

Each story is a few calls; `said` is what the last of them finds, None if it finds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pytest

from kvcheck.play.shadow.content import Content
from kvcheck.play.shadow.content_check import ContentCheck
from kvspec.errors import InvariantViolation
from kvspec.specs import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    LayerSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from tests.programs.single import configure, full

TEXT = Content(b"r", range(100, 109))
OTHER = Content(b"r", (100, 101, 102, 203, 204, 205))
LONGER, LONGEST = (Content(b"r", range(100, end)) for end in (110, 111))
FULL = full(2)
WINDOW = SlidingWindowSpec(2, 1, 8, "float16", sliding_window=3)
CHUNKED = ChunkedLocalAttentionSpec(2, 1, 8, "float16", attention_chunk_size=4)
CROSS = CrossAttentionSpec(2, 1, 8, "float16")


def states(mode: str = "none", drafts: int = 0) -> MambaSpec:
    """Blocks of three tokens."""
    return MambaSpec(3, ((2,),), ("float32",), mamba_cache_mode=mode, num_speculative_blocks=drafts)


class Told(ContentCheck):
    """Calls of one group, in few words."""

    def __init__(self, spec: LayerSpec) -> None:
        caching = not isinstance(spec, CrossAttentionSpec)
        super().__init__(configure(30, spec, max_model_len_tokens=12, enable_caching=caching))

    def wrote(
        self,
        blocks: list[int],
        new: int,
        start: int = 0,
        content: Content = TEXT,
        *,
        load: int = 0,
        encoder: int = 0,
        hits: list[int] | None = None,
    ) -> None:
        """Slots were granted."""
        begins = None if hits is None else [hits]
        self.write_granted(
            "r", content, [blocks], start=start, num_external=load, num_new=new,
            num_encoder=encoder, hits=begins,
        )  # fmt: skip

    def hit(self, blocks: list[int], length: int, content: Content = TEXT) -> None:
        """A look-up answered so."""
        self.read_hit("q", content, [blocks], length)

    def held(self, blocks: list[int], length: int, content: Content = TEXT) -> None:
        """The request goes on behind so many tokens."""
        self.read_held("r", "held", content, [blocks], length, "KV-HASH-1")


Call: TypeAlias = Callable[[Told], None]


def wrote(*given: Any, **more: Any) -> Call:
    return lambda told: told.wrote(*given, **more)


def hit(*given: Any) -> Call:
    return lambda told: told.hit(*given)


def held(*given: Any) -> Call:
    return lambda told: told.held(*given)


def step() -> Call:
    return lambda told: told.new_step_starts()


def lose(blocks: list[int]) -> Call:
    return lambda told: told.shadow.lose(blocks)


def early(*blocks: int) -> Call:
    """Copies read what the step puts there."""
    return lambda told: told.shadow.copied_early.update(blocks)


STORIES: Sequence[tuple[LayerSpec, tuple[Call, ...], str | None]] = (
    (FULL, (wrote([3, 4, 5], 5), hit([3, 4], 4)), None),
    (FULL, (wrote([3, 4, 5], 5), hit([3, 4, 5, 6, 7], 9)),
     "the_last_token_is_computed (KV-MGR-1): a hit of all 9 tokens"),
    (FULL, (wrote([3, 4, 5], 5), hit([3, 4, 5], 6)),
     "content_is_where_it_is_claimed (KV-HASH-1): hit of q in group 0: token 5 should be in "
     "slot 1 of block 5, which holds nothing"),
    (FULL, (wrote([3, 4, 5], 5), hit([3, 0], 4)),
     "what_is_read_is_there (KV-GRP-2): hit of q in group 0: token 2 is still read but has "
     "no block"),
    (FULL, (wrote([3, 4, 5], 5), hit([3], 3)),
     "what_is_read_is_there (KV-GRP-2): hit of q in group 0: token 2 is still read but has "
     "no block"),
    (FULL, (wrote([3, 4, 5], 5), hit([4, 3], 4)),
     "content_is_where_it_is_claimed (KV-HASH-1): hit of q in group 0: token 0 should be in "
     "slot 0 of block 4, which holds token 102 of another prefix"),
    (FULL, (wrote([3, 4, 5], 5), hit([3, 4], 4, OTHER)),
     "content_is_where_it_is_claimed (KV-HASH-1): hit of q in group 0: token 3 should be in "
     "slot 1 of block 4, which holds token 103"),
    (FULL, (wrote([3, 4, 5], 5), hit([3, 4], 3, OTHER)), None),
    (FULL, (wrote([3, 4, 5], 5), wrote([3, 4, 5], 1, 5), hit([3, 4, 5], 6)), None),
    (FULL, (wrote([3, 4], 5),),
     "granted_tokens_have_slots (KV-GRP-7): r has no slot for token 4 in group 0"),
    (FULL, (wrote([3, 4], 2, 3),),
     "granted_tokens_have_slots (KV-GRP-7): r has no slot for token 4 in group 0"),
    (FULL, (wrote([0, 4], 2, 1),),
     "no_write_to_null (KV-POOL-1): token 1 must be written to the null block"),
    (FULL, (wrote([3, 4, 5, 6, 7], 10), held([3, 4, 5, 6, 7], 9)), None),
    (FULL, (wrote([3, 4, 5, 6, 7, 8], 12),), None),
    (FULL, (wrote([3, 4, 5, 6, 7, 8], 14),), None),
    (FULL, (wrote([3, 4, 5, 6, 7, 8], 12), held([3, 4, 5, 6, 7, 8], 12, LONGEST)),
     "content_is_where_it_is_claimed (KV-HASH-1): held in group 0: token 9 should be in "
     "slot 1 of block 7, which holds a draft"),
    (FULL, (wrote([3, 4, 5], 2, load=3), hit([3, 4], 4)), None),
    (FULL, (wrote([3, 4, 5], 2, 2, load=1, hits=[3]), hit([3, 4], 4)),
     "content_is_where_it_is_claimed (KV-HASH-1): hit of q in group 0: token 0 should be in "
     "slot 0 of block 3, which holds nothing"),
    (WINDOW, (wrote([3, 4, 5], 5), held([3, 4, 5], 5)), None),
    (WINDOW, (wrote([3, 4, 5], 5), held([0, 4, 5], 5)), None),
    (WINDOW, (wrote([3, 4, 5], 5), held([0, 0, 5], 5)),
     "what_is_read_is_there (KV-GRP-2): held in group 0: token 3 is still read but has no "
     "block"),
    (WINDOW, (wrote([3, 4, 5], 5), hit([0, 4], 4)), None),
    (WINDOW, (wrote([3, 4, 5], 5), hit([0, 0], 4)),
     "what_is_read_is_there (KV-GRP-2): hit of q in group 0: token 2 is still read but has "
     "no block"),
    (WINDOW, (wrote([0, 0, 5], 2, 0, load=4),),
     "no_write_to_null (KV-POOL-1): token 2 must be written to the null block"),
    (WINDOW, (wrote([0, 4, 5], 2, 0, load=4),), None),
    (CHUNKED, (wrote([3, 4, 5], 5), hit([0, 0], 4)), None),
    (CHUNKED, (wrote([3, 4, 5], 6), hit([0, 0], 5)),
     "what_is_read_is_there (KV-GRP-2): hit of q in group 0: token 4 is still read but has "
     "no block"),
    (CHUNKED, (wrote([3, 4, 5], 6), hit([0, 0, 5], 5)), None),
    (CHUNKED, (wrote([3, 4, 5], 6), hit([0, 0, 4], 5)),
     "content_is_where_it_is_claimed (KV-HASH-1): hit of q in group 0: token 4 should be in "
     "slot 0 of block 4, which holds token 102 of another prefix"),
    (CROSS, (wrote([3], 1, encoder=3),),
     "granted_tokens_have_slots (KV-CROSS-1): r has no slot for encoder token 2 in group 0"),
    (CROSS, (wrote([3, 4], 1, encoder=3), held([3, 4], 1)), None),
    (CROSS, (wrote([3, 4], 1, encoder=3), held([4, 3], 1)),
     "content_is_where_it_is_claimed (KV-HASH-1): held in group 0: token 0 should be in "
     "slot 0 of block 4, which holds token 2 of another prefix"),
    (CROSS, (wrote([3, 4], 1, encoder=3), hit([3], 2)),
     "encoders_have_no_hit (KV-CROSS-3): a hit of 2 tokens for q"),
    (states(), (wrote([3, 4, 5], 7), step(), hit([3, 4], 6)), None),
    (states(), (wrote([3, 4, 5], 7), step(), hit([3], 3)), None),
    (states(), (wrote([3, 4, 5], 7), step(), hit([3], 1)),
     "content_is_where_it_is_claimed (KV-HASH-1): hit of q in group 0: the state after 1 "
     "tokens should be in block 3, which holds the state after 3 tokens of some prefix"),
    (states(), (wrote([3, 4, 5], 7), step(), hit([3, 4, 5], 7)), None),
    (states(), (wrote([3, 4, 5], 7), step(), hit([3], 4)),
     "what_is_read_is_there (KV-MAMBA-3): hit of q in group 0: the state after 4 tokens is "
     "still read but has no block"),
    (states(), (wrote([3, 4, 5], 7), step(), hit([3, 0], 6)),
     "what_is_read_is_there (KV-MAMBA-3): hit of q in group 0: the state after 6 tokens is "
     "still read but has no block"),
    (states(), (wrote([3, 4, 5], 7), step(), hit([3, 5], 6)),
     "content_is_where_it_is_claimed (KV-HASH-1): hit of q in group 0: the state after 6 "
     "tokens should be in block 5, which holds the state after 7 tokens of some prefix"),
    (states(), (wrote([3, 4], 7),),
     "granted_tokens_have_slots (KV-GRP-7): r has no block for the state after 7 tokens in "
     "group 0"),
    (states(), (wrote([3, 4, 0], 7),),
     "no_write_to_null (KV-POOL-1): r: the state after 7 tokens must be written to the null "
     "block, entry 2 of group 0"),
    (states(), (wrote([3, 4, 5], 7), held([3, 4, 5], 7)), None),
    (states(), (wrote([3, 4, 5], 7), held([3, 4, 6], 7)),
     "what_is_read_is_there (KV-MAMBA-1): held in group 0: the state after 7 tokens is "
     "still read but has no block"),
    (states(), (wrote([3, 4, 5], 7), held([3, 4, 0], 7)),
     "what_is_read_is_there (KV-MAMBA-1): held in group 0: the state after 7 tokens is "
     "still read but has no block"),
    (states(), (wrote([3, 4], 4), step(), wrote([3, 4, 5], 3, 4), hit([3, 4], 6)), None),
    (states(), (wrote([3, 4], 4), step(), wrote([3, 5, 6], 3, 4)),
     "what_is_read_is_there (KV-MAMBA-1): step of r in group 0: the state after 4 tokens is "
     "still read but has no block"),
    (states(), (wrote([3, 4], 5, hits=None), wrote([3, 4], 1, 3, OTHER, hits=[3])),
     "a_state_is_read_after_its_step (KV-MAMBA-2): step of r in group 0 starts from the "
     "state after 3 tokens in block 3, which is computed in this very step"),
    (states(), (wrote([3, 4, 5], 7), step(), wrote([3, 6], 1, 3, hits=[3])), None),
    (states(), (wrote([3, 4, 5], 7), wrote([3, 6], 1, 3, hits=[3])),
     "a_state_is_read_after_its_step (KV-MAMBA-2): step of r in group 0 starts from the "
     "state after 3 tokens in block 3, which is computed in this very step"),
    (states(), (wrote([3, 4], 0, load=6), held([3, 4], 6)), None),
    (states(), (wrote([3], 0, load=6),),
     "granted_tokens_have_slots (KV-GRP-6): r has no block for the state after 6 tokens in "
     "group 0"),
    (states(), (wrote([3, 0], 0, load=6),),
     "what_is_read_is_there (KV-MAMBA-1): load of r in group 0: the state after 6 tokens is "
     "still read but has no block"),
    (states(), (wrote([0, 0, 3], 0, load=9),), None),
    (states(), (wrote([0, 5, 3], 0, load=9), held([0, 0, 3], 8)), None),
    (states(), (wrote([0, 5, 3], 0, load=9), held([0, 5, 3], 9)), None),
    (states("none", 1), (wrote([3, 4, 5], 4, 5),), None),
    (states("none", 1), (wrote([3, 4, 5, 6], 2, 8),), None),
    (states("none", 1), (wrote([3, 4, 5], 2, 8),),
     "granted_tokens_have_slots (KV-MAMBA-4): r has no block for the state after 10 tokens "
     "in group 0"),
    (states("none", 1), (wrote([3, 4, 5, 0], 2, 8),),
     "no_write_to_null (KV-POOL-1): r: the state after 10 tokens must be written to the "
     "null block, entry 3 of group 0"),
    (states("none", 1), (wrote([3, 4, 5, 6], 2, 8), held([3, 4, 5, 6], 9)), None),
    (states("none", 1), (wrote([3, 4, 5, 6], 2, 8), held([3, 4, 5, 6], 10, LONGER)), None),
    (states("none", 1), (wrote([3, 4, 5, 6], 2, 8), held([3, 4, 5, 0], 10, LONGER)),
     "what_is_read_is_there (KV-MAMBA-5): held in group 0: the state after 10 tokens is "
     "still read but has no block"),
    (states("align"), (wrote([3, 4], 6), step(), hit([3, 4], 6)), None),
    (states("align"), (wrote([3, 4], 6), step(), hit([3], 3)),
     "content_is_where_it_is_claimed (KV-MAMBA-9): hit of q in group 0: the state after 3 "
     "tokens should be in block 3, which holds no state, since no step ended at its boundary"),
    (states("align"), (wrote([3], 3), step(), wrote([3, 4], 3, 3), step(), hit([3, 4], 6)), None),
    (states("align"), (wrote([3], 3), step(), wrote([3], 3, 3)),
     "granted_tokens_have_slots (KV-MAMBA-6): r has no block for the state after 6 tokens "
     "in group 0"),
    (states("align"), (wrote([3], 3), step(), wrote([3, 0], 3, 3)),
     "no_write_to_null (KV-MAMBA-9): r: the state after 6 tokens must be written to the "
     "null block, entry 1 of group 0"),
    (states("align", 1),
     (wrote([3, 4], 3), step(), wrote([3, 4, 5], 3, 3), held([3, 4, 5], 6)), None),
    (states("align", 1), (wrote([3, 4], 3), step(), wrote([3, 4, 5], 3, 3), held([3, 6, 5], 6)),
     "what_is_read_is_there (KV-MAMBA-1): held in group 0: the state after 6 tokens is "
     "still read but has no block"),
    (states("align", 1), (wrote([3, 4, 5, 6, 7], 2, 8), held([3, 4, 5, 6, 0], 9)), None),
    (states("align", 1), (wrote([3, 4, 5, 6, 7], 2, 8), held([3, 4, 5, 6, 0], 10, LONGER)),
     "what_is_read_is_there (KV-MAMBA-9): held in group 0: the state after 10 tokens is "
     "still read but has no block"),
    (states("align", 1), (wrote([3, 4, 5, 6, 7], 2, 8), held([3, 4, 5, 0, 7], 10, LONGER)), None),
    (states("align", 1), (wrote([0, 0, 5, 6, 7], 2, 8), held([0, 0, 5, 6, 7], 10, LONGER)), None),
    (states("all"), (wrote([3, 4, 5], 7), step(), hit([3, 4], 6)), None),
    (states(), (wrote([3, 4, 5], 9), step(), wrote([3, 4, 0], 0, load=9, hits=[3, 4])), None),
    (FULL, (wrote([3, 4, 5], 5), step(), lose([4]), held([3, 4, 5], 5)),
     "content_is_where_it_is_claimed (KV-HASH-1): held in group 0: token 2 should be in "
     "slot 0 of block 4, which holds nothing"),
    (FULL, (wrote([3, 4], 3), wrote([3, 4, 5], 3, 3), hit([3, 4, 5], 6)), None),
    (states(), (wrote([0, 5, 3], 0, load=9), held([0, 0, 3], 6)),
     "what_is_read_is_there (KV-MAMBA-1): held in group 0: the state after 6 tokens is "
     "still read but has no block"),
    (states(), (wrote([3, 4, 5], 7), step(), early(5), hit([3, 5], 6)),
     "copies_read_what_was_there (KV-INSIDE-6): hit of q in group 0: the state after 6 "
     "tokens should be in block 5, which holds the state after 7 tokens of some prefix"),
    (FULL, (wrote([3, 4, 5], 5), early(4), hit([3, 4], 4, OTHER)),
     "copies_read_what_was_there (KV-INSIDE-6): hit of q in group 0: token 3 should be in "
     "slot 1 of block 4, which holds token 103"),
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(STORIES)))
def test_what_is_said_of_a_story(number: int) -> None:
    spec, calls, said = STORIES[number]
    told = Told(spec)
    for call in calls[:-1]:
        call(told)
    if said is None:
        calls[-1](told)
        return
    with pytest.raises(InvariantViolation) as caught:
        calls[-1](told)
    assert str(caught.value) == said
