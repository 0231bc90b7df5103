"""Messages of shadow memory on reading and writing, to the word: windows, chunks, encoders, states.

Each story of `contents.txt` is a group and a few calls, with what the last of them finds.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvcheck.play.shadow.content import Content
from kvcheck.play.shadow.content_check import ContentCheck
from kvcheck.rules.notation.setting import SMALL, spec_of
from kvcheck.rules.notation.values import Reader
from kvspec.errors import InvariantViolation
from kvspec.specs import (
    CrossAttentionSpec,
    LayerSpec,
    MambaSpec,
)
from tests.cases import Case, cases, words
from tests.programs import configure

TEXT = Content(b"r", range(100, 109))
OTHER = Content(b"r", (100, 101, 102, 203, 204, 205))
LONGER, LONGEST = (Content(b"r", range(100, end)) for end in (110, 111))
OTHERWISE = Content(b"r", (*range(100, 108), 1, 2, 3))
CONTENTS = {"other": OTHER, "longer": LONGER, "longest": LONGEST, "otherwise": OTHERWISE}


def states(mode: str = "none", drafts: int = 0) -> MambaSpec:
    return MambaSpec(3, ((2,),), ("float32",), mamba_cache_mode=mode, num_speculative_blocks=drafts)


class Told(ContentCheck):
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
        begins = None if hits is None else [hits]
        self.write_granted(
            "r", content, [blocks], start=start, num_external=load, num_new=new,
            num_encoder=encoder, hits=begins,
        )  # fmt: skip

    def hit(self, blocks: list[int], length: int, content: Content = TEXT) -> None:
        self.read_hit("q", content, [blocks], length)

    def held(self, blocks: list[int], length: int, content: Content = TEXT) -> None:
        self.read_held("r", "held", content, [blocks], length, "KV-HASH-1")

    def accept(self, blocks: list[int], start: int, end: int, content: Content = LONGEST) -> None:
        self.accept_drafts(content, [blocks], start, end)

    def step(self) -> None:
        self.new_step_starts()

    def lose(self, blocks: list[int]) -> None:
        self.shadow.lose(blocks)

    def forget(self, blocks: list[int]) -> None:
        self.shadow.forget(blocks)

    def early(self, *blocks: int) -> None:
        self.shadow.copied_early.update(blocks)


def listed(value: Any) -> Any:
    return CONTENTS.get(value, value) if isinstance(value, str) else value


@pytest.mark.parametrize("case", cases(__file__, "contents.txt"), ids=str)
def test_what_is_said_of_a_story(case: Case) -> None:
    group, *calls = case.name.split("; ")
    spec, _ = spec_of(Reader(group).values(), SMALL)
    told = Told(spec)
    found = "nothing"
    for number, call in enumerate(calls, 1):
        (verb, *given), named = words(call)
        try:
            getattr(told, verb)(*map(listed, given), **named)
        except InvariantViolation as error:
            found = str(error)
            assert number == len(calls)
    case.expect([found])
