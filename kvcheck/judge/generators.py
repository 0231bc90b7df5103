"""Random steps, as Hypothesis strategies for state machines.

Weighted so that sharing, eviction, refusal, preemption and windows happen within a few dozen steps:
one token most of the time, small pools, requests that come back.
"""

from __future__ import annotations

from hypothesis import strategies as st

from kvcheck.play import steps
from kvcheck.play.illegal_operations import ILLEGAL_OPERATIONS

# A tiny alphabet, and one token most of the time, make equal prefixes likely.
TOKENS = st.sampled_from([0, 0, 0, 1])
PROMPTS = st.one_of(
    st.integers(1, 9).map(lambda n: [0] * n), st.lists(TOKENS, min_size=1, max_size=9)
)
DRAFTS = st.lists(TOKENS, max_size=2)
OFTEN = st.sampled_from([True, True, True, False])
WHO = st.integers(0, 5)
SELDOM = st.sampled_from([False, False, False, True])
SALTS = st.sampled_from([None, None, None, None, "s"])
CHUNKS = st.sampled_from([None, None, None, 1, 2, 3, 5])

ARRIVALS = st.builds(
    steps.Arrive,
    prompt=PROMPTS.map(tuple),
    salt=SALTS,
    lora=st.sampled_from([None, None, None, "adapter"]),
    items=st.sampled_from([(), (), (), (("a", 0, 2),), (("a", 1, 2), ("b", 3, 1))]),
    skip_reading=st.sampled_from([False, False, False, False, False, True]),
)
ADMISSIONS = st.builds(
    steps.Admit,
    who=WHO,
    look_up=OFTEN,
    chunk_tokens=CHUNKS,
    external_tokens=st.sampled_from([0, 0, 0, 1, 3, 99]),
    load_later=st.booleans(),
    lookahead_tokens=st.sampled_from([0, 0, 0, 2]),
    reserved_blocks=st.sampled_from([0, 0, 0, 0, 1]),
    must_fit=SELDOM,
    others_scheduled=st.booleans(),
)
RUNS = st.builds(
    steps.Run, who=WHO, chunk_tokens=CHUNKS, token=TOKENS, drafts=DRAFTS.map(tuple),
    accepted=st.integers(0, 2),
)  # fmt: skip
RELEASES = st.builds(steps.Release, who=WHO, again=st.booleans(), later=SELDOM)
BREAKS = st.builds(steps.Break, who=WHO, call=st.integers(0, len(ILLEGAL_OPERATIONS) - 1))
WITHDRAWALS = st.builds(steps.Withdraw, who=WHO, again=SELDOM)
EVICTIONS = st.builds(
    steps.Evict, who=WHO, group=st.integers(0, 3), index=st.sampled_from([0, 0, 1, 1, 2, 3])
)
