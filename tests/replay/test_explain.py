"""Each reason of the explanation, on traces small enough to count by hand: `explain.txt`."""

from __future__ import annotations

import pytest

from kvcheck.tools.replay.explain import Explainer, ExplanationError, Waterfall
from tests.cases import Case, cases, words
from tests.replay.records import record


@pytest.mark.parametrize("case", cases(__file__, "explain.txt"), ids=str)
def test_what_became_of_repeated_tokens_is_explained(case: Case) -> None:
    (_, block_size), _ = words(case.given[0])
    explainer, total = Explainer(block_size), 0
    for number, line in enumerate(case.given[1:], 1):
        (_, ids, length), options = words(line)
        hit = options.get("hit", 0)
        made = record(number, ids, length, options.get("out", 1), output=options.get("output"))
        nodes = explainer.admitted(made, hit)
        end = options.get("registered", made.cached_length)
        for start in range(0, end, options.get("by", end)):
            explainer.registered(nodes, start, min(end, start + options.get("by", end)))
        total += hit
    waterfall = explainer.waterfall(total)
    assert waterfall.residual == 0
    case.expect(as_lines(waterfall))


def as_lines(waterfall: Waterfall) -> list[str]:
    repeated = f"{waterfall.repeated_ids} ids of {waterfall.repeated_tokens} tokens"
    rates = f"{waterfall.repeat_rate} of ids repeated, {waterfall.hit_rate} of tokens hit"
    items = [
        f"{each.name} {each.tokens}, {each.rate_change}"
        for each in waterfall.items
        if each.rate_change
    ]
    return [f"{repeated}; {rates}", *items]


def test_an_explanation_that_does_not_add_up_is_an_error() -> None:
    explainer = Explainer(512)
    explainer.admitted(record(1, [1], 512), 0)
    with pytest.raises(ExplanationError, match="0 tokens explained as hits, 5 hit") as caught:
        explainer.waterfall(5)
    assert (caught.value.explained_tokens, caught.value.hit_tokens) == (0, 5)
